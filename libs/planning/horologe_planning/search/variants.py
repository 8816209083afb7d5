"""Plans of pipelines whose stages have variants: models of different accuracy and cost for the same task."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby, product
from math import inf, prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_planning.report import Infeasible
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.pipeline_planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.report import ReportedPlan

COMBINATIONS_LIMIT = 256


class Combination(NamedTuple):
    """A model for each stage, and the accuracy of the pipeline with them."""

    models: tuple[str, ...]
    accuracy: float


class VariantPlan(NamedTuple):
    """A plan with the models that it chose, one per stage, and the accuracy of the pipeline."""

    models: tuple[str, ...]
    accuracy: float
    planned: ReportedPlan

    @property
    def cost(self) -> float:
        """Dollars per hour."""
        return self.planned.report.cost_per_hour


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
    cheapest = inf
    best_first = sorted(combinations(structure, accuracy), key=lambda choice: -choice.accuracy)
    for _, equal in groupby(best_first, key=lambda choice: choice.accuracy):
        plans = _plans(structure, equal, evaluator_of)
        cheapest = min([cheapest, *(plan.cost for plan in plans)])
        if affordable := [plan for plan in plans if plan.cost <= budget]:
            return min(affordable, key=lambda plan: plan.cost)
    found = f"the cheapest plan costs {cheapest:.3f}" if cheapest < inf else "no variant meets the SLO"
    raise Infeasible(f"budget: got {budget:g} dollars per hour, {found}")


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
    plans = _plans(structure, accurate, evaluator_of)
    if not plans:
        raise Infeasible(f"{structure.name}: no combination of variants meets the SLO")
    return min(plans, key=lambda plan: (plan.cost, -plan.accuracy))


def _plans(
    structure: PipelineStructure, choices: Iterable[Combination], evaluator_of: Callable[[PipelineStructure], Evaluator]
) -> list[VariantPlan]:
    """Return the plans of those combinations that can meet the SLO."""
    plans = []
    for choice in choices:
        with suppress(Infeasible):
            planned = make_plan(evaluator_of(with_models(structure, choice.models)))
            plans.append(VariantPlan(*choice, planned))
    return plans
