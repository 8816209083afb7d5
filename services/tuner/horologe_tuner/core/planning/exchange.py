"""Exchanges: a dear replica less in one stage, cheap changes in others. Algorithm 2 cannot make them one by one.

Algorithm 2 takes every saving that is feasible. If it removes a cheap replica first, there may be no time left for the
removal of a dear one. Its batches only grow, and a large batch delays all stages behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_tuner.core.planning.evaluation import replace_stage
from horologe_tuner.core.planning.minimization import CENT, minimize_cost, removals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_tuner.core.planning.evaluation import Evaluator
    from horologe_tuner.core.plans import Configuration


def exchange_replicas(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return a feasible configuration that no exchange makes cheaper, starting from a feasible one."""
    price = evaluator.price
    while True:
        for fewer in sorted(removals(configuration), key=price):
            repaired = repair(evaluator, fewer, price(configuration))
            if repaired is not None:
                configuration = minimize_cost(evaluator, repaired)
                break
        else:
            return configuration


def repair(evaluator: Evaluator, configuration: Configuration, cost_limit: float) -> Configuration | None:
    """Return a feasible configuration that costs less than the limit, by changes that each reduce the misses most.

    A change is another batch size, or a replica more. None if no change reduces the misses.
    """
    missed = evaluator.missed_bound(configuration)
    while not evaluator.objective.is_met(missed):
        changed = [other for other in _changes(evaluator, configuration) if evaluator.price(other) < cost_limit - CENT]
        if not changed:
            return None
        configuration = min(changed, key=evaluator.missed_bound)
        before, missed = missed, evaluator.missed_bound(configuration)
        if missed >= before:
            return None
    return configuration


def _changes(evaluator: Evaluator, configuration: Configuration) -> Iterator[Configuration]:
    for place, stage in enumerate(configuration):
        yield replace_stage(configuration, place, replicas=stage.replicas + 1)
        for size in evaluator.profile_of(stage).batch_sizes:
            if size != stage.batch:
                yield replace_stage(configuration, place, batch=size)
