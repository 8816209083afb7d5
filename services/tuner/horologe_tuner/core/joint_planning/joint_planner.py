"""Joint planner: the cheapest devices, shares, batch sizes and placement of a pipeline that meet its SLO.

InferLine gives each replica a whole device, iGniter places single models on shares of GPUs. Here the stages of a
pipeline share devices under one deadline, and the estimator knows the time of each share beside its neighbours.

The search starts from InferLine's plan. Candidates of less cost are tried in ascending order: some devices to share and
whole devices for the other stages, at least as many as each stage needs alone. The first that can be changed into a
feasible layout is the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_tuner.core.joint_planning.candidates import candidates, stage_options
from horologe_tuner.core.joint_planning.layout_search import HOPELESS, search_layout
from horologe_tuner.core.joint_planning.placements import first_layouts

if TYPE_CHECKING:
    from horologe_tuner.core.joint_planning.candidates import Candidate
    from horologe_tuner.core.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_tuner.core.joint_planning.layouts import Layout

RUNS_LIMIT = 6000
"""Runs of the estimator for all candidates of a plan."""
POLISH_RUNS = 150
"""Runs to increase the distance of the found layout from the SLO."""


def plan_layout(evaluator: LayoutEvaluator, start: Layout, runs_limit: int = RUNS_LIMIT) -> Layout:
    """Return the cheapest feasible layout found. It never costs more than `start`, a feasible layout."""
    for candidate in candidates(evaluator, stage_options(evaluator), evaluator.price(start)):
        if evaluator.problem.runs >= runs_limit:
            break
        if (layout := search_candidate(evaluator, candidate, runs_limit)) is not None:
            return polish(evaluator, layout)
    return start


def search_candidate(evaluator: LayoutEvaluator, candidate: Candidate, runs_limit: int) -> Layout | None:
    """Return a feasible layout of the candidate's devices, None if the search finds none."""
    slo_ns = evaluator.problem.objective.slo_ns
    firsts = sorted(dict.fromkeys(first_layouts(candidate)), key=evaluator.reached_slo_ns)
    for layout in firsts[:2]:
        if evaluator.reached_slo_ns(layout) > HOPELESS * slo_ns:
            break
        changed = search_layout(evaluator, layout, slo_ns, runs_limit)
        if evaluator.is_feasible(changed):
            return changed
    return None


def polish(evaluator: LayoutEvaluator, layout: Layout) -> Layout:
    """Return the layout with more time left to the SLO, at the same cost: it serves traffic that was not seen."""
    changed = search_layout(evaluator, layout, 0.0, evaluator.problem.runs + POLISH_RUNS)
    better = evaluator.price(changed) <= evaluator.price(layout) and evaluator.is_feasible(changed)
    return changed if better else layout
