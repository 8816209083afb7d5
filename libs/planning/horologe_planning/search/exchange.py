"""Exchanges: replicas less in one stage, changes in others that cost less. Algorithm 2 cannot make them one by one.

Algorithm 2 takes every saving that is feasible. If it removes a cheap replica first, there may be no time left for the
removal of a dear one, or of several others. Its batches only grow, and a large batch delays all stages behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.search.evaluation import replace_stage
from horologe_planning.search.minimization import CENT, cheaper_action, removals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_planning.search.evaluation import Configuration, Evaluator


def improve(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return a feasible configuration that no action and no exchange makes cheaper, starting from a feasible one.

    Its batches are those with the most time left to the SLO, which serves traffic that the planner has not seen.
    """
    while True:
        configuration = choose_batches(evaluator, configuration)
        cheaper = cheaper_action(evaluator, configuration) or exchange_replicas(evaluator, configuration)
        if cheaper is None:
            return configuration
        configuration = cheaper


def choose_batches(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with the batches that meet the shortest SLO, one stage changed at a time."""
    while True:
        best = min(_other_batches(evaluator, configuration), key=evaluator.reached_slo_ns, default=configuration)
        if evaluator.reached_slo_ns(best) >= evaluator.reached_slo_ns(configuration):
            return configuration
        configuration = best


def exchange_replicas(evaluator: Evaluator, configuration: Configuration) -> Configuration | None:
    """Return a cheaper feasible configuration with fewer replicas of one stage and changes in others, if any."""
    limit = evaluator.price(configuration)
    for fewer in sorted(removals(configuration), key=evaluator.price):
        if (repaired := _repair(evaluator, fewer, limit)) is not None:
            return repaired
    return min(_several_for_one(evaluator, configuration, limit), key=evaluator.price, default=None)


def _several_for_one(evaluator: Evaluator, configuration: Configuration, limit: float) -> Iterator[Configuration]:
    """Yield feasible configurations with a replica more in one stage, and as many less in another as pay for it."""
    for more in _additions(configuration):
        for place, stage in enumerate(configuration):
            price = evaluator.hardware[stage.hardware].price_per_hour
            less = 1 + int((evaluator.price(more) - limit + CENT) / price)
            if less < stage.replicas:
                exchanged = replace_stage(more, place, replicas=stage.replicas - less)
                if evaluator.is_feasible(exchanged):
                    yield exchanged


def _repair(evaluator: Evaluator, configuration: Configuration, cost_limit: float) -> Configuration | None:
    """Return a feasible configuration that costs less than the limit, by the changes that each reduce latency most.

    A change is another batch size, or a replica more. None if the changes end before the SLO is met.
    """
    reached_ns = evaluator.reached_slo_ns(configuration)
    while reached_ns > evaluator.objective.slo_ns:
        changed = [*_other_batches(evaluator, configuration), *_additions(configuration)]
        changed = [other for other in changed if evaluator.price(other) < cost_limit - CENT]
        configuration = min(changed, key=evaluator.reached_slo_ns, default=configuration)
        before_ns, reached_ns = reached_ns, evaluator.reached_slo_ns(configuration)
        if reached_ns >= before_ns:
            return None
    return configuration


def _additions(configuration: Configuration) -> Iterator[Configuration]:
    for place, stage in enumerate(configuration):
        yield replace_stage(configuration, place, replicas=stage.replicas + 1)


def _other_batches(evaluator: Evaluator, configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with another batch size of the profile, for each stage and size."""
    for place, stage in enumerate(configuration):
        for size in evaluator.profile_of(stage).batch_sizes:
            if size != stage.max_batch:
                yield replace_stage(configuration, place, max_batch=size)
