"""Batch size and least share of a workload alone on a GPU (iGniter Theorem 1, Eq. 17 and 18)."""

from __future__ import annotations

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


def appropriate_batch(gpu: GpuCoefficients, model: ModelCoefficients, rate: float, slo_ms: float) -> int:
    """Return b_appr of Eq. 17: the least batch that keeps up with `rate` requests/s if its execution takes SLO / 2."""
    per_ms = rate / MS_PER_S
    batch = slo_ms * per_ms * gpu.pcie_bytes_per_ms / (2 * (gpu.pcie_bytes_per_ms + per_ms * model.load_bytes))
    return max(ceil(batch - _SLACK), 1)


def paper_bound(gpu: GpuCoefficients, model: ModelCoefficients, workload: Workload) -> ShareBound:
    """Return b_appr and r_lower (Eq. 17, 18).

    b_appr is rounded up to a permitted batch size. If there is none, no share suffices.
    """
    appropriate = appropriate_batch(gpu, model, workload.rate, workload.slo_ms)
    batch = next((size for size in workload.batches if size >= appropriate), None)
    if batch is None:
        return ShareBound(workload.batches[-1], _units(np.inf, gpu))
    limit = np.array([workload.slo_ms / 2])
    share = least_shares(gpu, model, np.array([batch], float), limit, np.array([np.inf]))[0]
    return ShareBound(batch, _units(share, gpu))


def least_bound(gpu: GpuCoefficients, model: ModelCoefficients, workload: Workload, margin: float = 0.0) -> ShareBound:
    """Return the permitted batch size with the least share that meets Eq. 13 and 14.

    Eq. 17 rounds the batch up and allows SLO / 2 for it. The batch rounded down has less time, and less work.
    `margin`: relative error of the prediction that the share must cover.
    """
    batch = np.array(workload.batches, float)
    latency_limit = np.full_like(batch, workload.slo_ms / 2 / (1 + margin))
    cycle_limit = MS_PER_S * batch / workload.rate / (1 + margin)
    shares = least_shares(gpu, model, batch, latency_limit, cycle_limit)
    best = int(np.argmin(shares))
    return ShareBound(workload.batches[best], _units(float(shares[best]), gpu))


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


def _units(share_percent: float, gpu: GpuCoefficients) -> int:
    """Return the share in steps of r_unit, at least one step."""
    whole = round(100 / gpu.share_unit_percent)
    if not share_percent <= 100 + _SLACK:
        return whole + 1
    return max(ceil(share_percent / gpu.share_unit_percent - _SLACK), 1)
