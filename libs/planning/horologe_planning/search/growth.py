"""Room for higher rates: of all batch sizes that meet the SLO, those with which the replicas carry the highest rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.whole_devices import choose_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_planning.search.evaluation import Configuration

STEP, MOST = 1.1, 5.0
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
    while (factor := factor * STEP) < MOST:
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
