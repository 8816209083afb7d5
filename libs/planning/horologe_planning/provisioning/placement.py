"""Greedy placement of workloads on GPUs of one or several types (iGniter Algorithm 1 and variants).

`vgg19` needs the largest share alone, so it is placed first, on a new GPU. `resnet50` and `alexnet` follow beside it.
`resnet50` at 3,000 requests/s within 40 ms is split before, because a V100 serves 1,433: into 1,433, 1,433 and 134.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_planning.provisioning.latency_parts import explain_infeasible
from horologe_planning.provisioning.share_tables import NO_WORKLOAD, largest_rate, least_bound
from horologe_planning.provisioning.workloads import ProvisioningError, UnattainableSlo, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.interference.prediction import InterferenceModel
    from horologe_planning.provisioning.fleet import FittingGpus, Fleet
    from horologe_planning.provisioning.workloads import GpuType


class GpuPlace(NamedTuple):
    """GPU of a workload: place of its fleet, place of the GPU in the fleet."""

    fleet: int
    gpu: int


def least_interference(candidates: FittingGpus, fleet: Fleet) -> int:
    """Return the candidate with the least increase of all shares, the first of several (Algorithm 1)."""
    return int(np.argmin(candidates.added))


def first_fit(candidates: FittingGpus, fleet: Fleet) -> int:
    """Return the first candidate (FFD++ of iGniter Fig. 19)."""
    return 0


def fullest(candidates: FittingGpus, fleet: Fleet) -> int:
    """Return the candidate that is left with the smallest free share, the one with least interference of several."""
    left = fleet.tables.kind.whole - fleet.used[candidates.gpus] - candidates.added
    return int(np.lexsort((candidates.added, left))[0])


RULES: dict[str, Callable[[FittingGpus, Fleet], int]] = {
    "least-interference": least_interference,
    "fullest": fullest,
    "first-fit": first_fit,
}


def place_workload(fleets: Sequence[Fleet], row: int, rule: Callable[[FittingGpus, Fleet], int]) -> GpuPlace:
    """Put a workload on an open GPU where it fits, else on a new one. It must fit on one of the types."""
    return place_open(fleets, row, rule) or place_new(fleets, row)


def place_open(
    fleets: Sequence[Fleet], row: int, rule: Callable[[FittingGpus, Fleet], int], without: GpuPlace | None = None
) -> GpuPlace | None:
    """Put a workload on the open GPU that the rule chooses, of the type on which the added share costs least.

    Return None if it fits on no GPU but `without`.
    """
    best: tuple[float, int, FittingGpus, int] | None = None
    for place, fleet in enumerate(fleets):
        left_out = without.gpu if without is not None and without.fleet == place else NO_WORKLOAD
        candidates = fleet.candidates(row, left_out)
        if len(candidates.gpus):
            choice = rule(candidates, fleet)
            cost = float(candidates.added[choice]) / fleet.tables.kind.whole * fleet.price
            if best is None or cost < best[0]:
                best = (cost, place, candidates, choice)
    if best is None:
        return None
    _, place, candidates, choice = best
    gpu = int(candidates.gpus[choice])
    fleets[place].set_gpu(gpu, candidates.members[choice], candidates.units[choice])
    return GpuPlace(place, gpu)


def place_new(fleets: Sequence[Fleet], row: int) -> GpuPlace:
    """Put a workload on a new GPU of the type on which its least share costs least."""
    place = int(np.argmin([share_cost(fleet, row) for fleet in fleets]))
    return GpuPlace(place, fleets[place].open_gpu(row))


def share_cost(fleet: Fleet, row: int) -> float:
    """Return the dollars per hour of the least share, infinite if a whole GPU does not suffice."""
    least, whole = int(fleet.tables.least[row]), fleet.tables.kind.whole
    return least / whole * fleet.price if least <= whole else float("inf")


def decreasing_order(fleets: Sequence[Fleet]) -> list[int]:
    """Return the workloads in descending order of r_lower, by the cost of their least share among several types."""
    costs = np.min([[share_cost(fleet, row) for row in range(len(fleet.tables.workloads))] for fleet in fleets], axis=0)
    return [int(row) for row in np.argsort(-costs, kind="stable")]


def split_workloads(
    workloads: Sequence[Workload],
    kinds: Sequence[GpuType],
    model: InterferenceModel,
    margin: float,
    *,
    split_cheapest: bool = False,
) -> list[Workload]:
    """Return the workloads with each one that exceeds every GPU type split into parts that fit.

    All parts but the last fill a GPU of the type on which the parts cost least. With `split_cheapest`, a workload that
    exceeds this type is split even if it fits on another. Parts keep the name of the workload. Raises UnattainableSlo
    if not even the smallest batch meets the SLO; the message has the parts of the latency.
    """
    parts: list[Workload] = []
    for workload in workloads:
        rates = [largest_rate(kind, model, workload, margin)[0] for kind in kinds]
        if not any(rates):
            reasons = [
                explain_infeasible(kind, model, workload, margin) for kind in kinds if workload.model in kind.models
            ]
            raise UnattainableSlo(f"workload {workload.name!r}: slo_ms: got {workload.slo_ms:g}; {'; '.join(reasons)}")
        if workload.rate <= min(rates) or (workload.rate <= max(rates) and not split_cheapest):
            parts.append(workload)
        else:
            costs = [_cost_alone(kind, workload, rate, margin) for kind, rate in zip(kinds, rates, strict=True)]
            parts += _parts(workload, rates[int(np.argmin(costs))])
    return parts


def _cost_alone(kind: GpuType, workload: Workload, largest: float, margin: float) -> float:
    """Return the dollars per hour of the shares that a workload needs alone, infinite if it cannot run on the type."""
    if not largest:
        return float("inf")
    model, price = kind.models[workload.model], kind.gpu.price_per_hour
    full, rest = divmod(workload.rate, largest)
    last = msgspec.structs.replace(workload, rate=max(rest, 1e-6 * largest))
    least = least_bound(kind.gpu, model, last, margin * model.relative_error).units
    return price * (full + min(least / kind.whole, 1.0))


SPLIT_LIMIT = 10_000
"""GPUs of one workload. Bounds the work for an absurd rate."""


def _parts(workload: Workload, largest: float) -> list[Workload]:
    if workload.rate <= largest:
        return [workload]
    full = int(workload.rate / largest)
    if full >= SPLIT_LIMIT:
        wanted = f"at most {SPLIT_LIMIT * largest:g}, {SPLIT_LIMIT} GPUs"
        raise ProvisioningError(f"workload {workload.name!r}: rate: got {workload.rate:g}, wanted {wanted}")
    rest = workload.rate - full * largest
    rates = [largest] * full + ([rest] if rest > 1e-6 * largest else [])
    return [msgspec.structs.replace(workload, rate=rate) for rate in rates]
