"""Predict latency, throughput, frequency and power of workloads that share a GPU (iGniter section 3.1, Eq. 1 to 11).

A prediction has two steps. `run_alone` computes everything that depends on a workload's own batch size and share.
A model's `predict` combines the workloads of each GPU. The provisioner tabulates the first step.

All arrays have one axis of workload slots, the last one; the axes before it are GPUs. A slot with share 0 is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from horologe_common.interference.coefficients import ModelCoefficients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.coefficients import GpuCoefficients

Array = NDArray[np.float64]
Index = NDArray[np.intp]

MS_PER_S = 1000.0
LEAST_FREQUENCY = 0.1
"""Bound of f / F. Eq. 9 falls below 0 for a power demand far above the cap, where no GPU was measured."""
_FIELDS = ModelCoefficients.__struct_fields__[1:16]
"""Coefficients of the predicted latency."""


class Alone(NamedTuple):
    """Workloads as if each ran alone at its batch size and share. Every array has the same shape."""

    present: Array
    """v of Eq. 7: 1 where the share is above 0, else 0."""
    batch: Array
    kernels: Array
    scheduling_ms: Array
    active_ms: Array
    """k_act of Eq. 11."""
    power_w: Array
    cache_percent: Array
    """c, the L2 utilisation."""
    alpha_cache: Array
    load_ms: Array
    feedback_ms: Array
    """Eq. 3."""

    def take(self, index: tuple[Index, ...]) -> Alone:
        """Return the workloads at the given positions of every array."""
        return Alone(*(values[index] for values in self))


class Prediction(NamedTuple):
    """Predicted figures per workload slot; `frequency_mhz` and `power_w` per GPU. Empty slots have latency 0."""

    latency_ms: Array
    """t_inf of Eq. 1."""
    throughput: Array
    """h of Eq. 2 in rows per second."""
    load_ms: Array
    gpu_ms: Array
    """t_gpu of Eq. 4."""
    feedback_ms: Array
    frequency_mhz: Array
    """f of Eq. 9."""
    power_w: Array
    """p_demand of Eq. 10, not limited by the power cap."""


def stack_coefficients(models: Sequence[ModelCoefficients]) -> Array:
    """Return the coefficients as an array with a row per coefficient and a column per model."""
    return np.array([[getattr(model, field) for model in models] for field in _FIELDS], dtype=np.float64)


def run_alone(gpu: GpuCoefficients, coefficients: Array, batch: Array, share: Array) -> Alone:
    """Return each workload as if it ran alone (Eq. 3, 7, 11 and the two unnumbered equations after Eq. 11).

    `coefficients` comes from `stack_coefficients`, possibly indexed along its columns: its shape without the first
    axis broadcasts with `batch` in rows and `share` in percent.
    """
    k1, k2, k3, k4, k5, alpha_cache, alpha_power, beta_power, alpha_util, beta_util, *sizes, k6 = coefficients
    kernels, scheduling, load, feedback = sizes
    present = np.where(share > 0, 1.0, 0.0)
    usable = np.where(share > 0, share, 100.0)
    active = (k1 * batch**2 + k2 * batch + k3) / (usable + k4) + k5 + k6 * batch
    ability = MS_PER_S * batch / active
    arrays = (
        present, batch, kernels, scheduling, active, alpha_power * ability + beta_power,
        alpha_util * ability + beta_util, alpha_cache, load * batch / gpu.pcie_bytes_per_ms,
        feedback * batch / gpu.pcie_bytes_per_ms,
    )  # fmt: skip
    return Alone(*np.broadcast_arrays(*arrays))


class InterferenceModel(NamedTuple):
    """The paper's model: contention for the kernel scheduler, the L2 cache and power. `pcie`: also for PCIe.

    The paper names the absence of the latter as the cause of AlexNet's error (section 5.2). A transfer is slowed by the
    part of the time in which each neighbour, alone, uses the same direction. Both directions of PCIe work at the same
    time. No coefficient is added.
    """

    pcie: bool

    def predict(self, gpu: GpuCoefficients, alone: Alone) -> Prediction:
        """Return the prediction of Eq. 1 to 10 for GPUs of one type, from what each workload would do alone."""
        gpu_ms, frequency, power = _execution(gpu, alone)
        load, feedback = alone.load_ms, alone.feedback_ms
        if self.pcie:
            alone_ms = alone.load_ms + alone.scheduling_ms + alone.active_ms + alone.feedback_ms
            load, feedback = (own * (1 + _neighbours(alone.present * own / alone_ms)) for own in (load, feedback))
        return _assemble(alone, load, gpu_ms, feedback, frequency, power)


INTERFERENCE_MODELS = {"igniter": InterferenceModel(pcie=False), "pcie-contention": InterferenceModel(pcie=True)}
DEFAULT_INTERFERENCE_MODEL = "pcie-contention"


def predict_shares(
    model: InterferenceModel, gpu: GpuCoefficients, coefficients: Array, batch: Array, share: Array
) -> Prediction:
    """Return the prediction for workloads at a batch size and a share in percent; see `run_alone` for the shapes."""
    return model.predict(gpu, run_alone(gpu, coefficients, batch, share))


def _execution(gpu: GpuCoefficients, alone: Alone) -> tuple[Array, Array, Array]:
    """Return t_gpu per slot (Eq. 4, 5, 6, 8), the frequency and the power demand per GPU (Eq. 9, 10)."""
    count = alone.present.sum(axis=-1, keepdims=True)
    # Eq. 6 begins at two workloads. A neighbour that pauses (`colocation.py`) counts for a part of its delay.
    line = gpu.scheduling_slope_ms * np.maximum(count, 2.0) + gpu.scheduling_offset_ms
    delay = line * np.clip(count - 1, 0.0, 1.0)
    scheduling = alone.scheduling_ms + delay * alone.kernels
    contention = gpu.cache_scale * alone.alpha_cache * _neighbours(alone.present * alone.cache_percent)
    active = alone.active_ms * (1 + contention)
    power = gpu.idle_power_w + (alone.present * alone.power_w).sum(axis=-1, keepdims=True)
    excess = np.maximum(power - gpu.max_power_w, 0.0)
    ratio = np.maximum(1 + gpu.frequency_slope * excess / gpu.max_frequency_mhz, LEAST_FREQUENCY)
    return (scheduling + active) / ratio, ratio[..., 0] * gpu.max_frequency_mhz, power[..., 0]


def _neighbours(values: Array) -> Array:
    """Return for each slot the sum over all other slots of its GPU."""
    return np.asarray(values.sum(axis=-1, keepdims=True) - values)


def _assemble(alone: Alone, load: Array, gpu_ms: Array, feedback: Array, frequency: Array, power: Array) -> Prediction:
    """Return latency (Eq. 1) and throughput (Eq. 2) with their parts."""
    present = alone.present
    return Prediction(
        present * (load + gpu_ms + feedback),
        present * MS_PER_S * alone.batch / (gpu_ms + feedback),
        present * load,
        present * gpu_ms,
        present * feedback,
        frequency,
        power,
    )
