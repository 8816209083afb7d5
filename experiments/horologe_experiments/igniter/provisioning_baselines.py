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
from horologe_experiments.igniter.paper_provisioning import (
    PAPER_OPTIONS,
    appropriate_batch,
    paper_fleets,
    provision_as_paper,
    with_predictions,
)
from horologe_planning.plan import Placement
from horologe_planning.provisioning.device_shares import (
    PlacedShare,
    plan_workloads,
    shares_by_device,
    with_shares,
)
from horologe_planning.provisioning.placement import decreasing_order
from horologe_planning.provisioning.provisioner import empty_fleets, place_all, plan_of
from horologe_planning.provisioning.workloads import BATCH_LIMIT
from horologe_planning.report import SharedPlans, SharingReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.provisioning.workloads import GpuType, Workload

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


def plan_ffd(workloads: Sequence[Workload], kind: GpuType) -> SharedPlans:
    """Return FFD+: the least share alone (r_lower), on the first GPU with so much left."""
    (fleet,) = paper_fleets(workloads, kind)
    bins: list[list[int]] = []
    least = fleet.tables.least
    for row in decreasing_order([fleet]):
        fitting = (rows for rows in bins if sum(int(least[other]) for other in rows) + least[row] <= kind.whole)
        rows = next(fitting, None)
        if rows is None:
            bins.append(rows := [])
        rows.append(row)
    for rows in bins:
        fleet.set_gpu(fleet.open_gpu(rows[0]), rows, least[rows])
    return plan_of([fleet])


def plan_ffd_with_allocation(workloads: Sequence[Workload], kind: GpuType) -> SharedPlans:
    """Return FFD++: the first GPU on which Algorithm 2 finds shares (iGniter Fig. 19)."""
    return plan_of(place_all(paper_fleets(workloads, kind), "first-fit"))


def plan_gslice(workloads: Sequence[Workload], kind: GpuType, model: InterferenceModel) -> SharedPlans:
    """Return GSLICE+: iGniter's placement, with share and batch of each workload adjusted by its own measurements.

    Before each adjustment of the shares, and after the last one, the batch sizes are adjusted until they settle.
    `model` stands for the measurements. Where the shares exceed 100%, each is scaled down in proportion: the SMs are
    oversubscribed.
    """
    placed = provision_as_paper(workloads, kind)
    changed: list[PlacedShare] = []
    for present in shares_by_device(placed.plans).values():
        share, batch = np.full(len(present), GSLICE_SHARE), np.ones(len(present))
        for _ in range(GSLICE_ADJUSTMENTS):
            batch = _settle_batches(kind, model, present, batch, share)
            measured = _measure(kind, model, present, batch, share)
            share = adjust_shares(kind, present, share, *measured)
        batch = _settle_batches(kind, model, present, batch, share)
        changed += _resized(present, batch, share)
    plans = with_predictions(with_shares(placed.plans, changed), [kind], model)
    return SharedPlans(plans, SharingReport(placed.report.cost_per_hour))


def plan_gpu_lets(workloads: Sequence[Workload], kind: GpuType, model: InterferenceModel) -> SharedPlans:
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
    placed = [
        (let.workload, _placement(let, f"{kind.gpu.name}-{number}"))
        for number, gpu in enumerate(gpus, start=1) for let in gpu
    ]  # fmt: skip
    plans = with_predictions(plan_workloads(placed), [kind], model)
    return SharedPlans(plans, SharingReport(len(gpus) * kind.gpu.price_per_hour))


def judge(plan: SharedPlans, kinds: Sequence[GpuType], model: InterferenceModel) -> SharedPlans:
    """Return the plans with the latencies and throughputs that another model or other coefficients predict."""
    return plan._replace(plans=with_predictions(plan.plans, kinds, model))


def violations(plan: SharedPlans) -> list[str]:
    """Return the workloads whose predicted latency exceeds half of the SLO or whose throughput is below their rate."""
    return [
        share.workload
        for shares in shares_by_device(plan.plans).values() for share in shares if is_violated(share)
    ]  # fmt: skip


def is_violated(share: PlacedShare) -> bool:
    """Return whether a share misses the limit of its batches, beyond rounding to nanoseconds, or its rate."""
    placement = share.placement
    return placement.latency_ns > share.plan.slo_ns / 2 + 1 or placement.throughput < share.rate * (1 - 1e-6)


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
    kind: GpuType, model: InterferenceModel, shares: Sequence[PlacedShare], batch: Array, share: Array
) -> tuple[Array, Array]:
    """Return latency in ms and requests per second of the workloads of one GPU."""
    coefficients = stack_coefficients([kind.models[one.placement.coefficients] for one in shares])
    effective = share * min(1.0, 100 / float(share.sum()))
    predicted = predict_shares(model, kind.gpu, coefficients, batch, effective)
    return predicted.latency_ms, predicted.throughput


def _settle_batches(
    kind: GpuType, model: InterferenceModel, shares: Sequence[PlacedShare], batch: Array, share: Array
) -> Array:
    """Return the batch sizes after GSLICE has adjusted them by the residual latency, until they stay or five times."""
    for _ in range(GSLICE_ADJUSTMENTS):
        latency, _ = _measure(kind, model, shares, batch, share)
        adjusted = adjust_batches(shares, batch, latency)
        if (adjusted == batch).all():
            break
        batch = adjusted
    return batch


def adjust_batches(shares: Sequence[PlacedShare], batch: Array, latency: Array) -> Array:
    """Return the batch sizes after one adjustment of GSLICE, by the residual latency."""
    limit = np.array([one.limit_ms for one in shares])
    spare = (limit - latency) / limit
    step = np.where((spare > 0) & (spare < GSLICE_THRESHOLD), 0.0, (limit - latency) / latency)
    return np.asarray(np.ceil(np.clip(batch * (1 + step), 1, BATCH_LIMIT)))


def adjust_shares(
    kind: GpuType, shares: Sequence[PlacedShare], share: Array, latency: Array, throughput: Array
) -> Array:
    """Return the shares after one adjustment of GSLICE, by the residual latency and throughput."""
    limit = np.array([one.limit_ms for one in shares])
    rate = np.array([one.rate for one in shares])
    spare_latency, spare_rate = (limit - latency) / limit, (throughput - rate) / rate
    settled = [(spare > 0) & (spare < GSLICE_THRESHOLD) for spare in (spare_latency, spare_rate)]
    factor = np.maximum(np.abs(limit - latency) / latency, np.abs(throughput - rate) / throughput)
    missed = (spare_latency < 0) | (spare_rate < 0)
    step = np.where(settled[0] & settled[1], 0.0, np.where(missed, factor, -factor))
    return np.asarray(np.clip(share * (1 + step), kind.gpu.share_unit_percent, 100.0))


def _resized(shares: Sequence[PlacedShare], batch: Array, percent: Array) -> list[PlacedShare]:
    """Return shares with other batch sizes and sizes."""
    return [
        old._replace(placement=msgspec.structs.replace(old.placement, max_batch=int(rows), percent=float(part)))
        for old, rows, part in zip(shares, batch, percent, strict=True)
    ]


def _placement(let: _Let, device: str) -> Placement:
    """Return the placement of a workload under gpu-lets."""
    workload = let.workload
    return Placement(
        workload.name, workload.name, device.rpartition("-")[0], let.batch, percent=let.share, device=device,
        slo_ns=workload.slo_ns, coefficients=workload.model,
    )  # fmt: skip
