"""The scheduling problem of one device as arrays, for the searches of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.workloads import Workload


class Problem(NamedTuple):
    """Requests in order of arrival and of deadline. A batch of size `sizes[k]` takes `fixed[k] + per[k] * longest`.

    All arrays are int64, times in nanoseconds. The largest size is at most 16.
    """

    arrival: NDArray[np.int64]
    deadline: NDArray[np.int64]
    solo: NDArray[np.int64]
    sizes: NDArray[np.int64]
    fixed: NDArray[np.int64]
    per: NDArray[np.int64]


def problem_of(workload: Workload) -> Problem:
    """Return the problem of a workload. Raises ValueError if a larger batch could take less time."""
    batching = workload.batching
    fixed, per, sizes = (np.array(values, np.int64) for values in (batching.fixed_ns, batching.per, batching.sizes))
    arrival = np.ascontiguousarray(workload.arrival_ns)
    solo = np.ascontiguousarray(workload.solo_ns)
    if (np.diff(fixed + per * solo.min()) < 0).any() or (np.diff(per) < 0).any():
        raise ValueError(f"batching: got {batching}, wanted larger batches to take no less")
    return Problem(arrival, arrival + workload.slo_ns, solo, sizes, fixed, per)
