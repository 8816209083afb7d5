"""Coefficients of the interference models: of a GPU type and of a model on a GPU type (iGniter Table 2).

Shares are percent of a GPU, as in the published coefficients, times are milliseconds.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class GpuCoefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients and price of a GPU type."""

    name: str
    max_power_w: float
    """P, the power cap."""
    max_frequency_mhz: float
    """F."""
    idle_power_w: float
    """p_idle."""
    pcie_bytes_per_ms: float
    """B_pcie, of each direction."""
    frequency_slope: float
    """alpha_f of Eq. 9 in MHz per W above the power cap, negative."""
    scheduling_slope_ms: float
    """alpha_sch of Eq. 6 per kernel and co-located workload."""
    scheduling_offset_ms: float
    """beta_sch of Eq. 6 per kernel."""
    price_per_hour: float = 1.0
    share_unit_percent: float = 2.5
    """r_unit, the smallest step of a share."""
    cache_scale: float = 1.0
    """Factor on alpha_cache of all models, fitted from pairs of different models. The paper has none: 1."""

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field, its value and the range wanted."""
        if not self.name:
            raise ValueError("gpu type: got no name, wanted one")
        slope = self.frequency_slope
        if not (isfinite(slope) and slope <= 0):
            raise ValueError(f"{self.name}: frequency_slope: got {slope:g}, wanted MHz per W of at most 0")
        _check_numbers(
            self,
            positive=("max_power_w", "max_frequency_mhz", "pcie_bytes_per_ms", "price_per_hour", "share_unit_percent"),
            signed=("scheduling_slope_ms", "scheduling_offset_ms", "frequency_slope"),
        )
        if self.share_unit_percent > 100:
            raise ValueError(f"{self.name}: share_unit_percent: got {self.share_unit_percent:g}, wanted at most 100")


class ModelCoefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients of one model on one GPU type. `r` in Eq. 11 is the share in percent, `b` the batch size."""

    model: str
    k1: float
    k2: float
    k3: float
    k4: float
    k5: float
    """Eq. 11: active time alone = (k1 b^2 + k2 b + k3) / (r + k4) + k5 + k6 b."""
    alpha_cache: float
    """Eq. 8: relative growth of the active time per percent of L2 utilisation of the neighbours."""
    alpha_power: float
    beta_power: float
    """Power in W = alpha_power * a + beta_power, with the processing ability a = 1000 b / k_act in rows per second."""
    alpha_cacheutil: float
    beta_cacheutil: float
    """L2 utilisation in percent = alpha_cacheutil * a + beta_cacheutil."""
    kernels: int
    """n_k."""
    scheduling_delay_ms: float
    """k_sch * n_k, the scheduling delay of all kernels when alone."""
    load_bytes: float
    """d_load, input bytes per row."""
    feedback_bytes: float
    """d_feedback, output bytes per row."""
    k6: float = 0.0
    """Active time per row that no share shortens, in ms. The paper has no such term: 0."""
    relative_error: float = 0.0
    """Standard deviation of measured over predicted latency. The safety margin of a plan is a multiple of it."""
    jitter: float = 0.0
    """Standard deviation of the latency of a batch over its mean, at equal conditions."""

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field, its value and the range wanted."""
        if not self.model:
            raise ValueError("model: got no name, wanted one")
        signed = ("k1", "k3", "k4", "k5", "k6", "alpha_power", "beta_power", "alpha_cacheutil", "beta_cacheutil")
        _check_numbers(self, positive=("k2",), signed=signed)


def _check_numbers(coefficients: msgspec.Struct, positive: Sequence[str], signed: Sequence[str]) -> None:
    """Raise ValueError unless all numbers are finite, `positive` ones above 0, and all but `signed` ones at least 0."""
    name, *fields = coefficients.__struct_fields__
    for field in fields:
        value, place = getattr(coefficients, field), f"{getattr(coefficients, name)}: {field}"
        if not isfinite(value):
            raise ValueError(f"{place}: got {value}, wanted a finite number")
        if field in positive and value <= 0:
            raise ValueError(f"{place}: got {value:g}, wanted a number above 0")
        if field not in signed and value < 0:
            raise ValueError(f"{place}: got {value:g}, wanted at least 0")
