"""Layouts as a search space: stages of a pipeline share devices under one deadline (InferLine over iGniter).

A layout that no change of shares, batch sizes or places makes feasible is followed by the same layout with a device
more, for a stage that gains much by it. With an SLO of 150 ms, for `video-monitoring` at 400 queries per second:

    start                          3 cpu, 2 v100          262 ms
    other batch sizes and shares   3 cpu, 2 v100          202 ms
    a device more for `persons`    3 cpu, 2 v100, 1 k80   176 ms, then changes again

The times are the shortest SLOs that the layouts would meet.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from horologe_planning.joint_planning.first_layouts import first_layouts
from horologe_planning.joint_planning.layout_moves import batch_changes, placements, transfers
from horologe_planning.joint_planning.layouts import WHOLE, Layout, PlannedDevice, StageShare, make_layout
from horologe_planning.joint_planning.share_demand import LayoutCandidate, least_candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator

FIRST_LAYOUTS = 2
"""Layouts from which the search starts for a choice of hardware, of those that `first_layouts` proposes."""
GAIN = 0.98
"""Factor on the reached SLO that a device more must bring."""
STAGES = 2
"""Additions of a hardware type: those for the two stages that gain most."""
IMPROVEMENT = 0.995
"""Factor on the reached SLO that a change must bring."""


class SharedDevices:
    """Layouts of a problem as a `SearchSpace`. A stage may have replicas on several hardware types."""

    def __init__(self, evaluator: LayoutEvaluator) -> None:
        self._evaluator = evaluator
        self.price = evaluator.price
        self.is_feasible = evaluator.is_feasible
        self.reached_slo_ns = evaluator.reached_slo_ns

    @property
    def runs(self) -> int:
        """Runs of the estimator so far."""
        return self._evaluator.problem.runs

    def starts(self) -> Iterator[Layout]:
        """Yield layouts of the fewest devices that each stage needs by itself, for each choice of hardware."""
        for candidate in sorted(least_candidates(self._evaluator), key=self._candidate_price):
            yield from best_layouts(self._evaluator, candidate)

    def improve(self, state: Layout) -> Layout:
        """Return the layout after changes that reduce the reached SLO, until it meets the objective."""
        return search_layout(self._evaluator, state, self._evaluator.problem.objective.slo_ns)

    def additions(self, state: Layout) -> list[Layout]:
        """Return the layout with a whole device more, of each hardware type, for the stages that gain most by it."""
        reached_ns, found = self.reached_slo_ns(state), list[Layout]()
        for hardware in self._evaluator.problem.hardware:
            widened = [self._add(state, hardware, stage) for stage in self._evaluator.models]
            better = [other for other in widened if self.reached_slo_ns(other) < GAIN * reached_ns]
            found += sorted(better, key=self.reached_slo_ns)[:STAGES]
        return found

    def devices(self, state: Layout) -> Hashable:
        """Return the type of each device, with its stage if the device cannot be shared."""
        kinds = []
        for device in state:
            stage = device.shares[0].stage
            shareable = self._evaluator.times.is_shareable(device.hardware, self._evaluator.models[stage])
            kinds.append((device.hardware, "" if shareable else stage))
        return tuple(sorted(kinds))

    def _candidate_price(self, candidate: LayoutCandidate) -> float:
        hardware = self._evaluator.problem.hardware
        shared = sum(count * hardware[kind].price_per_hour for kind, count in candidate.pools.items())
        return shared + self._evaluator.problem.price(candidate.dedicated)

    def _add(self, layout: Layout, hardware: str, stage: str) -> Layout:
        """Return the layout with a device for the stage, with its best batch size; without, if it has no profile."""
        profile = self._evaluator.problem.profiles[self._evaluator.models[stage]].get(hardware)
        if profile is None:
            return layout
        devices = (PlannedDevice(hardware, (StageShare(stage, WHOLE, size),)) for size in profile.batch_sizes)
        return min((make_layout((*layout, device)) for device in devices), key=self.reached_slo_ns)


def best_layouts(evaluator: LayoutEvaluator, candidate: LayoutCandidate) -> list[Layout]:
    """Return the layouts of a candidate that reach the shortest SLOs."""
    return sorted(dict.fromkeys(first_layouts(candidate)), key=evaluator.reached_slo_ns)[:FIRST_LAYOUTS]


def search_layout(evaluator: LayoutEvaluator, layout: Layout, target_ns: float, last_run: float = inf) -> Layout:
    """Return the layout after the changes that reduce the reached SLO most, until it is at most `target_ns`.

    Each step takes the best change of the first kind that brings one: batch sizes, transfers of share from large to
    small, other places. The search ends without a better change, or when the estimator has made `last_run` runs.
    """
    reached_ns = evaluator.reached_slo_ns(layout)
    while reached_ns > target_ns and evaluator.problem.runs < last_run:
        for changes in _kinds_of_changes(evaluator):
            best = min(changes(layout), key=evaluator.reached_slo_ns, default=layout)
            if evaluator.reached_slo_ns(best) < IMPROVEMENT * reached_ns:
                layout, reached_ns = best, evaluator.reached_slo_ns(best)
                break
        else:
            break
    return layout


def _kinds_of_changes(evaluator: LayoutEvaluator) -> Iterator[Callable[[Layout], Iterator[Layout]]]:
    def sizes_of(hardware: str, stage: str) -> tuple[int, ...]:
        return evaluator.problem.profiles[evaluator.models[stage]][hardware].batch_sizes

    def can_share(hardware: str, stage: str) -> bool:
        return evaluator.times.is_shareable(hardware, evaluator.models[stage])

    yield lambda layout: transfers(layout, 10.0)
    yield lambda layout: batch_changes(layout, sizes_of)
    yield lambda layout: transfers(layout, 5.0)
    yield lambda layout: placements(layout, can_share)
    yield lambda layout: transfers(layout, 2.5)
