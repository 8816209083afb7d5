"""The next batches of a partial schedule: the best over all sizes, longest requests and start times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.orloj.bounds.compiled import compiled, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem

NONE = -1
OVER = 1 << 62
"""End time of a partial schedule to which nothing can be added."""
LARGEST = 16
BRANCHES = 8
"""Largest number of next batches of a partial schedule."""
GOODWILL = 0.02
"""Least value of serving a request, so that requests without competition are also served."""
START, END, ROWS, BEFORE, MEMBERS = range(5)
"""Columns of a batch. START, END: its times. ROWS: number of members. BEFORE: row of the previous batch, or NONE.
MEMBERS: first of the columns with its members. Through BEFORE, a table of batches holds many schedules as a forest."""


class Guide(NamedTuple):
    """Prices of requests. `value[bucket]` is the value of the time from that bucket on."""

    prices: NDArray[np.float64]
    value: NDArray[np.float64]
    bucket_ns: int


class Scratch(NamedTuple):
    """Buffers of one expansion."""

    waiting: NDArray[np.int64]
    members: NDArray[np.int64]
    worth: NDArray[np.float64]
    choices: NDArray[np.int64]


def batches(lines: int) -> NDArray[np.int64]:
    """Return an empty table of batches."""
    return np.zeros((lines, MEMBERS + LARGEST), np.int64)


@compiled
def choose(
    problem: Problem, guide: Guide, served: NDArray[np.bool_], first: int, now: int, scratch: Scratch
) -> tuple[int, int]:
    """Write the best next batches to `scratch`. Return their number and, if it is 0, the time of the next attempt.

    A batch starts at `now` or when a later request arrives. A start time is tried only while the value of the remaining
    time exceeds the worst choice so far, and before the first choice would end.
    """
    requests = len(problem.arrival)
    start, last, choice_count, soonest = max(now, problem.arrival[first]), first, 0, OVER
    while True:
        while last < requests and problem.arrival[last] <= start:
            last += 1
        count = _list_waiting(problem, guide, served, first, last, start, scratch.waiting)
        choice_count, soonest = _try_batches(
            problem, guide, served, first, last, now, start, count, choice_count, soonest, scratch
        )
        if last == requests:
            return choice_count, OVER
        if choice_count == 0:
            return 0, problem.arrival[last]
        start = problem.arrival[last]
        if start >= soonest or (choice_count == BRANCHES and value_at(guide, start) <= scratch.worth[choice_count - 1]):
            return choice_count, start


@inlined
def _list_waiting(
    problem: Problem,
    guide: Guide,
    served: NDArray[np.bool_],
    first: int,
    last: int,
    start: int,
    waiting: NDArray[np.int64],
) -> int:
    """List the requests that can be served from `start` on, lowest price first. Return their number."""
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
def _try_batches(
    problem: Problem,
    guide: Guide,
    served: NDArray[np.bool_],
    first: int,
    last: int,
    now: int,
    start: int,
    count: int,
    choice_count: int,
    soonest: int,
    scratch: Scratch,
) -> tuple[int, int]:
    """Try all sizes and longest requests of batches that start then. Return the number of choices and the first end."""
    for index in range(count):
        cap = scratch.waiting[index]
        for size in range(len(problem.sizes)):
            end = start + problem.fixed[size] + problem.per[size] * problem.solo[cap]
            if end > problem.deadline[cap]:
                break
            taken, worth, true = _fill_batch(
                problem, guide, served, first, last, now, end, problem.solo[cap], problem.sizes[size], count, scratch
            )
            if size > 0 and taken <= problem.sizes[size - 1]:
                break
            if true:
                soonest = min(soonest, end)
                choice_count = _insert_choice(scratch, choice_count, worth + value_at(guide, end), start, end, taken)
    return choice_count, soonest


@inlined
def _fill_batch(
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
    """Choose the members of a batch. Return their number, their worth, and whether one is as long as `longest`.

    Requests that cannot be served after the batch come first, then requests by price. The prices of all requests that
    can no longer be served afterwards are subtracted from the worth, because they were part of the promise.
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
    for index in range(count):
        if taken == size:
            break
        request = scratch.waiting[index]
        if problem.solo[request] <= longest and problem.deadline[request] >= end + problem.solo[request]:
            scratch.members[taken] = request
            taken += 1
            worth += max(1.0 - guide.prices[request], GOODWILL)
            true = true or problem.solo[request] == longest
    return taken, worth, true


@inlined
def _insert_choice(scratch: Scratch, choice_count: int, worth: float, start: int, end: int, taken: int) -> int:
    """Insert the batch in `scratch.members` if it is among the best. Return the number of choices."""
    if choice_count == BRANCHES and worth <= scratch.worth[choice_count - 1]:
        return choice_count
    at, choices = min(choice_count, BRANCHES - 1), scratch.choices
    while at > 0 and scratch.worth[at - 1] < worth:
        scratch.worth[at] = scratch.worth[at - 1]
        copy_batch(choices, at - 1, choices, at)
        at -= 1
    scratch.worth[at] = worth
    choices[at, START], choices[at, END], choices[at, ROWS] = start, end, taken
    for index in range(taken):
        choices[at, MEMBERS + index] = scratch.members[index]
    return min(choice_count + 1, BRANCHES)


@inlined
def copy_batch(source: NDArray[np.int64], line: int, target: NDArray[np.int64], to: int) -> None:
    """Copy a row of a table of batches."""
    target[to, START], target[to, END] = source[line, START], source[line, END]
    target[to, ROWS], target[to, BEFORE] = source[line, ROWS], source[line, BEFORE]
    for index in range(source[line, ROWS]):
        target[to, MEMBERS + index] = source[line, MEMBERS + index]


@inlined
def value_at(guide: Guide, now: int) -> float:
    """Return the value of the time from `now` on, interpolated between buckets."""
    bucket = now // guide.bucket_ns
    if bucket >= len(guide.value) - 1:
        return 0.0
    part = (now - bucket * guide.bucket_ns) / guide.bucket_ns
    return float(guide.value[bucket] + part * (guide.value[bucket + 1] - guide.value[bucket]))
