"""iGniter's way to provision a pipeline: each stage is a workload of its own, with a part of the pipeline's SLO.

iGniter knows no pipelines, so the split of the SLO is chosen for it, among many. It sizes shares for a mean rate, so
the rate is raised by several factors as well. What is left of a GPU is given to its shares. The cheapest result that
meets the planner's objective in the estimator counts.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain, product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_planning.joint_planning.layouts import (
    Layout,
    PlannedDevice,
    StageShare,
    fill_device,
    make_layout,
)
from horologe_planning.plan import WHOLE_PERCENT
from horologe_planning.provisioning.device_shares import shares_by_device
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import GpuType, ProvisioningError, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.interference.v100 import GpuCatalogue
    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.provisioning.device_shares import PlacedShare

WEIGHTS = (1.0, 1.75, 3.0, 5.0)
"""Parts of the SLO that a stage may get, relative to the others."""
RATE_FACTORS = ((1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0), (4.0, 6.0, 9.0))
"""Rate that shares are sized for, over the mean rate: bursts need more than the mean. The second group is tried if no
factor of the first leads to a feasible layout."""


class Freedom(NamedTuple):
    """Freedom that iGniter's way has beyond the paper."""

    stretches: tuple[float, ...] = (1.0,)
    """Sums of the parts on the longest path over the SLO. Above 1, the deadlines of single workloads overlap."""
    any_hardware: bool = False
    """True if stages that can share a GPU may have whole devices of another type."""


PAPER = Freedom()


class StageGoal(NamedTuple):
    """A stage as a workload: calls per second and SLO, and its hardware type."""

    stage: str
    model: str
    rate: float
    slo_ms: float
    hardware: str


def provision_stages(
    evaluator: LayoutEvaluator, catalogue: GpuCatalogue, hardware: str, freedom: Freedom = PAPER
) -> Layout | None:
    """Return the cheapest layout of single workloads that meets the objective; None if none of those tried does."""
    price = evaluator.problem.hardware[hardware].price_per_hour
    gpu = msgspec.structs.replace(catalogue.gpu, name=hardware, price_per_hour=price)
    shared_devices = cache(partial(_shared_devices, GpuType(gpu, catalogue.models)))
    for factors in RATE_FACTORS:
        layouts: set[Layout] = set()
        for goals in stage_goals(evaluator, hardware, factors, freedom):
            whole = [_whole_devices(evaluator, goal) for goal in goals if goal.hardware != hardware]
            shared = shared_devices(tuple(goal for goal in goals if goal.hardware == hardware)) if all(whole) else None
            if shared is not None:
                layouts.add(make_layout((*shared, *chain.from_iterable(whole))))
        for layout in sorted(layouts, key=lambda layout: (evaluator.price(layout), layout)):
            if evaluator.is_feasible(layout):
                return layout
    return None


def stage_goals(
    evaluator: LayoutEvaluator, hardware: str, factors: Sequence[float], freedom: Freedom
) -> Iterator[tuple[StageGoal, ...]]:
    """Yield the stages with each split of the SLO, rate factor and choice of hardware."""
    problem = evaluator.problem
    structure, rate = problem.structure, problem.workload.rate
    kinds = [_kinds(evaluator, stage.model, hardware, freedom) for stage in structure.stages]
    splits = list(dict.fromkeys(_split(structure, w) for w in product(WEIGHTS, repeat=len(structure.stages))))
    for chosen, split, stretch, factor in product(product(*kinds), splits, freedom.stretches, factors):
        yield tuple(
            StageGoal(stage.name, stage.model, rate * structure.scale_factor(stage.name) * factor, part * stretch, kind)
            for stage, kind, part in zip(structure.stages, chosen, split, strict=True)
        )


def _kinds(evaluator: LayoutEvaluator, model: str, hardware: str, freedom: Freedom) -> list[str]:
    """Return the hardware types for a model: shares of `hardware` where it can share, else whole devices."""
    if evaluator.times.is_shareable(hardware, model) and not freedom.any_hardware:
        return [hardware]
    types = [kind for kind in evaluator.problem.profiles[model] if kind in evaluator.problem.hardware]
    return [kind for kind in types if kind != hardware or evaluator.times.is_shareable(kind, model)]


def _split(structure: PipelineStructure, weights: Sequence[float]) -> tuple[float, ...]:
    """Return the part of each stage in milliseconds: the parts on the longest path add up to the SLO."""
    longest: dict[str, float] = {}
    for stage, weight in zip(structure.stages, weights, strict=True):
        longest[stage.name] = weight + max((longest[parent] for parent in stage.parents), default=0.0)
    total = max(longest.values())
    return tuple(round(structure.slo_ns / 1e6 * weight / total, 3) for weight in weights)


def _shared_devices(kind: GpuType, goals: tuple[StageGoal, ...]) -> list[PlannedDevice] | None:
    """Return iGniter's plan, with the unused part of each GPU given to its shares. None if a stage fits on no GPU."""
    try:
        plan = provision([Workload(goal.stage, goal.model, goal.rate, goal.slo_ms) for goal in goals], [kind])
    except ProvisioningError:
        return None
    return [_filled(shares) for shares in shares_by_device(plan.plans).values()]


def _filled(shares: Sequence[PlacedShare]) -> PlannedDevice:
    placed = [share.placement for share in shares]
    percent = fill_device({place: one.percent for place, one in enumerate(placed)})
    filled = (StageShare(one.stage, percent[at], one.max_batch) for at, one in enumerate(placed))
    return PlannedDevice(placed[0].hardware, tuple(filled))


def _whole_devices(evaluator: LayoutEvaluator, goal: StageGoal) -> list[PlannedDevice]:
    """Return whole devices by iGniter's rules: a batch takes at most half of the SLO, and their number serves the rate.

    Empty if no batch size is fast enough.
    """
    profile = evaluator.problem.profiles[goal.model][goal.hardware]
    fast = [size for size in profile.batch_sizes if profile.mean_latency_ns(size) <= goal.slo_ms * 1e6 / 2]
    if not fast:
        return []
    best = max(fast, key=profile.throughput)
    count = ceil(goal.rate / profile.throughput(best) - 1e-9)
    return [PlannedDevice(goal.hardware, (StageShare(goal.stage, WHOLE_PERCENT, best),))] * max(count, 1)
