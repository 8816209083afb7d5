"""Algorithm 2 of InferLine section 4.3: reduces the cost of a feasible configuration by single actions.

Actions on a stage: IncreaseBatch, RemoveReplica and DowngradeHW. The last one freezes all other stages and plans the
stage afresh on another hardware type. The paper takes the next cheaper type only, which assumes that a dearer type is
faster at every batch size. Without this assumption every other type is a candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from horologe_planning.plans import REPLICAS_LIMIT
from horologe_planning.search.evaluation import replace_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_planning.plans import Configuration
    from horologe_planning.search.evaluation import Evaluator

CENT = 1e-9
"""Prices that differ by less are equal: the difference is rounding."""


Moves = Literal["any", "next", "none"]
"""Hardware types that a stage may move to. next: the next cheaper one, as in the paper."""


def minimize_cost(evaluator: Evaluator, configuration: Configuration, moves: Moves = "any") -> Configuration:
    """Return a feasible configuration of which no single action reduces the cost, starting from a feasible one."""
    while (changed := best_action(evaluator, configuration, moves)) is not None:
        configuration = changed
    return configuration


def best_action(evaluator: Evaluator, configuration: Configuration, moves: Moves = "any") -> Configuration | None:
    """Return the cheapest feasible configuration that one action leads to; None if there is none.

    IncreaseBatch does not change the cost, so it is chosen only if no other action is feasible. Of several, the one
    with the fewest misses is chosen.
    """
    if (cheaper := cheaper_action(evaluator, configuration, moves)) is not None:
        return cheaper
    larger = [changed for changed in increased_batches(evaluator, configuration) if evaluator.is_feasible(changed)]
    return min(larger, key=lambda changed: evaluator.verdict(changed).missed_bound, default=None)


def cheaper_action(evaluator: Evaluator, configuration: Configuration, moves: Moves = "any") -> Configuration | None:
    """Return the cheapest feasible configuration that one action leads to, if it costs less."""
    price, best = evaluator.price, configuration
    for place in range(len(configuration)):
        for kind in _other_hardware(evaluator, configuration, place, moves):
            changed = move_stage(evaluator, configuration, place, kind, price(best))
            best = changed or best
    for fewer in removals(configuration):
        if price(fewer) < price(best) - CENT and evaluator.is_feasible(fewer):
            best = fewer
    return None if best is configuration else best


def increased_batches(evaluator: Evaluator, configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with a batch of at least twice the size, for each stage that has one in its profile."""
    for place, stage in enumerate(configuration):
        larger = [size for size in evaluator.profile_of(stage).batch_sizes if size >= 2 * stage.batch]
        if larger:
            yield replace_stage(configuration, place, batch=larger[0])


def removals(configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with one replica less, for each stage that has several."""
    for place, stage in enumerate(configuration):
        if stage.replicas > 1:
            yield replace_stage(configuration, place, replicas=stage.replicas - 1)


def _other_hardware(evaluator: Evaluator, configuration: Configuration, place: int, moves: Moves) -> list[str]:
    """Return the hardware types that a stage may move to."""
    if moves == "none":
        return []
    types = [kind.name for kind in evaluator.hardware_of(evaluator.structure.stages[place])]
    present = types.index(configuration[place].hardware)
    return types[present + 1 : present + 2] if moves == "next" else types[:present] + types[present + 1 :]


def move_stage(
    evaluator: Evaluator, configuration: Configuration, place: int, kind: str, cost_limit: float
) -> Configuration | None:
    """Return the cheapest feasible configuration with a stage on another hardware type; None if none costs less.

    Every batch size of the profile is tried with its fewest replicas, the other stages as they are.
    """
    moved, found = replace_stage(configuration, place, hardware=kind, batch=1, replicas=0), None
    others, unit = evaluator.price(moved), evaluator.hardware[kind].price_per_hour
    for batch in reversed(evaluator.profile_of(moved[place]).batch_sizes):
        most = min(REPLICAS_LIMIT, int((cost_limit - CENT - others) / unit))
        if most < 1:
            break
        tried = replace_stage(moved, place, batch=batch)
        if replicas := evaluator.least_replicas(tried, place, most):
            found = replace_stage(tried, place, replicas=replicas)
            cost_limit = evaluator.price(found)
    return found
