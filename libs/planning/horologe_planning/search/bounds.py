"""Lower bounds of cost: each stage alone, as if all others answered at once and never let a call wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.plan import MAX_REPLICAS, Placement
from horologe_planning.search.evaluation import replace_stage

if TYPE_CHECKING:
    from horologe_planning.search.evaluation import Configuration, Evaluator

Bounds = list[dict[str, float]]
"""For each stage: hardware type -> least dollars per hour. Types that cannot meet the objective are left out."""


def fastest_hardware(evaluator: Evaluator) -> list[str]:
    """Return the hardware type of each stage that runs one call in the least time. The cheaper of two equal ones."""
    chosen = []
    for stage in evaluator.structure.stages:
        profiles = evaluator.profiles[stage.model]
        types = reversed(evaluator.hardware_of(stage))
        chosen.append(min(types, key=lambda kind: profiles[kind.name].mean_latency_ns(1)).name)
    return chosen


def frictionless(evaluator: Evaluator) -> Configuration:
    """Return the configuration with the least latency: the fastest hardware, batches of one, unlimited replicas."""
    kinds = zip(evaluator.structure.stages, fastest_hardware(evaluator), strict=True)
    return evaluator.unlimited(tuple(Placement(stage.name, stage.model, kind) for stage, kind in kinds))


def least_alone(
    evaluator: Evaluator, ideal: Configuration, place: int, kind: str, batch: int, most: int = MAX_REPLICAS
) -> int:
    """Return the fewest replicas of a stage, up to `most`, with which the objective is met. 0: none do.

    All other stages are as in `ideal`, which is `frictionless(evaluator)`.
    """
    return evaluator.least_replicas(replace_stage(ideal, place, hardware=kind, max_batch=batch), place, most)


def isolated_bounds(evaluator: Evaluator) -> Bounds:
    """Return the least cost of each stage on each hardware type.

    The sum over the stages is a lower bound for every configuration, as far as a faster stage never delays a query.
    Batches break this rule by small amounts: calls that come earlier may start a smaller batch.
    """
    return [{kind: evaluator.price((least,)) for kind, least in stage.items()} for stage in isolated_stages(evaluator)]


def isolated_stages(evaluator: Evaluator) -> list[dict[str, Placement]]:
    """Return, for each stage and each hardware type that can meet the objective, the configuration of least cost."""
    ideal, stages = frictionless(evaluator), []
    for place, stage in enumerate(evaluator.structure.stages):
        least: dict[str, Placement] = {}
        for kind in evaluator.hardware_of(stage):
            most = MAX_REPLICAS
            for batch in reversed(evaluator.profiles[stage.model][kind.name].batch_sizes):
                if replicas := least_alone(evaluator, ideal, place, kind.name, batch, most):
                    least[kind.name] = Placement(stage.name, stage.model, kind.name, batch, replicas)
                    most = replicas - 1
        stages.append(least)
    return stages
