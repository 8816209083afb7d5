"""Provisioning strategies that iGniter is compared with (iGniter section 5.1, 5.3): FFD+, FFD++, GSLICE+, gpu-lets+.

Their plans may violate SLOs. `violations` counts the workloads that do, by an interference model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.interference.prediction import (
    MS_PER_S,
    Array,
    InterferenceModel,
    predict_shares,
    stack_coefficients,
)
from horologe_planning.provisioning.placement import decreasing_order
from horologe_planning.provisioning.plan_prediction import with_predictions
from horologe_planning.provisioning.provisioner import PAPER_OPTIONS, empty_fleets, place_all, plan_of, provision
from horologe_planning.provisioning.share_bounds import appropriate_batch
from horologe_planning.provisioning.workloads import BATCH_LIMIT, Placement, PlannedGpu, SharingPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.provisioning.share_tables import GpuType
    from horologe_planning.provisioning.workloads import Workload

GSLICE_THRESHOLD = 0.1
GSLICE_ADJUSTMENTS = 5
"""Section 5.3: the plan after five adjustments is judged."""
GSLICE_SHARE = 30.0
"""First share of every workload, in the authors' implementation."""
GPU_LETS_SHARES = (20.0, 40.0, 50.0, 60.0, 80.0)
EFFICIENT_SHARES = {"alexnet": 40.0, "resnet50": 60.0, "vgg19": 40.0, "ssd": 40.0}
"""Share of a V100 with the most throughput for its size. From Table 1 and Fig. 19; that of SSD gives the 8 GPUs of Fig.
14. Other models: 50%."""
GPU_LETS_WORKLOADS = 2
SLOWDOWN = (-0.0000972, 0.00154, 0.0738)
"""V100, fitted from the pairs of iGniter: latency over latency alone minus 1 = a c_own + b c_neighbour + c, with L2
utilisation in percent. gpu-lets adds DRAM utilisation, which iGniter's profiles do not have."""


def plan_ffd(workloads: Sequence[Workload], kind: GpuType) -> SharingPlan:
    """Return FFD+: the least share alone (r_lower), on the first GPU with so much left."""
    (fleet,) = empty_fleets(workloads, [kind], PAPER_OPTIONS)
    bins: list[list[int]] = []
    least = fleet.tables.least
    for row in decreasing_order([fleet]):
        fitting = (rows for rows in bins if sum(int(least[other]) for other in rows) + least[row] <= kind.whole)
        rows = next(fitting, None)
        if rows is None:
            bins.append(rows := [])
        rows.append(row)
    for rows in bins:
        gpu = fleet.open_gpu(rows[0])
        fleet.set_gpu(gpu, np.array(rows, np.intp), least[rows])
    return plan_of([fleet])


def plan_ffd_with_allocation(workloads: Sequence[Workload], kind: GpuType) -> SharingPlan:
    """Return FFD++: the first GPU on which Algorithm 2 finds shares (iGniter Fig. 19)."""
    return plan_of(place_all(empty_fleets(workloads, [kind], PAPER_OPTIONS), "first-fit"))


def plan_gslice(workloads: Sequence[Workload], kind: GpuType, model: InterferenceModel) -> SharingPlan:
    """Return GSLICE+: iGniter's placement, with share and batch of each workload adjusted by its own measurements.

    Before each adjustment of the shares, and after the last one, the batch sizes are adjusted until they settle.
    `model` stands for the measurements. Where the shares exceed 100%, each is scaled down in proportion: the SMs are
    oversubscribed.
    """
    placed = provision(workloads, [kind], PAPER_OPTIONS)
    gpus = []
    for gpu in placed.gpus:
        share, batch = np.full(len(gpu.placements), GSLICE_SHARE), np.ones(len(gpu.placements))
        for _ in range(GSLICE_ADJUSTMENTS):
            batch = _settle_batches(kind, model, gpu.placements, batch, share)
            measured = _measure(kind, model, gpu.placements, batch, share)
            share = adjust_shares(kind, gpu.placements, share, *measured)
        batch = _settle_batches(kind, model, gpu.placements, batch, share)
        gpus.append(_planned(kind, gpu.placements, batch, share))
    return with_predictions(SharingPlan(tuple(gpus), len(gpus) * kind.gpu.price_per_hour), [kind], model)


def plan_gpu_lets(workloads: Sequence[Workload], kind: GpuType, model: InterferenceModel) -> SharingPlan:
    """Return gpu-lets+: the most efficient of five shares, and at most one other workload on the rest, best fit.

    The linear slowdown is checked for the workload that arrives, not for the one that is there. Batch sizes are b_appr.
    """
    (fleet,) = empty_fleets(workloads, [kind], PAPER_OPTIONS)
    gpus: list[list[_Let]] = []
    for workload in sorted(fleet.tables.workloads, key=lambda workload: -workload.rate):
        for gpu in sorted((gpu for gpu in gpus if len(gpu) < GPU_LETS_WORKLOADS), key=lambda gpu: -gpu[0].share):
            let = _fit_let(kind, model, workload, 100 - gpu[0].share, gpu[0])
            if let is not None:
                gpu.append(let)
                break
        else:
            alone = _fit_let(kind, model, workload, 100.0, None)
            gpus.append([alone or _Let(workload, BATCH_LIMIT, 100.0, 0.0)])
    planned = []
    for gpu in gpus:
        placements = [_placement(let.workload) for let in gpu]
        batch, share = np.array([let.batch for let in gpu], float), np.array([let.share for let in gpu])
        planned.append(_planned(kind, placements, batch, share))
    return with_predictions(SharingPlan(tuple(planned), len(planned) * kind.gpu.price_per_hour), [kind], model)


