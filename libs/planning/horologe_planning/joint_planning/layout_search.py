"""Local search: changes a layout until it meets the objective, without changing its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.joint_planning.layout_moves import batch_changes, placements, transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.joint_planning.layouts import Layout

GAIN = 0.995
"""Factor on the reached SLO that a change must bring."""


def search_layout(evaluator: LayoutEvaluator, layout: Layout, target_ns: float, runs_limit: int) -> Layout:
    """Return the layout after the changes that reduce the reached SLO most, until it is at most `target_ns`.

    Each step takes the best change of the first kind that brings one: batch sizes, transfers of share from large to
    small, other places. The search ends without a better change, or when the estimator has made `runs_limit` runs.
    """
    reached_ns = evaluator.reached_slo_ns(layout)
    while reached_ns > target_ns and evaluator.problem.runs < runs_limit:
        for changes in _kinds_of_changes(evaluator):
            best = min(changes(layout), key=evaluator.reached_slo_ns, default=layout)
            if evaluator.reached_slo_ns(best) < GAIN * reached_ns:
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
