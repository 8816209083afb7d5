"""A configuration at other rates: the fewest replicas for each rate, and the batches with which they cost least."""

from __future__ import annotations

from functools import cache
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.plan import MAX_REPLICAS, ProvisioningLevel
from horologe_planning.search.cheapest_first import take_best_changes
from horologe_planning.search.evaluation import Evaluator, replace_stage
from horologe_planning.search.whole_devices import with_other_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from horologe_planning.plan import Plan
    from horologe_planning.search.evaluation import Configuration


QUERIES = 60_000
"""Limit of the estimator's work: two hundred runs of so many queries take a few seconds."""
LEVEL_STEP = 1.05
"""Ratio of the factors of two levels. With 1.2, traffic that exceeds the sample by chance gets replicas for a fifth
more: the first of July of experiments/results/inferline.md then costs 14% more."""
FACTORS = tuple(LEVEL_STEP**power for power in range(-30, 49))
"""From 0.23 to 10.4 times the rate of the sample. Beyond the last level, replicas grow in proportion, and each stage is
rounded up. A day whose rate rises to six times the sample's then costs up to a tenth more."""
GROWTH_FACTORS, GROWTH_QUERIES = FACTORS[::3], 20_000
"""Rates that batches are chosen for, and queries of a run. Fewer than for the levels, because each choice of batches
takes some eighty runs. Rates below the sample's count as well: without them, an hour of Azure on K80s costs a tenth
more (experiments/results/inferline.md)."""


class RateProblem(NamedTuple):
    """The planning problem of the sample at a multiple of its rate."""

    factor: float
    problem: Evaluator


def batches_for_growth(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with the batches with which other rates cost least per query; see `_cost_per_query`.

    They meet the objective at the sample's rate. Small batches leave the most time there, but their throughput does not
    suffice for a higher rate. Large batches leave other stages too little time, so that these need replicas
    (experiments/results/inferline.md).
    """
    problems = list(_problems(evaluator, GROWTH_FACTORS, GROWTH_QUERIES))

    def other_batches(state: Configuration) -> Iterator[Configuration]:
        return (other for other in with_other_batches(evaluator, state) if evaluator.is_feasible(other))

    return take_best_changes(configuration, [other_batches], cache(lambda state: _cost_per_query(problems, state)))


def _cost_per_query(problems: Sequence[RateProblem], configuration: Configuration) -> float:
    """Return the sum over the rates of the price of the fewest replicas, divided by the multiple of the sample's rate.

    Beyond the last rate that can be reached, replicas grow in proportion to the rate. Infinite if there is none.
    """
    fewest = _fewest_by_rate(problems, configuration)
    costs = [problem.price(found) / factor for (factor, problem), found in zip(problems, fewest, strict=False)]
    return sum(costs) + (len(problems) - len(costs)) * (costs[-1] if costs else inf)


def _problems(evaluator: Evaluator, factors: Iterable[float], queries: int) -> Iterator[RateProblem]:
    """Yield the planning problems of the sample at multiples of its rate, without a margin for unseen traffic."""
    seen = msgspec.structs.replace(evaluator.objective, confidence=0.0)
    evaluator = Evaluator(evaluator.workload, evaluator.profiles, evaluator.hardware, seen)
    for factor in factors:
        yield RateProblem(factor, faster_problem(evaluator, factor, queries))


def _fewest_by_rate(problems: Iterable[RateProblem], configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with the fewest replicas that suffice, for each rate in ascending order.

    Replicas never fall from one rate to the next. The first rate that cannot be reached by adding replicas is the end.
    """
    least = tuple(msgspec.structs.replace(stage, replicas=1) for stage in configuration)
    for rate in problems:
        found = _fewest(rate.problem, least)
        if found is None:
            return
        least = found
        yield found


def faster_problem(evaluator: Evaluator, factor: float, queries: int = QUERIES) -> Evaluator:
    """Return the planning problem of the sample, or of its busiest `queries`, at `factor` times the rate."""
    work = evaluator.workload
    part = busiest_stretch(work.arrivals_ns, queries)
    busiest_ns = work.arrivals_ns[part]
    arrivals_ns = np.round((busiest_ns - busiest_ns[0]) / factor).astype(np.int64)
    faster = PipelineTrace(work.structure, arrivals_ns, work.seed, work.calls[part])
    return Evaluator(faster, evaluator.profiles, evaluator.hardware, evaluator.objective)


def busiest_stretch(arrivals_ns: NDArray[np.int64], queries: int) -> slice:
    """Return the shortest stretch of the trace with so many queries, the whole trace if it has fewer."""
    count = min(queries, arrivals_ns.size)
    first = int(np.argmin(arrivals_ns[count - 1 :] - arrivals_ns[: arrivals_ns.size - count + 1]))
    return slice(first, first + count)


def with_levels(plan: Plan, evaluator: Evaluator) -> Plan:
    """Return the plan with its provisioning levels, which the tuner follows instead of provisioning ratios."""
    return msgspec.structs.replace(plan, levels=provisioning_levels(evaluator, plan.placements))


def provisioning_levels(evaluator: Evaluator, configuration: Configuration) -> tuple[ProvisioningLevel, ...]:
    """Return the levels of a configuration, without those that cannot be reached by adding replicas.

    The sample is compressed in time by each factor, so that its bursts become denser as well. Replicas never fall from
    one level to the next, although the estimator may find fewer: a batch that starts later is larger.

    Levels have no margin for unseen traffic. The tuner measures the traffic, and has headroom for its changes. A margin
    from the spread of the sample would count the sample's own changes of the rate twice: levels of a day of NASA's
    server then cost a fifth more (experiments/results/inferline.md).
    """
    fewest = _fewest_by_rate(_problems(evaluator, FACTORS, QUERIES), configuration)
    return tuple(
        ProvisioningLevel(factor, tuple(stage.replicas for stage in found))
        for factor, found in zip(FACTORS, fewest, strict=False)
    )


def _fewest(evaluator: Evaluator, least: Configuration) -> Configuration | None:
    """Return a cheap feasible configuration with at least the replicas of `least`; None if there is none."""
    upper = least
    while not evaluator.is_feasible(upper):
        upper = tuple(msgspec.structs.replace(stage, replicas=1 + stage.replicas * 5 // 4) for stage in upper)
        if max(stage.replicas for stage in upper) > MAX_REPLICAS:
            return None
    places = sorted(range(len(least)), key=lambda place: -evaluator.price(least[place : place + 1]))
    for place in places:
        count = evaluator.least_replicas(upper, place, upper[place].replicas, least[place].replicas)
        upper = replace_stage(upper, place, replicas=count)
    return upper