def violations(plan: SharingPlan) -> list[str]:
    """Return the workloads whose predicted latency exceeds half of the SLO or whose throughput is below their rate."""
    return [
        placement.workload
        for gpu in plan.gpus for placement in gpu.placements
        if placement.latency_ms > placement.slo_ms / 2 or placement.throughput < placement.rate * (1 - 1e-6)
    ]  # fmt: skip


class _Let(NamedTuple):
    """A workload with its share of a GPU under gpu-lets."""

    workload: Workload
    batch: int
    share: float
    cache_percent: float


def _fit_let(
    kind: GpuType, model: InterferenceModel, workload: Workload, free: float, neighbour: _Let | None
) -> _Let | None:
    """Return the share that meets the SLO: the rest of the GPU, on an empty GPU the smallest efficient one."""
    coefficients = kind.models[workload.model]
    shares = np.array([*GPU_LETS_SHARES, 100.0]) if neighbour is None else np.array([free])
    shares = shares[shares >= EFFICIENT_SHARES.get(workload.model, 50.0)]
    batch = min(appropriate_batch(kind.gpu, coefficients, workload.rate, workload.slo_ms), BATCH_LIMIT)
    latency, throughput = _alone(kind, model, workload, batch, shares)
    active = latency - batch * (coefficients.load_bytes + coefficients.feedback_bytes) / kind.gpu.pcie_bytes_per_ms
    cache = coefficients.alpha_cacheutil * MS_PER_S * batch / active + coefficients.beta_cacheutil
    own, other, constant = SLOWDOWN
    slowdown = own * cache + other * neighbour.cache_percent + constant if neighbour else 0.0
    in_time = (latency * (1 + slowdown) <= workload.slo_ms / 2) & (throughput >= workload.rate * (1 - 1e-6))
    for place in np.flatnonzero(in_time):
        return _Let(workload, batch, float(shares[place]), float(cache[place]))
    return None


def _alone(
    kind: GpuType, model: InterferenceModel, workload: Workload, batch: int, shares: Array
) -> tuple[Array, Array]:
    """Return latency in ms and requests per second of a workload alone, per share."""
    stacked = stack_coefficients([kind.models[workload.model]])[:, :, None]
    predicted = predict_shares(model, kind.gpu, stacked, np.full((len(shares), 1), float(batch)), shares[:, None])
    return predicted.latency_ms[:, 0], predicted.throughput[:, 0]


def _measure(
    kind: GpuType, model: InterferenceModel, placements: Sequence[Placement], batch: Array, share: Array
) -> tuple[Array, Array]:
    """Return latency in ms and requests per second of the workloads of one GPU."""
    coefficients = stack_coefficients([kind.models[placement.model] for placement in placements])
    effective = share * min(1.0, 100 / float(share.sum()))
    predicted = predict_shares(model, kind.gpu, coefficients, batch, effective)
    return predicted.latency_ms, predicted.throughput


def _settle_batches(
    kind: GpuType, model: InterferenceModel, placements: Sequence[Placement], batch: Array, share: Array
) -> Array:
    """Return the batch sizes after GSLICE has adjusted them by the residual latency, until they stay or five times."""
    for _ in range(GSLICE_ADJUSTMENTS):
        latency, _ = _measure(kind, model, placements, batch, share)
        adjusted = adjust_batches(placements, batch, latency)
        if (adjusted == batch).all():
            break
        batch = adjusted
    return batch


def adjust_batches(placements: Sequence[Placement], batch: Array, latency: Array) -> Array:
    """Return the batch sizes after one adjustment of GSLICE, by the residual latency."""
    limit = np.array([placement.slo_ms / 2 for placement in placements])
    spare = (limit - latency) / limit
    step = np.where((spare > 0) & (spare < GSLICE_THRESHOLD), 0.0, (limit - latency) / latency)
    return np.asarray(np.ceil(np.clip(batch * (1 + step), 1, BATCH_LIMIT)))


def adjust_shares(
    kind: GpuType, placements: Sequence[Placement], share: Array, latency: Array, throughput: Array
) -> Array:
    """Return the shares after one adjustment of GSLICE, by the residual latency and throughput."""
    limit = np.array([placement.slo_ms / 2 for placement in placements])
    rate = np.array([placement.rate for placement in placements])
    spare_latency, spare_rate = (limit - latency) / limit, (throughput - rate) / rate
    settled = [(spare > 0) & (spare < GSLICE_THRESHOLD) for spare in (spare_latency, spare_rate)]
    factor = np.maximum(np.abs(limit - latency) / latency, np.abs(throughput - rate) / throughput)
    missed = (spare_latency < 0) | (spare_rate < 0)
    step = np.where(settled[0] & settled[1], 0.0, np.where(missed, factor, -factor))
    return np.asarray(np.clip(share * (1 + step), kind.gpu.share_unit_percent, 100.0))


def _planned(kind: GpuType, placements: Sequence[Placement], batch: Array, share: Array) -> PlannedGpu:
    """Return the GPU of a plan with other batch sizes and shares."""
    changed = [
        msgspec.structs.replace(old, batch=int(rows), share_percent=float(part))
        for old, rows, part in zip(placements, batch, share, strict=True)
    ]
    return PlannedGpu(kind.gpu.name, tuple(changed))


def _placement(workload: Workload) -> Placement:
    """Return the placement of a workload that has no share yet."""
    return Placement(workload.name, workload.model, workload.rate, workload.slo_ms, 1, 0.0, 0.0, 0.0)
