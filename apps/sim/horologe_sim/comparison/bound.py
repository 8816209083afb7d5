"""An upper bound on the score of any scheduler, for several devices and models, with residency.

Claim. Let p_d(t) >= 0 be a price of time on device d. A schedule, which may know all arrivals and execution times,
answers at most

    sum over d of (integral of p_d)  +  sum over requests r of max(0, 1 - c_r)

requests in time. c_r is the least cost of r: the minimum over devices d, batch sizes k and starts s of
(integral of p_d from s to s + E) / min(k, n), where E is the shortest time of a batch of size k with r on d, s is at or
after the arrival of r, s + E at or before its deadline, and n is the number of requests of the model that have arrived
by deadline(r) - E and are due at arrival(r) + E or later.

Proof. Charge each batch the integral of the price over its time on its device. Batches of a device do not overlap, so
all charges together are at most the first sum. Divide the charge of a batch equally among its requests that are in
time. If r is one of them, the batch started after its arrival and took at least E, so its charge is at least the
integral over s to s + E. It holds at most k requests. Each of them has arrived by the start, which is at most
deadline(r) - E, and is due at the end or later, which is at least arrival(r) + E. So at most n are in time, and r is
charged at least c_r. Hence the number in time is sum of (1 - c_r) + sum of c_r over these requests, at most
sum of max(0, 1 - c_r) + all charges. []

The minimum over s is taken at the points where the integrand changes, and at the ends of the interval. Between these
points the integral is linear in s. Rows of a dynamic model are padded to the longest, so E is that of r alone in size
k. A device that is slower for a time, or lost, only makes the claim weaker.

Residency. Requests that arrive in an epoch run in it or within the longest SLO after it. In this time the devices can
hold the pages that they have, and those that their LOAD lanes can fill. The models that are used share these pages, so
the most requests that pages allow, as a fractional knapsack, bounds what is served of the epoch.

Execution times are those of the profile times the least factor of the noise (`Noise.least_factor`), so no batch is
shorter. A lognormal factor has no least one: its quantile of 0.001 counts, and the claim holds but for these batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_sim.engine.virtual_worker import SimModel
    from horologe_sim.fast.fast_worker import FastClusterSettings
    from horologe_sim.fast.traffic import Chunk, Loop

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

STEPS = 60
MOST_BINS = 2000
BINS_PER_WINDOW = 4
"""Bins of a price in the median time from arrival to deadline."""
EPOCHS_NS = ms(50), ms(500), s(5)
"""Lengths of epochs of the bound by residency. The least bound counts."""


class Workload(Protocol):
    """Requests, devices and models. Every device can have every model."""

    @property
    def chunk(self) -> Chunk: ...
    @property
    def loops(self) -> Sequence[Loop]: ...
    @property
    def models(self) -> Sequence[SimModel]: ...
    @property
    def cluster(self) -> FastClusterSettings: ...
    @property
    def factors(self) -> Sequence[float]: ...
    @property
    def warmup_ns(self) -> int: ...


class Problem(NamedTuple):
    """Requests in order of arrival. Times in ns. `exec_ns` (sizes, requests): least time of a batch of a size."""

    arrival_ns: Floats
    deadline_ns: Floats
    exec_ns: Floats
    holds: Floats
    """(sizes, requests): most requests in time in such a batch."""
    factors: Floats
    """(devices,): execution times as multiples of `exec_ns`."""


class Prices(NamedTuple):
    """Prices of a device with factor 1 by bin, per ns. A device with factor f has prices / f."""

    edges_ns: Floats
    per_ns: Floats


def score_bound(workload: Workload) -> float | None:
    """Return the largest share of the measured requests with deadlines that any schedule serves in time.

    None for closed loops, whose requests depend on the schedule.
    """
    chosen = measured_requests(workload)
    if workload.loops or not len(chosen):
        return None
    problem = problem_of(workload, chosen)
    most = min(least_bound(problem), resident_bound(workload, chosen))
    return min(1.0, most / len(chosen))


def measured_requests(workload: Workload) -> Ints:
    """Return the indices of the requests that count for the score."""
    times, slos = (np.array(values) for values in (workload.chunk.times_ns, workload.chunk.slos_ns))
    return np.flatnonzero((times >= workload.warmup_ns) & (slos > 0))


def problem_of(workload: Workload, chosen: Ints) -> Problem:
    """Return the arrays of these requests."""
    chunk, cluster = workload.chunk, workload.cluster
    times, slos, models = (np.array(values, float)[chosen] for values in (chunk.times_ns, chunk.slos_ns, chunk.models))
    arrival_ns = times + cluster.client_ns + cluster.worker_ns
    deadline_ns = times + slos - cluster.client_ns
    tables = [model.report.profile.exec_ns for model in workload.models if model.report.profile]
    sizes = sorted({size for table in tables for size in table})
    by_model = np.array([[table.get(size, np.inf) for table in tables] for size in sizes])
    exec_ns = by_model[:, models.astype(int)]
    if chunk.requests:
        solo_ns = np.array([chunk.requests[index].solo_ns for index in chosen], float)
        base_ns = np.array([model.base_ns for model in workload.models], float)[models.astype(int)]
        padded_ns = base_ns + np.array(sizes)[:, None] * (solo_ns - base_ns)
        exec_ns = np.where(solo_ns > 0, padded_ns, exec_ns)
    exec_ns = exec_ns * cluster.noise.least_factor()
    factors = np.array(workload.factors)
    holds = _count_companions(arrival_ns, deadline_ns, exec_ns * factors.min(), models, np.array(sizes))
    return Problem(arrival_ns, deadline_ns, exec_ns, holds, factors)


def _count_companions(arrival_ns: Floats, deadline_ns: Floats, exec_ns: Floats, models: Floats, sizes: Ints) -> Floats:
    """Return min(k, n) of the claim, at least 1."""
    holds = np.ones_like(exec_ns)
    for model in np.unique(models):
        own = np.flatnonzero(models == model)
        arrivals, deadlines = np.sort(arrival_ns[own]), np.sort(deadline_ns[own])
        for row, size in enumerate(sizes):
            arrived = np.searchsorted(arrivals, deadline_ns[own] - exec_ns[row, own], side="right")
            missed = np.searchsorted(deadlines, arrival_ns[own] + exec_ns[row, own])
            holds[row, own] = np.clip(arrived - missed, 1, size)
    return holds


def least_bound(problem: Problem, steps: int = STEPS) -> float:
    """Return the least bound that a search for prices finds: a constant price, then subgradient steps."""
    prices = _constant_prices(problem)
    least, length, stalled = np.inf, 1.0, 0
    best = prices
    for _ in range(steps):
        bound, slope = evaluate_prices(problem, prices)
        if bound < least * (1 - 1e-4):
            least, best, stalled = bound, prices, 0
        else:
            least, stalled = min(least, bound), stalled + 1
        if stalled == 3:
            length, stalled, prices = length / 2, 0, best
            bound, slope = evaluate_prices(problem, prices)
        scale = max(float(prices.per_ns.mean()), 1e-12)
        step = length * 0.3 * scale / max(float(np.abs(slope).max()), 1e-12)
        prices = prices._replace(per_ns=np.maximum(0.0, prices.per_ns - step * slope))
    return float(least)


def _constant_prices(problem: Problem) -> Prices:
    """Return the best of some constant prices."""
    begin_ns, end_ns = problem.arrival_ns.min(), problem.deadline_ns.max()
    width_ns = max(float(np.median(problem.deadline_ns - problem.arrival_ns)) / BINS_PER_WINDOW, 1.0)
    bins = int(min(MOST_BINS, max(1, (end_ns - begin_ns) // width_ns)))
    edges_ns = np.linspace(begin_ns, end_ns, bins + 1)
    rows_ns = (problem.exec_ns / problem.holds).min(0)
    trials = [0.0, *(1 / np.quantile(rows_ns, np.linspace(0.02, 0.98, 13)))]
    options = [Prices(edges_ns, np.full(bins, trial)) for trial in trials]
    return min(options, key=lambda prices: evaluate_prices(problem, prices)[0])


def evaluate_prices(problem: Problem, prices: Prices) -> tuple[float, Floats]:
    """Return the bound at these prices, and its slope by bin."""
    edges_ns, per_ns = prices
    integral = np.concatenate([[0.0], np.cumsum(per_ns * np.diff(edges_ns))])
    speed = float((1 / problem.factors).sum())
    requests = len(problem.arrival_ns)
    cost, start_ns, takes_ns, share = (np.full(requests, value) for value in (1.0, 0.0, 0.0, 0.0))
    for factor in np.unique(problem.factors):
        for exec_ns, holds in zip(problem.exec_ns * factor, problem.holds, strict=True):
            fits = np.flatnonzero(problem.arrival_ns + exec_ns <= problem.deadline_ns)
            if not fits.size:
                continue
            first_ns, last_ns = problem.arrival_ns[fits], (problem.deadline_ns - exec_ns)[fits]
            at_ns, least = _cheapest_start(edges_ns, integral, first_ns, last_ns, exec_ns[fits])
            value = least / factor / holds[fits]
            better = value < cost[fits]
            at = fits[better]
            cost[at], start_ns[at], takes_ns[at] = value[better], at_ns[better], exec_ns[at]
            share[at] = 1 / factor / holds[at]
    slope = speed * np.diff(edges_ns)
    served = share > 0
    slope -= _overlaps(edges_ns, start_ns[served], start_ns[served] + takes_ns[served], share[served])
    return speed * float(integral[-1]) + float((1 - cost).sum()), slope


def _cheapest_start(
    edges_ns: Floats, integral: Floats, first_ns: Floats, last_ns: Floats, exec_ns: Floats
) -> tuple[Floats, Floats]:
    """Return the starts within [first, last] whose EXEC costs least, and that cost."""

    def cost_of(start_ns: Floats) -> Floats:
        ends, starts = (np.interp(times_ns, edges_ns, integral) for times_ns in (start_ns + exec_ns, start_ns))
        difference: Floats = ends - starts
        return difference

    best_ns = first_ns
    best = cost_of(first_ns)
    width_ns = edges_ns[1] - edges_ns[0]
    for offset in range(int(np.ceil((last_ns - first_ns).max() / width_ns)) + 2):
        for shift_ns in (0.0, exec_ns):
            at = np.ceil((first_ns + shift_ns - edges_ns[0]) / width_ns) + offset
            start_ns = np.minimum(np.maximum(edges_ns[0] + at * width_ns - shift_ns, first_ns), last_ns)
            cost = cost_of(start_ns)
            better = cost < best
            best_ns, best = np.where(better, start_ns, best_ns), np.where(better, cost, best)
    return best_ns, best


def _overlaps(edges_ns: Floats, start_ns: Floats, end_ns: Floats, weight: Floats) -> Floats:
    """Return the sum of weight * overlap of intervals with each bin."""
    points = np.concatenate([start_ns, end_ns])
    signs = np.concatenate([weight, -weight])
    order = np.argsort(points)
    slopes, offsets = (np.concatenate([[0.0], np.cumsum(values[order])]) for values in (signs, signs * points))
    at = np.searchsorted(points[order], edges_ns, side="right")
    return np.diff(edges_ns * slopes[at] - offsets[at])


def resident_bound(workload: Workload, chosen: Ints) -> float:
    """Return the most requests that the pages and LOAD lanes allow."""
    times, slos, models = (
        np.array(values)[chosen] for values in (workload.chunk.times_ns, workload.chunk.slos_ns, workload.chunk.models)
    )
    pages = np.array([model.report.spec.pages for model in workload.models])
    loads_ns = np.array([model.report.profile.load_ns for model in workload.models if model.report.profile])
    bounds = []
    for epoch_ns in EPOCHS_NS:
        span_ns = epoch_ns + int(slos.max())
        room = len(workload.factors) * (workload.cluster.pages + span_ns * float((pages / loads_ns).max()))
        numbers = times // epoch_ns
        epochs = [np.bincount(models[numbers == number], minlength=len(pages)) for number in np.unique(numbers)]
        bounds.append(sum(_most_in_room(counts, pages, room) for counts in epochs))
    return min(bounds)


def _most_in_room(counts: Ints, pages: Floats, room: float) -> float:
    """Return the most requests of models whose pages fit into `room` (fractional knapsack)."""
    order = np.argsort(-counts / pages)
    before = np.concatenate([[0.0], np.cumsum(pages[order])[:-1]])
    return float(np.clip((room - before) / pages[order], 0.0, 1.0) @ counts[order])
