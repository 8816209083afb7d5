"""An upper bound on the score of any scheduler, for several devices and models, with residency, noise and faults.

Claim. Let p_d(t) >= 0 be a price of time on device d. A schedule may know all arrivals, inputs and faults, but not the
noise of an EXEC before its end. It answers in time, on average over the noise, at most

    sum over d of (integral of p_d while d is connected)  +  sum over requests r of max(0, v_r)  +  m

requests. v_r is the most that a start is worth to r: the maximum over devices d, batch sizes k and starts s of

    P(s + X E <= deadline of r)  -  (mean integral of p_d from s to s + X E) / min(k, n)

X is the factor of the noise. E is the shortest time of a batch of size k with r on d, and longer while d is slow. s is
at or after the arrival of r, and s + (least X) E at or before its deadline and the loss of d, if any. n is the most
requests of the model that could start together at some time at which r could, by the same conditions. m is the largest
batch size for each loss of a device.

Proof. Charge each batch the integral of the price over its time on its device. Batches of a device do not overlap, so
all charges together are at most the first sum. Divide the charge of a batch equally among those of its requests that
have a chance to be in time when it starts at s. There are at most k and at most n of them, and it takes at least X E.
The noise of the batch does not depend on what was known at its start. So on average such a request is answered in time
with at most the first term, and pays at least the second term. What it gains and does not pay for is at most v_r.
Each request runs once, except those of a batch that a loss has ended: they may run again, which m counts. (The
controller also repeats actions whose Result is overdue. No device of `ControllerWorld` is.) []

The value of a start is linear in s between the times at which the price changes at s or at s + X E, and falls where a
deadline is passed, so its maximum is at one of these points. Rows of a dynamic model are padded to the longest, so E is
that of r alone in size k. X is replaced by the lower ends of parts of its distribution (`Noise.low_factors`), which
only raises v_r. A lognormal factor has no least one: its quantile of 0.001 counts, and the claim holds but for the
batches that are shorter.

Residency. Requests that arrive in an epoch run in it or within the longest SLO after it. In this time the devices can
hold the pages that they have, and those that their LOAD lanes can fill. The models that are used share these pages. So
of the second sum, an epoch has at most the most valuable models that fit, as a fractional knapsack (`PageRoom`).

All prices give a bound. `price_search.py` looks for those of the least one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from horologe_sim.comparison.bound_problem import EPOCHS_NS, PageRoom, make_problem
from horologe_sim.comparison.price_search import PriceSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_sim.controller_only.controller_world import ClusterSettings
    from horologe_sim.controller_only.request_load import Chunk
    from horologe_sim.engine.simulated_device import SimModel
    from horologe_sim.engine.simulated_faults import Fault

    Ints = NDArray[np.int64]


class BoundedLoad(Protocol):
    """Requests, devices and models. Every device can have every model."""

    @property
    def chunk(self) -> Chunk: ...
    @property
    def models(self) -> Sequence[SimModel]: ...
    @property
    def cluster(self) -> ClusterSettings: ...
    @property
    def factors(self) -> Sequence[float]: ...
    @property
    def faults(self) -> Sequence[Fault]: ...
    @property
    def warmup_ns(self) -> int: ...


def score_bound(workload: BoundedLoad) -> float | None:
    """Return an upper bound of the share of the measured requests with deadlines that a schedule serves in time.

    None if no request has a deadline. The requests must not depend on the schedule, as those of closed loops do.
    """
    chosen = measured_requests(workload)
    if not len(chosen):
        return None
    search = PriceSearch(make_problem(workload, chosen))
    rooms = [PageRoom(workload, chosen, epoch_ns) for epoch_ns in EPOCHS_NS]
    most = min(search.least_bound(room) for room in rooms if room.is_short() or room is rooms[0])
    return min(1.0, most / len(chosen))


def measured_requests(workload: BoundedLoad) -> Ints:
    """Return the indices of the requests that count for the score."""
    times, slos = (np.array(values) for values in (workload.chunk.times_ns, workload.chunk.slos_ns))
    return np.flatnonzero((times >= workload.warmup_ns) & (slos > 0))
