"""The next batches of a partial schedule: the best of all sizes, longest requests and times to begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.orloj.bounds.compiled import compiled, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem

NONE = -1
OVER = 1 << 62
"""The time of a partial schedule to which nothing can be added."""
LARGEST = 16
BRANCHES = 8
"""At most so many next batches of each partial schedule."""
GOODWILL = 0.02
"""The least that serving a request counts for, so that those are served too that nobody competes with."""
START, END, ROWS, BEFORE, MEMBERS = range(5)
"""Columns of a batch: its times, how many it holds, the line of the batch before it or NONE, from there on its members.

A table of batches is a schedule, or all that a search has kept: a forest."""


class Guide(NamedTuple):
    """`value`: by bucket, what the time from then on is worth."""

    prices: NDArray[np.float64]
    value: NDArray[np.float64]
    bucket_ns: int


class Scratch(NamedTuple):
    """Room for one expansion."""

    waiting: NDArray[np.int64]
    members: NDArray[np.int64]
    worth: NDArray[np.float64]
    choices: NDArray[np.int64]


def batches(lines: int) -> NDArray[np.int64]:
    """An empty table of them."""
    return np.zeros((lines, MEMBERS + LARGEST), np.int64)


@compiled
def choose(
    problem: Problem, guide: Guide, served: NDArray[np.bool_], first: int, now: int, scratch: Scratch
) -> tuple[int, int]:
    """The best next batches into `scratch`: how many; and if there are none, the time to look again.

    They start at `now` or when one of the next requests arrives, as long as what is left of time then is worth more
    than the least of those found, and before the first of them would have ended.
    """
    requests = len(problem.arrival)
    start, last, found, soonest = max(now, problem.arrival[first]), first, 0, OVER
    while True:
        while last < requests and problem.arrival[last] <= start:
            last += 1
        count = _waiting(problem, guide, served, first, last, start, scratch.waiting)
        found, soonest = _try(problem, guide, served, first, last, now, start, count, found, soonest, scratch)
        if last == requests:
            return found, OVER
        if found == 0:
            return 0, problem.arrival[last]
        start = problem.arrival[last]
        if start >= soonest or (found == BRANCHES and value_at(guide, start) <= scratch.worth[found - 1]):
            return found, start


@inlined
def _waiting(
    problem: Problem,
    guide: Guide,
    served: NDArray[np.bool_],
    first: int,
    last: int,
    start: int,
    waiting: NDArray[np.int64],
) -> int:
    """Requests that could be served from `start` on, the lowest price first; how many."""
    count = 0
    for request in range(first, last):
        if not served[request] and problem.deadline[request] >= start + problem.solo[request]:
            at = count
            while at > 0 and guide.prices[waiting[at - 1]] > guide.prices[request]:
                waiting[at] = waiting[at - 1]
                at -= 1
            waiting[at] = request
            count += 1
    return count


@inlined
def _try(
    problem: Problem,
    guide: Guide,
    served: NDArray[np.bool_],
    first: int,
    last: int,
    now: int,
    start: int,
    count: int,
    found: int,
    soonest: int,
    scratch: Scratch,
) -> tuple[int, int]:
    """All sizes and longest requests of batches that start then; how many choices there are now, the first end."""
    for place in range(count):
        cap = scratch.waiting[place]
        for size in range(len(problem.sizes)):
            end = start + problem.fixed[size] + problem.per[size] * problem.solo[cap]
            if end > problem.deadline[cap]:
                break
            taken, worth, true = _fill(
                problem, guide, served, first, last, now, end, problem.solo[cap], problem.sizes[size], count, scratch
            )
            if size > 0 and taken <= problem.sizes[size - 1]:
                break
            if true:
                soonest = min(soonest, end)
                found = _enter(scratch, found, worth + value_at(guide, end), start, end, taken)
    return found, soonest


@inlined
def _fill(
    problem: Problem,
    guide: Guide,
    served: NDArray[np.bool_],
    first: int,
    last: int,
    now: int,
    end: int,
    longest: int,
    size: int,
    count: int,
    scratch: Scratch,
) -> tuple[int, float, bool]:
    """The best members of a batch: how many, their worth, and whether one of them is as long as `longest`.

    First those that cannot be served after it, then by price.
    From the worth go the prices of all those that can no longer be served after it, for they were part of the promise.
    """
    taken, worth, true = 0, 0.0, False
    for request in range(first, last):
        deadline, solo = problem.deadline[request], problem.solo[request]
        if served[request] or deadline >= end + solo or deadline < now + solo:
            continue
        worth -= guide.prices[request]
        if taken < size and solo <= longest and deadline >= end:
            scratch.members[taken] = request
            taken += 1
            worth += 1.0
            true = true or solo == longest
    for place in range(count):
        if taken == size:
            break
        request = scratch.waiting[place]
        if problem.solo[request] <= longest and problem.deadline[request] >= end + problem.solo[request]:
            scratch.members[taken] = request
            taken += 1
            worth += max(1.0 - guide.prices[request], GOODWILL)
            true = true or problem.solo[request] == longest
    return taken, worth, true


@inlined
def _enter(scratch: Scratch, found: int, worth: float, start: int, end: int, taken: int) -> int:
    """Keep the batch in `scratch.members` if it is among the best; how many there are."""
    if found == BRANCHES and worth <= scratch.worth[found - 1]:
        return found
    at, choices = min(found, BRANCHES - 1), scratch.choices
    while at > 0 and scratch.worth[at - 1] < worth:
        scratch.worth[at] = scratch.worth[at - 1]
        move(choices, at - 1, choices, at)
        at -= 1
    scratch.worth[at] = worth
    choices[at, START], choices[at, END], choices[at, ROWS] = start, end, taken
    for place in range(taken):
        choices[at, MEMBERS + place] = scratch.members[place]
    return min(found + 1, BRANCHES)


@inlined
def move(source: NDArray[np.int64], line: int, target: NDArray[np.int64], to: int) -> None:
    target[to, START], target[to, END] = source[line, START], source[line, END]
    target[to, ROWS], target[to, BEFORE] = source[line, ROWS], source[line, BEFORE]
    for place in range(source[line, ROWS]):
        target[to, MEMBERS + place] = source[line, MEMBERS + place]


@inlined
def value_at(guide: Guide, now: int) -> float:
    """Between the buckets, too."""
    bucket = now // guide.bucket_ns
    if bucket >= len(guide.value) - 1:
        return 0.0
    part = (now - bucket * guide.bucket_ns) / guide.bucket_ns
    return float(guide.value[bucket] + part * (guide.value[bucket + 1] - guide.value[bucket]))
