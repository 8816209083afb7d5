"""Joint planner: the cheapest devices, shares, batch sizes and placement of a pipeline that meet its SLO.

InferLine gives each replica a whole device, iGniter places single models on shares of GPUs. Here the stages of a
pipeline share devices under one deadline, and the estimator knows the time of each share beside its neighbours.

The search is best-first by cost. It starts from the fewest devices that each stage needs alone, for each choice of
hardware. A layout that no change of shares, batch sizes or places makes feasible is followed by the same layout with a
device more. The first feasible layout is the plan, if it costs less than the given one, for example InferLine's.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING

from horologe_planning.joint_planning.additions import additions
from horologe_planning.joint_planning.candidates import least_candidates
from horologe_planning.joint_planning.layout_search import search_layout
from horologe_planning.joint_planning.placements import first_layouts
from horologe_planning.search.minimization import CENT

if TYPE_CHECKING:
    from horologe_planning.joint_planning.candidates import LayoutCandidate
    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.joint_planning.layouts import Layout

RUNS_LIMIT = 8000
"""Runs of the estimator for a plan."""
SHARED_RUNS = 400
"""Runs for each number of devices on which all stages are, after the limit."""
POLISH_RUNS = 150
"""Runs to increase the distance of the found layout from the SLO."""
FIRST_LAYOUTS = 2
"""Layouts from which the search starts for a choice of hardware, of those that `first_layouts` proposes."""


def plan_layout(
    evaluator: LayoutEvaluator, start: Layout, runs_limit: int = RUNS_LIMIT, cost_limit: float = inf
) -> Layout:
    """Return the cheapest feasible layout found that costs less than `cost_limit`; else `start`, a feasible layout.

    It never costs more than `start`. `cost_limit`: dollars per hour of another plan that is known already.
    """
    cost_limit = min(cost_limit, evaluator.price(start))
    frontier = Frontier(evaluator, cost_limit)
    seen: set[tuple[tuple[str, str], ...]] = set()
    least = least_candidates(evaluator) if runs_limit else []
    for candidate in least:
        firsts = [layout for layout in dict.fromkeys(first_layouts(candidate)) if frontier.is_below_limit(layout)]
        for layout in sorted(firsts, key=evaluator.reached_slo_ns)[:FIRST_LAYOUTS]:
            frontier.push(layout)
    while frontier and evaluator.problem.runs < runs_limit:
        layout = search_layout(evaluator, frontier.pop(), evaluator.problem.objective.slo_ns, runs_limit)
        if evaluator.is_feasible(layout):
            return polish(evaluator, layout)
        for wider in additions(evaluator, layout):
            if (devices := own_devices(evaluator, wider)) not in seen:
                seen.add(devices)
                frontier.push(wider)
    return share_everything(evaluator, least, start, cost_limit) if frontier else start


def share_everything(
    evaluator: LayoutEvaluator, least: list[LayoutCandidate], start: Layout, cost_limit: float
) -> Layout:
    """Return a feasible layout with the fewest shared devices, on which all stages are that can share; else `start`.

    It is for searches that end at their limit of runs. They have not come to the dearer layouts.
    """
    candidate = max(least, key=lambda candidate: len(candidate.demands))
    while candidate.pools:
        for layout in sorted(dict.fromkeys(first_layouts(candidate)), key=evaluator.reached_slo_ns)[:FIRST_LAYOUTS]:
            if evaluator.price(layout) >= cost_limit - CENT:
                return start
            runs_limit = evaluator.problem.runs + SHARED_RUNS
            changed = search_layout(evaluator, layout, evaluator.problem.objective.slo_ns, runs_limit)
            if evaluator.is_feasible(changed):
                return polish(evaluator, changed)
        candidate = candidate._replace(pools={hardware: count + 1 for hardware, count in candidate.pools.items()})
    return start


class Frontier:
    """Layouts to search next, the cheapest first, and of equal ones that with the shortest reached SLO."""

    def __init__(self, evaluator: LayoutEvaluator, cost_limit: float) -> None:
        """`cost_limit`: dollars per hour that a layout must be below."""
        self._evaluator, self._cost_limit = evaluator, cost_limit
        self._heap: list[tuple[float, float, Layout]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def is_below_limit(self, layout: Layout) -> bool:
        """Return whether a layout costs little enough."""
        return self._evaluator.price(layout) < self._cost_limit - CENT

    def push(self, layout: Layout) -> None:
        """Add a layout, unless it costs too much."""
        if self.is_below_limit(layout):
            price = round(self._evaluator.price(layout), 9)
            heapq.heappush(self._heap, (price, self._evaluator.reached_slo_ns(layout), layout))

    def pop(self) -> Layout:
        """Remove and return the next layout."""
        return heapq.heappop(self._heap)[2]


def own_devices(evaluator: LayoutEvaluator, layout: Layout) -> tuple[tuple[str, str], ...]:
    """Return the type of each device, with its stage if the device cannot be shared: what a search does not change."""
    kinds = []
    for device in layout:
        stage = device.shares[0].stage
        shareable = evaluator.times.is_shareable(device.hardware, evaluator.models[stage])
        kinds.append((device.hardware, "" if shareable else stage))
    return tuple(sorted(kinds))


def polish(evaluator: LayoutEvaluator, layout: Layout) -> Layout:
    """Return the layout with more time left to the SLO, at the same cost: it serves traffic that was not seen."""
    changed = search_layout(evaluator, layout, 0.0, evaluator.problem.runs + POLISH_RUNS)
    better = evaluator.price(changed) <= evaluator.price(layout) and evaluator.is_feasible(changed)
    return changed if better else layout
