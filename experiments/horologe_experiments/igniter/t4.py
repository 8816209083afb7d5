"""An assumed NVIDIA T4: iGniter planned with T4s (Fig. 20), and its coefficients were not published."""

from __future__ import annotations

import msgspec

from horologe_common.interference.v100 import CALIBRATED
from horologe_planning.provisioning.workloads import GpuType

G4DN_XLARGE_PRICE = 0.526
"""US dollars per hour (iGniter section 5.3: $7.89 for fifteen)."""
POWER_CAP_W, IDLE_POWER_W, MAX_FREQUENCY_MHZ = 70.0, 10.0, 1590.0
"""Data sheet; the idle power is that of `nvidia-smi` on idle instances."""
COMPUTE, MEMORY = 2.0, 3.0
"""iGniter section 5.3: a V100 has twice the computing and three times the memory bandwidth resources of a T4."""


def assumed_t4(compute: float = COMPUTE, memory: float = MEMORY) -> GpuType:
    """Return a V100 with `compute` times the active time that a share shortens and `memory` times the rest.

    Power is scaled to the T4's cap, so that a full T4 exceeds its cap by as much as a full V100.
    """
    gpu, models = CALIBRATED
    power = (POWER_CAP_W - IDLE_POWER_W) / (gpu.max_power_w - gpu.idle_power_w)
    t4 = msgspec.structs.replace(
        gpu, name="t4", max_power_w=POWER_CAP_W, idle_power_w=IDLE_POWER_W, max_frequency_mhz=MAX_FREQUENCY_MHZ,
        frequency_slope=gpu.frequency_slope / power * MAX_FREQUENCY_MHZ / gpu.max_frequency_mhz,
        price_per_hour=G4DN_XLARGE_PRICE,
    )  # fmt: skip
    slower = {}
    for name, model in models.items():
        changes = {field: compute * getattr(model, field) for field in ("k1", "k2", "k3")}
        changes |= {field: memory * getattr(model, field) for field in ("k5", "k6")}
        changes |= {"alpha_power": power * compute * model.alpha_power, "beta_power": power * model.beta_power}
        slower[name] = msgspec.structs.replace(model, **changes, alpha_cacheutil=compute * model.alpha_cacheutil)
    return GpuType(t4, slower)
