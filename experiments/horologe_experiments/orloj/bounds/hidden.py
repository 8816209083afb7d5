"""Upper bound on the expected number of requests that finish in time when execution times are hidden.

Claim. Let a scheduler know all arrivals, each request's application and the applications' distributions, but of
execution times only those of batches that have ended. For prices u_i >= 0 and buckets of width w it finishes at most
sum(u) + V requests in expectation. V is the best expected total where, from bucket to bucket, a batch of requests that
have arrived by the end of bucket b may be begun, request i earns P(b w + L <= its deadline) - u_i, and the next batch
may begin in bucket b + floor(L / w), L being what a batch of so many requests of these applications takes.

Proof. As for the bound of `lagrangian.py`, the number of finished requests is at most sum(u) + the sum over batches and
their members of (1 if it is in time, else 0) - u_i, since a request is in one batch at most. Execution times are
independent, and when a batch begins none of its members has been run: given all that is known then, the expectation of
its term and the distribution of its end are those of fresh draws. So the scheduler's expected sum is that of a policy
of the relaxed decision process, whose state is the time alone, and V is the best of these. []

A batch has a kind: its last application a, the number n of members of a, and its size. The number of other members is
taken as the least that needs the size, each as short as the shortest distribution of the applications before a. That
makes L smaller and the bound larger, so the bound still holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.orloj.bounds.compiled import compiled, inlined
from horologe_experiments.orloj.bounds.lagrangian import Descent, width_ns
from horologe_experiments.orloj.bounds.problem import problem_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem
    from horologe_experiments.orloj.workloads import Workload

BUCKETS = 48
"""Buckets from an arrival to its deadline."""
FINE = 4
"""Factor by which the buckets of the final evaluation are narrower."""
STEPS = 60
NEAR = 0.95
"""Target of the steps, as a part of the least bound so far, because the optimum is unknown."""
NONE = -1
LARGEST = 16


class Kinds(NamedTuple):
    """Kinds of batches. `chance[kind, j]`: probability of j <= L / w < j + 1. `within[kind, j]`: of L / w < j + 1."""

    application: NDArray[np.int64]
    own: NDArray[np.int64]
    size: NDArray[np.int64]
    more_than: NDArray[np.int64]
    """Largest number of members that does not need the size."""
    chance: NDArray[np.float64]
    within: NDArray[np.float64]
    soonest: NDArray[np.int64]
    """First j with a positive probability; `latest` is the last one."""
    latest: NDArray[np.int64]


def hidden_bound(workload: Workload, steps: int = STEPS) -> float:
    """Return a bound: no scheduler without knowledge of execution times finishes more requests in expectation.

    The expectation is over execution times, given arrivals and applications.
    """
    problem, descent = problem_of(workload), Descent(workload.requests)
    bucket_ns = width_ns(problem, BUCKETS)
    kinds = _kinds(workload, bucket_ns)
    for _ in range(steps):
        total, times = _evaluate(problem, workload.application, kinds, descent.prices, bucket_ns)
        descent.record_bound(total)
        if not descent.move(times, total - NEAR * descent.least):
            break
    bucket_ns = width_ns(problem, BUCKETS * FINE)
    fine, _ = _evaluate(problem, workload.application, _kinds(workload, bucket_ns), descent.best, bucket_ns)
    return min(descent.least, fine)


def _evaluate(
    problem: Problem, application: NDArray[np.int64], kinds: Kinds, prices: NDArray[np.float64], bucket_ns: int
) -> tuple[float, NDArray[np.float64]]:
    """Return the bound at these prices, and the expected number of batches of each request."""
    buckets = int(problem.deadline[-1] // bucket_ns) + 1
    value, kind = np.zeros(buckets + 1), np.full(buckets, NONE)
    members = np.full((buckets, LARGEST), NONE)
    _sweep(problem, application, kinds, prices, bucket_ns, value, kind, members)
    return float(prices.sum() + value[0]), _expected_batches(kinds.chance, kind, members, len(prices))


def _kinds(workload: Workload, bucket_ns: int) -> Kinds:
    """Return all kinds that can finish in time. Longer times count as one bucket too late."""
    batching, columns = workload.batching, workload.slo_ns // bucket_ns + 3
    lines, within = [], []
    for application in range(len(workload.solos_ns)):
        for index, size in enumerate(batching.sizes):
            before = batching.sizes[index - 1] if index else 0
            ends = (np.arange(columns) + 1) * bucket_ns - 1 - batching.fixed_ns[index]
            alone = np.array(
                [_within(solos_ns, ends, batching.per[index]) for solos_ns in workload.solos_ns[: application + 1]]
            )
            for count in range(1 if application else before + 1, size + 1):
                others = alone[:-1].max(0) ** max(0, before + 1 - count) if application else 1.0
                if (together := alone[-1] ** count * others)[-2] > 0:
                    lines.append((application, count, size, before))
                    within.append(np.append(together[:-1], 1.0))
    table, chance = np.array(lines, np.int64).T.copy(), np.diff(np.array(within), axis=1, prepend=0.0)
    soonest, latest = (chance > 0).argmax(1), columns - 1 - (chance[:, ::-1] > 0).argmax(1)
    return Kinds(table[0], table[1], table[2], table[3], chance, np.array(within), soonest, latest)


def _within(solos_ns: NDArray[np.int64], ends_ns: NDArray[np.int64], per: int) -> NDArray[np.float64]:
    """Return the probability that `per * solo` is at most each of `ends_ns`."""
    if not per:
        return (ends_ns >= 0).astype(np.float64)
    return np.searchsorted(np.sort(solos_ns), ends_ns // per, side="right") / len(solos_ns)


@compiled
def _sweep(
    problem: Problem,
    application: NDArray[np.int64],
    kinds: Kinds,
    prices: NDArray[np.float64],
    bucket_ns: int,
    value: NDArray[np.float64],
    kind: NDArray[np.int64],
    members: NDArray[np.int64],
) -> None:
    """Fill `value`, `kind` and `members` from the last bucket to the first."""
    first = last = len(prices)
    chosen, worths, most = np.empty(2 * LARGEST, np.int64), np.empty(2 * LARGEST), np.zeros(LARGEST + 1)
    for bucket in range(len(kind) - 1, -1, -1):
        while last > 0 and problem.arrival[last - 1] >= (bucket + 1) * bucket_ns:
            last -= 1
        while first > 0 and problem.deadline[first - 1] > bucket * bucket_ns:
            first -= 1
        _fill_most(prices, first, last, chosen, worths, most)
        best = value[bucket + 1]
        for index in range(len(kinds.size)):
            then = value[min(len(kind), bucket + max(1, kinds.soonest[index]))]
            if last - first > kinds.more_than[index] and most[kinds.size[index]] + then > best:
                total, count = _best_batch(
                    problem, application, kinds, prices, bucket_ns, value, bucket, index, first, last, chosen, worths
                )
                if total > best + 1e-12:
                    best, kind[bucket] = total, index
                    for member in range(LARGEST):
                        members[bucket, member] = chosen[member] if member < count else NONE
        value[bucket] = best


@inlined
def _fill_most(
    prices: NDArray[np.float64],
    first: int,
    last: int,
    chosen: NDArray[np.int64],
    worths: NDArray[np.float64],
    most: NDArray[np.float64],
) -> None:
    """Fill `most[n]`: the most that n of the requests [first, last) can earn, those of lowest price, all in time."""
    count = 0
    for request in range(first, last):
        count = _insert(chosen, worths, 0, count, LARGEST, request, 1.0 - prices[request])
    for index in range(LARGEST):
        most[index + 1] = most[index] + (worths[index] if index < count else 0.0)


@inlined
def _best_batch(
    problem: Problem,
    application: NDArray[np.int64],
    kinds: Kinds,
    prices: NDArray[np.float64],
    bucket_ns: int,
    value: NDArray[np.float64],
    bucket: int,
    index: int,
    first: int,
    last: int,
    chosen: NDArray[np.int64],
    worths: NDArray[np.float64],
) -> tuple[float, int]:
    """Choose the best batch of a kind. Return its total and the number of its members, which are in `chosen`."""
    wanted, within, own, others = kinds.application[index], kinds.within[index], 0, 0
    room, total, arrived = kinds.size[index] - kinds.own[index], 0.0, 0
    for request in range(first, last):
        arrived += application[request] == wanted
        worth = within[(problem.deadline[request] - bucket * bucket_ns) // bucket_ns] - prices[request]
        if worth > 0 and application[request] == wanted:
            own = _insert(chosen, worths, 0, own, kinds.own[index], request, worth)
        elif worth > 0 and application[request] < wanted:
            others = _insert(chosen, worths, LARGEST, others, room, request, worth)
    if arrived < kinds.own[index] or own + others == 0:
        return -1.0, 0
    for other in range(own):
        total += worths[other]
    for other in range(others):
        chosen[own + other] = chosen[LARGEST + other]
        total += worths[LARGEST + other]
    for later in range(kinds.soonest[index], kinds.latest[index] + 1):
        total += kinds.chance[index, later] * value[min(len(value) - 1, bucket + max(1, later))]
    return total, own + others


@inlined
def _insert(
    chosen: NDArray[np.int64],
    worths: NDArray[np.float64],
    begin: int,
    count: int,
    most: int,
    request: int,
    worth: float,
) -> int:
    """Insert a request into the `most` of highest worth, in order from index `begin`. Return their number."""
    at = begin + count
    if count == most:
        at -= 1
    if most > 0 and (count < most or worths[at] < worth):
        while at > begin and worths[at - 1] < worth:
            worths[at], chosen[at] = worths[at - 1], chosen[at - 1]
            at -= 1
        worths[at], chosen[at] = worth, request
        count = min(count + 1, most)
    return count


@compiled
def _expected_batches(
    chance: NDArray[np.float64], kind: NDArray[np.int64], members: NDArray[np.int64], requests: int
) -> NDArray[np.float64]:
    """Return the expected number of batches of each request, from the probability of reaching each bucket."""
    times, coming = np.zeros(requests), np.zeros(len(kind) + 1)
    coming[0] = 1.0
    for bucket in range(len(kind)):
        if kind[bucket] < 0:
            coming[bucket + 1] += coming[bucket]
            continue
        for request in members[bucket]:
            if request >= 0:
                times[request] += coming[bucket]
        for later in range(chance.shape[1]):
            to = min(len(kind), bucket + max(1, later))
            coming[to] += coming[bucket] * chance[kind[bucket], later]
    return times
