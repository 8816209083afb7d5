"""Provisioning levels of a plan: the fewest replicas for multiples of its rate, on the planned hardware and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_tuner.core.pipeline_tuning.tuning_plan import MAX_REPLICAS, ProvisioningLevel
from horologe_tuner.core.pipeline_workload import Workload
from horologe_tuner.core.planning.evaluation import Evaluator, replace_stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_tuner.core.plans import Configuration

STEP = 1.05
"""Ratio of the factors of two levels. With 1.2, traffic that exceeds the sample by chance gets replicas for a fifth
more: the first of July of docs/experiments/inferline.md then costs 14% more."""
FACTORS = tuple(STEP**power for power in range(-30, 31))
"""From 0.23 to 4.3 times the rate of the sample."""
QUERIES = 60_000
"""Limit of the estimator's work: two hundred runs of so many queries take a few seconds."""


def provisioning_levels(evaluator: Evaluator, configuration: Configuration) -> tuple[ProvisioningLevel, ...]:
    """Return the levels of a configuration, without those that cannot be reached by adding replicas.

    The sample, or its busiest `QUERIES`, is compressed in time by each factor, so that its bursts become denser as
    well. Replicas never fall from one level to the next, although the estimator may find fewer: a batch that starts
    later is larger.
    """
    levels: list[ProvisioningLevel] = []
    least = tuple(msgspec.structs.replace(stage, replicas=1) for stage in configuration)
    for factor in FACTORS:
        found = _fewest(_compressed(evaluator, factor), least)
        if found is None:
            break
        least = found
        levels.append(ProvisioningLevel(factor, tuple(stage.replicas for stage in found)))
    return tuple(levels)


def busiest_stretch(arrivals_ns: NDArray[np.int64], queries: int) -> slice:
    """Return the shortest stretch of the trace with so many queries, the whole trace if it has fewer."""
    count = min(queries, arrivals_ns.size)
    first = int(np.argmin(arrivals_ns[count - 1 :] - arrivals_ns[: arrivals_ns.size - count + 1]))
    return slice(first, first + count)


def _compressed(evaluator: Evaluator, factor: float) -> Evaluator:
    """Return the planning problem of the busiest queries at `factor` times the rate."""
    work = evaluator.workload
    part = busiest_stretch(work.arrivals_ns, QUERIES)
    busiest_ns = work.arrivals_ns[part]
    arrivals_ns = np.round((busiest_ns - busiest_ns[0]) / factor).astype(np.int64)
    faster = Workload(work.structure, arrivals_ns, work.seed, work.calls[part])
    return Evaluator(faster, evaluator.profiles, evaluator.hardware, evaluator.objective)


def _fewest(evaluator: Evaluator, least: Configuration) -> Configuration | None:
    """Return a cheap feasible configuration with at least the replicas of `least`; None if there is none."""
    upper = least
    while not evaluator.is_feasible(upper):
        upper = tuple(msgspec.structs.replace(stage, replicas=1 + stage.replicas * 5 // 4) for stage in upper)
        if max(stage.replicas for stage in upper) > MAX_REPLICAS:
            return None
    places = sorted(range(len(least)), key=lambda place: -evaluator.price(least[place : place + 1]))
    for place in places:
        count = upper[place].replicas
        while count > least[place].replicas:
            fewer = replace_stage(upper, place, replicas=count - 1)
            if not evaluator.is_feasible(fewer):
                break
            upper, count = fewer, count - 1
    return upper
