"""Candidates of joint plans: for each stage shares of a pool or whole devices of its own, as few as it needs alone."""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from horologe_planning.joint_planning.layouts import WHOLE
from horologe_planning.joint_planning.share_demand import ShareDemand, least_share
from horologe_planning.plan import Placement
from horologe_planning.search.bounds import isolated_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator

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
