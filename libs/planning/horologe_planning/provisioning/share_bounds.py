"""Batch size and least share of a workload alone on a GPU (iGniter Theorem 1, Eq. 18).

At 400 requests per second, 7 requests arrive in 17.5 ms, and with an SLO of 40 ms a batch may take 20 ms. `resnet50`
executes batches of 7 in this time on 25% of a V100, without a margin. Every other batch size needs as much or more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.interference.prediction import MS_PER_S, Array

if TYPE_CHECKING:
    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_planning.provisioning.workloads import Workload

_SLACK = 1e-9


class ShareBound(NamedTuple):
    """Batch size and least share. `units`: share in steps of r_unit; above 100% if no share suffices."""

    batch: int
    units: int


BatchRule = Callable[["GpuCoefficients", "ModelCoefficients", "Workload"], ShareBound]
"""Chooses batch size and share of a workload alone."""


def least_bound(gpu: GpuCoefficients, model: ModelCoefficients, workload: Workload, margin: float = 0.0) -> ShareBound:
    """Return the permitted batch size with the least share that meets Eq. 13 and 14.

    Eq. 17 of the paper rounds the batch up and allows SLO / 2 for it. The batch rounded down has less time, and less
    work.
    `margin`: relative error of the prediction that the share must cover.
    """
    batch = np.array(workload.batches, float)
    latency_limit = np.full_like(batch, workload.slo_ms / 2 / (1 + margin))
    cycle_limit = MS_PER_S * batch / workload.rate / (1 + margin)
    shares = least_shares(gpu, model, batch, latency_limit, cycle_limit)
    best = int(np.argmin(shares))
    return ShareBound(workload.batches[best], share_units(float(shares[best]), gpu))


def least_shares(
    gpu: GpuCoefficients, model: ModelCoefficients, batch: Array, latency_limit_ms: Array, cycle_limit_ms: Array
) -> Array:
    """Return the least share in percent per batch size, infinite where none suffices (Eq. 18).

    `latency_limit_ms` bounds t_inf (Eq. 14), `cycle_limit_ms` bounds t_gpu + t_feedback (Eq. 13).
    """
    load, feedback = (rows * batch / gpu.pcie_bytes_per_ms for rows in (model.load_bytes, model.feedback_bytes))
    gpu_ms = np.minimum(latency_limit_ms - load, cycle_limit_ms) - feedback
    delta = gpu_ms - model.scheduling_delay_ms - model.k5 - model.k6 * batch
    gamma = model.k1 * batch**2 + model.k2 * batch + model.k3
    return np.asarray(np.where(delta > 0, gamma / np.where(delta > 0, delta, 1.0) - model.k4, np.inf))


def share_units(share_percent: float, gpu: GpuCoefficients) -> int:
    """Return a share in steps of r_unit, at least one step; more than the whole if it is above 100%."""
    whole = round(100 / gpu.share_unit_percent)
    if not share_percent <= 100 + _SLACK:
        return whole + 1
    return max(ceil(share_percent / gpu.share_unit_percent - _SLACK), 1)
