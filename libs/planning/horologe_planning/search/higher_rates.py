"""A configuration at other rates: the batches that carry the highest rate, and the fewest replicas for each rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.plan import MAX_REPLICAS, ProvisioningLevel
from horologe_planning.search.evaluation import Evaluator, replace_stage
from horologe_planning.search.whole_devices import choose_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_planning.plan import Plan
    from horologe_planning.search.evaluation import Configuration


GROWTH_STEP, GROWTH_MOST = 1.1, 5.0
"""Ratio of two rates that are tried, and the highest multiple of the sample's."""
QUERIES = 60_000
"""Limit of the estimator's work: two hundred runs of so many queries take a few seconds."""


def batches_for_growth(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with the batches that meet the objective at the highest multiple of the sample's rate.

    They also meet it at the sample's rate. Small batches leave the most time at this rate, but their throughput does
    not suffice for a higher one: following the traffic of a day with them costs a third more
    (experiments/results/inferline.md).
    """
    factor, best = 1.0, configuration
    while (factor := factor * GROWTH_STEP) < GROWTH_MOST:
        faster = faster_problem(evaluator, factor)
        best = choose_batches(faster, best)
        if not faster.is_feasible(best):
            break
        if evaluator.is_feasible(best):
            configuration = best
    return configuration


def faster_problem(evaluator: Evaluator, factor: float) -> Evaluator:
    """Return the planning problem of the sample, or of its busiest `QUERIES`, at `factor` times the rate."""
    work = evaluator.workload
    part = busiest_stretch(work.arrivals_ns, QUERIES)
    busiest_ns = work.arrivals_ns[part]
    arrivals_ns = np.round((busiest_ns - busiest_ns[0]) / factor).astype(np.int64)
    faster = PipelineTrace(work.structure, arrivals_ns, work.seed, work.calls[part])
    return Evaluator(faster, evaluator.profiles, evaluator.hardware, evaluator.objective)


def busiest_stretch(arrivals_ns: NDArray[np.int64], queries: int) -> slice:
    """Return the shortest stretch of the trace with so many queries, the whole trace if it has fewer."""
    count = min(queries, arrivals_ns.size)
    first = int(np.argmin(arrivals_ns[count - 1 :] - arrivals_ns[: arrivals_ns.size - count + 1]))
    return slice(first, first + count)


LEVEL_STEP = 1.05
"""Ratio of the factors of two levels. With 1.2, traffic that exceeds the sample by chance gets replicas for a fifth
more: the first of July of experiments/results/inferline.md then costs 14% more."""
FACTORS = tuple(LEVEL_STEP**power for power in range(-30, 49))
"""From 0.23 to 10.4 times the rate of the sample. Beyond the last level, replicas grow in proportion, and each stage is
rounded up. A day whose rate rises to six times the sample's then costs up to a tenth more."""


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
    levels: list[ProvisioningLevel] = []
    seen = msgspec.structs.replace(evaluator.objective, confidence=0.0)
    evaluator = Evaluator(evaluator.workload, evaluator.profiles, evaluator.hardware, seen)
    least = tuple(msgspec.structs.replace(stage, replicas=1) for stage in configuration)
    for factor in FACTORS:
        found = _fewest(faster_problem(evaluator, factor), least)
        if found is None:
            break
        least = found
        levels.append(ProvisioningLevel(factor, tuple(stage.replicas for stage in found)))
    return tuple(levels)


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
