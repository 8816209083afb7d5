"""Exact search on small spaces: the cheapest feasible configuration, to measure how far the planner is from it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_planning.hardware import PRICE_ROUNDING
from horologe_planning.plan import MAX_REPLICAS, Placement
from horologe_planning.search.whole_devices import frictionless, least_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_planning.search.evaluation import Configuration, Evaluator

RUNS_LIMIT = 20_000


class Exact(NamedTuple):
    """Result of a search. `configuration`: None if none costs less than the limit. `complete`: whether all cheaper ones
    were excluded; otherwise `cost` is only a lower bound, because the limit of runs was reached.
    """

    configuration: Configuration | None
    cost: float
    complete: bool


def find_cheapest(
    evaluator: Evaluator, cost_limit: float, runs_limit: int = RUNS_LIMIT,
    progress: Callable[[float], None] = lambda cost: None,
) -> Exact:  # fmt: skip
    """Return the cheapest feasible configuration that costs less than `cost_limit`.

    All configurations are tried in the order of their cost, with any hardware, any batch size of the profiles and any
    number of replicas. Excluded without a run are stages that miss the objective even if all others never let a call
    wait; see `isolated_bounds`. `progress` is called with the cost of each configuration before its run.
    """
    options = _options(evaluator, cost_limit)
    if not all(options):
        return Exact(None, cost_limit, True)
    prices = [[evaluator.price((option,)) for option in stage] for stage in options]
    start, last_run = (0,) * len(options), evaluator.runs + runs_limit
    heap, seen = [(sum(price[0] for price in prices), start)], {start}
    while heap:
        cost, choice = heapq.heappop(heap)
        if cost >= cost_limit - PRICE_ROUNDING:
            break
        if evaluator.runs >= last_run:
            return Exact(None, cost, False)
        progress(cost)
        configuration = tuple(stage[index] for stage, index in zip(options, choice, strict=True))
        if evaluator.is_feasible(configuration):
            return Exact(configuration, cost, True)
        for place, index in enumerate(choice):
            following = (*choice[:place], index + 1, *choice[place + 1 :])
            if index + 1 < len(options[place]) and following not in seen:
                seen.add(following)
                heapq.heappush(heap, (cost + prices[place][index + 1] - prices[place][index], following))
    return Exact(None, cost_limit, True)


def _options(evaluator: Evaluator, cost_limit: float) -> list[list[Placement]]:
    """Return the configurations of each stage that are feasible alone and cost less than the limit, cheapest first."""
    ideal = frictionless(evaluator)
    least: list[list[Placement]] = []
    for place, stage in enumerate(evaluator.structure.stages):
        found = []
        for kind in evaluator.hardware_of(stage):
            for batch in evaluator.profiles[stage.model][kind.name].batch_sizes:
                most = min(MAX_REPLICAS, int(cost_limit / kind.price_per_hour))
                if most and (replicas := least_alone(evaluator, ideal, place, kind.name, batch, most)):
                    found.append(Placement(stage.name, stage.model, kind.name, batch, replicas))
        least.append(found)
    if not all(least):
        return least
    cheapest = [min(evaluator.price((option,)) for option in found) for found in least]
    options = []
    for found, own in zip(least, cheapest, strict=True):
        limit = cost_limit - (sum(cheapest) - own)  # the other stages cost at least this much
        wider = []
        for option in found:
            while evaluator.price((option,)) < limit - PRICE_ROUNDING:
                wider.append(option)
                option = msgspec.structs.replace(option, replicas=option.replicas + 1)
        options.append(sorted(wider, key=lambda option: (evaluator.price((option,)), -option.max_batch)))
    return options
