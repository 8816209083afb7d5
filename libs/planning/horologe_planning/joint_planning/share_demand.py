"""Candidates of a plan: for each stage the shares or whole devices that it needs by itself, as few as possible.

A stage is by itself if all others answer at once, and its share has no neighbours. If `detect` then needs 30% of a
V100, `persons` 25% and `vehicles` 17.5%, a candidate has one V100 for the three. `plates` has whole CPUs.
"""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from horologe_planning.joint_planning.layouts import LEAST_PERCENT, STEP_PERCENT, WHOLE
from horologe_planning.joint_planning.share_times import share_name
from horologe_planning.plan import Placement
from horologe_planning.search.bounds import frictionless, isolated_stages
from horologe_planning.search.evaluation import first_true, replace_stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.search.evaluation import Configuration

REPLICAS_WITHOUT_GAIN = 2
"""More replicas are tried until this many numbers in a row bring no smaller share."""
REPLICAS_LIMIT = 64


class ShareDemand(NamedTuple):
    """Replicas of a stage on equal shares of a hardware type. `percent`: of one replica."""

    stage: str
    hardware: str
    percent: float
    replicas: int
    batch: int

    @property
    def total_percent(self) -> float:
        """Sum of the shares."""
        return self.percent * self.replicas


StageOption = ShareDemand | Placement


class LayoutCandidate(NamedTuple):
    """Numbers of shared devices by type, and for each stage its demand of shares, or its own whole devices."""

    pools: dict[str, int]
    stages: tuple[StageOption, ...]

    @property
    def demands(self) -> list[ShareDemand]:
        """The stages on shared devices."""
        return [stage for stage in self.stages if isinstance(stage, ShareDemand)]

    @property
    def dedicated(self) -> list[Placement]:
        """The stages on whole devices."""
        return [stage for stage in self.stages if isinstance(stage, Placement)]


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


def least_candidates(evaluator: LayoutEvaluator) -> list[LayoutCandidate]:
    """Return the candidate with the fewest devices for each choice of hardware."""
    return [_candidate(stages) for stages in product(*stage_options(evaluator))]


def _candidate(stages: Sequence[StageOption]) -> LayoutCandidate:
    percent: dict[str, float] = {}
    for stage in stages:
        if isinstance(stage, ShareDemand):
            percent[stage.hardware] = percent.get(stage.hardware, 0.0) + stage.total_percent
    pools = {hardware: ceil(total / WHOLE - 1e-9) for hardware, total in percent.items()}
    return LayoutCandidate(pools, tuple(stages))


def least_share(evaluator: LayoutEvaluator, stage: str, hardware: str) -> ShareDemand | None:
    """Return the equal shares with the least sum that meet the objective. None if not even whole devices do.

    Several small shares may need less than a large one: only a part of a batch's time shrinks with the share.
    """
    ideal, least, without_gain = frictionless(evaluator.problem), None, 0
    for replicas in range(1, REPLICAS_LIMIT + 1):
        if least and without_gain == REPLICAS_WITHOUT_GAIN:
            break
        better = _least_of(evaluator, ideal, ShareDemand(stage, hardware, WHOLE, replicas, 0), least)
        without_gain = 0 if better else without_gain + 1
        least = better or least
    return least


def _least_of(
    evaluator: LayoutEvaluator, ideal: Configuration, tried: ShareDemand, least: ShareDemand | None
) -> ShareDemand | None:
    """Return the shares of so many replicas whose sum is less than that of `least`, over all batch sizes, if any."""
    place, model = list(evaluator.models).index(tried.stage), evaluator.models[tried.stage]
    known = evaluator.problem.profiles[model]
    most_percent = least.total_percent / tried.replicas - STEP_PERCENT if least else WHOLE
    found = None
    for batch in reversed(known[tried.hardware].batch_sizes):

        def is_enough(steps: int, batch: int = batch) -> bool:
            percent = steps * STEP_PERCENT
            name = tried.hardware if percent == WHOLE else share_name(tried.hardware, percent, ())
            if name not in known:
                known[name] = evaluator.times.profile(tried.hardware, model, percent, ())
            fields = {"hardware": name, "max_batch": batch, "replicas": tried.replicas}
            return evaluator.problem.is_feasible(replace_stage(ideal, place, **fields))

        most_steps = int(min(most_percent, WHOLE) / STEP_PERCENT + 1e-9)
        if steps := first_true(is_enough, round(LEAST_PERCENT / STEP_PERCENT), most_steps):
            found = tried._replace(percent=steps * STEP_PERCENT, batch=batch)
            most_percent = found.percent - STEP_PERCENT
    return found
