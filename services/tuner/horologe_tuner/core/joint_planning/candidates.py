"""Candidates of joint plans in the order of their cost: devices to share, and whole devices of single stages."""

from __future__ import annotations

import heapq
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_tuner.core.joint_planning.layouts import WHOLE
from horologe_tuner.core.joint_planning.share_demand import ShareDemand, least_share
from horologe_tuner.core.planning.bounds import isolated_stages
from horologe_tuner.core.planning.minimization import CENT
from horologe_tuner.core.plans import StageConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_tuner.core.joint_planning.layout_evaluation import LayoutEvaluator

EXTRA_REPLICAS = 3
"""Replicas of a stage on whole devices beyond its isolated bound. All else being ideal, the bound suffices."""

StageOption = ShareDemand | StageConfiguration


class Candidate(NamedTuple):
    """Numbers of shared devices by type, and for each stage its demand of shares, or its own whole devices."""

    cost: float
    pools: dict[str, int]
    stages: tuple[StageOption, ...]

    @property
    def demands(self) -> list[ShareDemand]:
        """The stages on shared devices."""
        return [stage for stage in self.stages if isinstance(stage, ShareDemand)]

    @property
    def dedicated(self) -> list[StageConfiguration]:
        """The stages on whole devices."""
        return [stage for stage in self.stages if isinstance(stage, StageConfiguration)]


def stage_options(evaluator: LayoutEvaluator) -> list[list[StageOption]]:
    """Return for each stage what it needs at least on each hardware type: shares where it can share, else devices."""
    options: list[list[StageOption]] = []
    for stage, whole in zip(evaluator.problem.structure.stages, isolated_stages(evaluator.problem), strict=True):
        found: list[StageOption] = []
        for hardware, least in whole.items():
            if not evaluator.times.is_shareable(hardware, stage.model):
                found.append(least)
            elif (demand := least_share(evaluator, stage.name, hardware)) is not None:
                found.append(demand)
        options.append(found)
    return options


def candidates(
    evaluator: LayoutEvaluator, options: Sequence[Sequence[StageOption]], cost_limit: float
) -> Iterator[Candidate]:
    """Yield the candidates that cost less than the limit, cheapest first, and of equal ones that with more room."""
    heap: list[tuple[float, float, tuple[int, ...], int]] = []
    assignments = list(product(*options))
    for number, stages in enumerate(assignments):
        _push(evaluator, heap, cost_limit, stages, number, (0,) * _width(stages))
    seen = {(number, added) for _, _, added, number in heap}
    while heap:
        _, _, added, number = heapq.heappop(heap)
        yield _candidate(evaluator, assignments[number], added)
        for place, count in enumerate(added):
            more = (*added[:place], count + 1, *added[place + 1 :])
            if count < EXTRA_REPLICAS and (number, more) not in seen:
                seen.add((number, more))
                _push(evaluator, heap, cost_limit, assignments[number], number, more)


def _push(
    evaluator: LayoutEvaluator, heap: list[tuple[float, float, tuple[int, ...], int]], cost_limit: float,
    stages: tuple[StageOption, ...], number: int, added: tuple[int, ...],
) -> None:  # fmt: skip
    candidate = _candidate(evaluator, stages, added)
    if candidate.cost < cost_limit - CENT:
        room = sum(candidate.pools.values()) * WHOLE - sum(demand.total_percent for demand in candidate.demands)
        heapq.heappush(heap, (round(candidate.cost, 9), -room, added, number))


def _width(stages: Sequence[StageOption]) -> int:
    """Return the numbers that a candidate may raise: of each pool, and of each stage on whole devices."""
    pools = {stage.hardware for stage in stages if isinstance(stage, ShareDemand)}
    return len(pools) + sum(isinstance(stage, StageConfiguration) for stage in stages)


def _candidate(evaluator: LayoutEvaluator, stages: Sequence[StageOption], added: Sequence[int]) -> Candidate:
    """Return the candidate with so many devices more than the stages need at least."""
    extra = iter(added)
    demands: dict[str, float] = {}
    for stage in stages:
        if isinstance(stage, ShareDemand):
            demands[stage.hardware] = demands.get(stage.hardware, 0.0) + stage.total_percent
    pools = {hardware: ceil(percent / WHOLE - 1e-9) + next(extra) for hardware, percent in demands.items()}
    chosen = tuple(stage if isinstance(stage, ShareDemand) else _widen(stage, next(extra)) for stage in stages)
    hardware_types = evaluator.problem.hardware
    cost = sum(count * hardware_types[hardware].price_per_hour for hardware, count in pools.items())
    cost += evaluator.problem.price(stage for stage in chosen if isinstance(stage, StageConfiguration))
    return Candidate(cost, pools, chosen)


def _widen(stage: StageConfiguration, extra: int) -> StageConfiguration:
    return msgspec.structs.replace(stage, replicas=stage.replicas + extra)
