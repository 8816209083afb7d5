"""InferLine's planner as printed: algorithms 1 and 2 of section 4.3.

Algorithm 1 finds a first feasible configuration. Line 6 is printed with the comparison inverted: it must give up if the
service time is above the SLO, as the text says. Here it gives up if even a configuration in which no call waits misses
the objective.

Algorithm 2 reduces the cost by single actions on a stage: IncreaseBatch, RemoveReplica and DowngradeHW. The last one
freezes all other stages and plans the stage afresh on another hardware type. The paper takes the next cheaper type
only, which assumes that a dearer type is faster at every batch size. Without this assumption every other type is a
candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.hardware import PRICE_ROUNDING
from horologe_planning.plan import MAX_REPLICAS, Placement
from horologe_planning.report import Infeasible
from horologe_planning.search.evaluation import first_true, replace_stage
from horologe_planning.search.whole_devices import removals, widen_bottleneck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_planning.search.evaluation import Configuration, Evaluator


def initialize(evaluator: Evaluator, hardware: Sequence[str]) -> Configuration:
    """Return a feasible configuration with batches of one call on this hardware (one type per stage).

    Replicas are added to the stage with the least throughput, until the objective is met. Raises Infeasible.
    """
    stages = evaluator.structure.stages
    smallest = tuple(Placement(s.name, s.model, kind) for s, kind in zip(stages, hardware, strict=True))
    if not evaluator.is_feasible(evaluator.unlimited(smallest)):
        raise Infeasible(f"{evaluator.structure.name}: misses the objective although no call waits")
    sequence = [smallest]

    def is_enough(added: int) -> bool:
        while len(sequence) <= added:
            sequence.append(widen_bottleneck(evaluator, sequence[-1]))
        return evaluator.is_feasible(sequence[added])

    if is_enough(0):
        return smallest
    if not (added := first_true(is_enough, 1, MAX_REPLICAS)):
        raise Infeasible(f"{evaluator.structure.name}: needs more than {MAX_REPLICAS} replicas with batches of 1")
    return sequence[added]


def minimize_cost(evaluator: Evaluator, configuration: Configuration, *, can_move: bool = True) -> Configuration:
    """Return a feasible configuration of which no single action reduces the cost, starting from a feasible one.

    `can_move`: whether a stage may move to another hardware type.
    """
    while (changed := best_action(evaluator, configuration, can_move=can_move)) is not None:
        configuration = changed
    return configuration


def best_action(evaluator: Evaluator, configuration: Configuration, *, can_move: bool = True) -> Configuration | None:
    """Return the cheapest feasible configuration that one action leads to; None if there is none.

    IncreaseBatch does not change the cost, so it is chosen only if no other action is feasible. Of several, the one
    with the fewest misses is chosen.
    """
    if (cheaper := cheaper_action(evaluator, configuration, can_move=can_move)) is not None:
        return cheaper
    larger = [changed for changed in increased_batches(evaluator, configuration) if evaluator.is_feasible(changed)]
    return min(larger, key=evaluator.missed_bound, default=None)


def cheaper_action(
    evaluator: Evaluator, configuration: Configuration, *, can_move: bool = True
) -> Configuration | None:
    """Return the cheapest feasible configuration that one action leads to, if it costs less."""
    price, best = evaluator.price, configuration
    for place in range(len(configuration)):
        for kind in _other_hardware(evaluator, configuration, place) if can_move else ():
            changed = move_stage(evaluator, configuration, place, kind, price(best))
            best = changed or best
    for fewer in removals(configuration):
        if price(fewer) < price(best) - PRICE_ROUNDING and evaluator.is_feasible(fewer):
            best = fewer
    return None if best is configuration else best


def increased_batches(evaluator: Evaluator, configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with a batch of at least twice the size, for each stage that has one in its profile."""
    for place, stage in enumerate(configuration):
        larger = [size for size in evaluator.profile_of(stage).batch_sizes if size >= 2 * stage.max_batch]
        if larger:
            yield replace_stage(configuration, place, max_batch=larger[0])


def _other_hardware(evaluator: Evaluator, configuration: Configuration, place: int) -> list[str]:
    """Return the hardware types that a stage may move to, dearest first."""
    types = [kind.name for kind in evaluator.hardware_of(evaluator.structure.stages[place])]
    return [kind for kind in types if kind != configuration[place].hardware]


def move_stage(
    evaluator: Evaluator, configuration: Configuration, place: int, kind: str, cost_limit: float
) -> Configuration | None:
    """Return the cheapest feasible configuration with a stage on another hardware type; None if none costs less.

    Every batch size of the profile is tried with its fewest replicas, the other stages as they are.
    """
    moved, found = replace_stage(configuration, place, hardware=kind, max_batch=1, replicas=0), None
    others, unit = evaluator.price(moved), evaluator.hardware[kind].price_per_hour
    for batch in reversed(evaluator.profile_of(moved[place]).batch_sizes):
        most = min(MAX_REPLICAS, int((cost_limit - PRICE_ROUNDING - others) / unit))
        if most < 1:
            break
        tried = replace_stage(moved, place, max_batch=batch)
        if replicas := evaluator.least_replicas(tried, place, most):
            found = replace_stage(tried, place, replicas=replicas)
            cost_limit = evaluator.price(found)
    return found
