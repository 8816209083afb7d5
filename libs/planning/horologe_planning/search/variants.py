"""Plans of pipelines whose stages have variants: models of different accuracy and cost for the same task."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_planning.report import Infeasible
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.pipeline_planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.report import ReportedPlan

COMBINATIONS_LIMIT = 256


class VariantPlan(NamedTuple):
    """A plan with the models that it chose, one per stage, and the accuracy of the pipeline."""

    models: tuple[str, ...]
    accuracy: float
    planned: ReportedPlan


class Combination(NamedTuple):
    """A model for each stage, and the accuracy of the pipeline with them."""

    models: tuple[str, ...]
    accuracy: float


def pipeline_accuracy(structure: PipelineStructure, models: tuple[str, ...], accuracy: Mapping[str, float]) -> float:
    """Return the probability that all stages that a query visits are right, if their errors are independent.

    `accuracy`: of each model, 0 to 1. A model without an entry, such as a transformation, is always right.
    """
    visits = [structure.visit_probability(stage.name) for stage in structure.stages]
    return prod(1 - visit * (1 - accuracy.get(model, 1.0)) for visit, model in zip(visits, models, strict=True))


def combinations(structure: PipelineStructure, accuracy: Mapping[str, float]) -> list[Combination]:
    """Return all combinations of variants. Raises ValueError for too many, and for an accuracy outside 0 to 1."""
    for model, value in accuracy.items():
        if not 0 <= value <= 1:
            raise ValueError(f"accuracy of {model}: got {value}, wanted 0 to 1")
    choices = [tuple(dict.fromkeys((stage.model, *stage.variants))) for stage in structure.stages]
    if (count := prod(map(len, choices))) > COMBINATIONS_LIMIT:
        raise ValueError(f"variants: got {count} combinations, wanted at most {COMBINATIONS_LIMIT}")
    return [Combination(models, pipeline_accuracy(structure, models, accuracy)) for models in product(*choices)]


def with_models(structure: PipelineStructure, models: tuple[str, ...]) -> PipelineStructure:
    """Return the structure with another model for each stage."""
    stages = zip(structure.stages, models, strict=True)
    return msgspec.structs.replace(
        structure, stages=tuple(msgspec.structs.replace(stage, model=model) for stage, model in stages)
    )


def most_accurate(
    structure: PipelineStructure,
    accuracy: Mapping[str, float],
    evaluator_of: Callable[[PipelineStructure], Evaluator],
    budget: float,
) -> VariantPlan:
    """Return the most accurate plan that costs at most `budget` dollars per hour; the cheaper of two equal ones.

    `evaluator_of` returns the planning problem for a structure with one model per stage. Raises Infeasible.
    """
    best: VariantPlan | None = None
    cheapest = float("inf")
    for choice in sorted(combinations(structure, accuracy), key=lambda choice: -choice.accuracy):
        if best and choice.accuracy < best.accuracy:
            break
        planned = _plan(structure, choice, evaluator_of)
        if planned is None:
            continue
        cost = planned.report.cost_per_hour
        cheapest = min(cheapest, cost)
        if cost <= budget and (not best or cost < best.planned.report.cost_per_hour):
            best = VariantPlan(choice.models, choice.accuracy, planned)
    if not best:
        found = f"the cheapest plan costs {cheapest:.3f}" if cheapest < float("inf") else "no variant meets the SLO"
        raise Infeasible(f"budget: got {budget:g} dollars per hour, {found}")
    return best


def cheapest_accurate(
    structure: PipelineStructure,
    accuracy: Mapping[str, float],
    evaluator_of: Callable[[PipelineStructure], Evaluator],
    floor: float,
) -> VariantPlan:
    """Return the cheapest plan with an accuracy of at least `floor`; the more accurate of two equal ones.

    `evaluator_of`: as for `most_accurate`. Raises Infeasible.
    """
    choices = combinations(structure, accuracy)
    accurate = [choice for choice in choices if choice.accuracy >= floor]
    if not accurate:
        most = max(choice.accuracy for choice in choices)
        raise Infeasible(f"accuracy floor: got {floor:g}, wanted at most {most:.4g}, that of the best variants")
    plans = [(choice, _plan(structure, choice, evaluator_of)) for choice in accurate]
    feasible = [VariantPlan(choice.models, choice.accuracy, plan) for choice, plan in plans if plan]
    if not feasible:
        raise Infeasible(f"{structure.name}: no combination of variants meets the SLO")
    return min(feasible, key=lambda found: (found.planned.report.cost_per_hour, -found.accuracy))


def _plan(
    structure: PipelineStructure, choice: Combination, evaluator_of: Callable[[PipelineStructure], Evaluator]
) -> ReportedPlan | None:
    """Return the plan with these models; None if they cannot meet the SLO."""
    try:
        return make_plan(evaluator_of(with_models(structure, choice.models)))
    except Infeasible:
        return None
