"""Beam search for a schedule: the most promising partial schedules, all brought forward to about the same time.

A partial schedule promises what it has finished, the prices of the requests it can still serve, and what the rest of
time is worth at these prices (`relaxation.Plan`): with good prices that is a bound on what it can come to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_sim.orloj.compiled import compiled, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_sim.orloj.problem import Problem

NONE = -1
OVER = 1 << 62
"""The time of a partial schedule to which nothing can be added."""
LARGEST = 16
BRANCHES = 8
"""At most so many next batches of each partial schedule."""
GOODWILL = 0.02
"""The least that serving a request counts for, so that those are served too that nobody competes with."""


class Guide(NamedTuple):
    """`value`: by bucket, what the time from then on is worth."""

    prices: NDArray[np.float64]
    value: NDArray[np.float64]
    bucket_ns: int


START, END, ROWS, BEFORE, MEMBERS = range(5)
"""Columns of a batch: its times, how many it holds, the line of the batch before it or NONE, from there on its members.

A table of batches is a schedule, or all that a search has kept: a forest."""
TIME, FINISHED, LAST, FRESH, DIGEST = range(5)
"""Columns of a partial schedule: the line of its last batch among those kept or NONE, 1 if that is still in `newest`,
and a digest of what it has served."""


class States(NamedTuple):
    """Partial schedules, one a line."""

    table: NDArray[np.int64]
    promise: NDArray[np.float64]
    newest: NDArray[np.int64]
    """Batches that are not kept yet."""
    served: NDArray[np.bool_]
    reached: NDArray[np.int64]
    """One number: no state has served a request from here on."""


class Scratch(NamedTuple):
    """Room for one expansion."""

    waiting: NDArray[np.int64]
    members: NDArray[np.int64]
    worth: NDArray[np.float64]
    choices: NDArray[np.int64]


def search(
    problem: Problem, guide: Guide, width: int, marks: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """The best schedule found, `width` partial ones at a time: how many finish; start and end of each or NONE.

    `marks`: a random number for each request.
    """
    requests, lines = len(problem.arrival), width * (BRANCHES + 1)
    stride = int(problem.fixed[0] + problem.per[0] * problem.solo.min())
    states = States(
        np.zeros((lines, DIGEST + 1), np.int64), np.zeros(lines), _batches(lines),
        np.zeros((lines, requests), np.bool_), np.zeros(1, np.int64),
    )  # fmt: skip
    states.table[0, LAST] = NONE
    states.promise[0] = guide.value[0] + guide.prices.sum()
    scratch = Scratch(np.zeros(requests, np.int64), np.zeros(LARGEST, np.int64), np.zeros(BRANCHES), _batches(BRANCHES))
    kept = _batches(width * int(2 + problem.deadline[-1] // stride))
    count = _run(problem, guide, width, stride, marks, states, kept, scratch)
    best = states.table[:count, FINISHED].argmax()
    start, end = np.full(requests, NONE), np.full(requests, NONE)
    line = states.table[best, LAST]
    while line >= 0:
        members = kept[line, MEMBERS : MEMBERS + kept[line, ROWS]]
        start[members], end[members] = kept[line, START], kept[line, END]
        line = kept[line, BEFORE]
    return int(states.table[best, FINISHED]), start, end


def _batches(lines: int) -> NDArray[np.int64]:
    return np.zeros((lines, MEMBERS + LARGEST), np.int64)


@compiled
def _run(
    problem: Problem, guide: Guide, width: int, stride: int, marks: NDArray[np.int64], states: States,
    kept: NDArray[np.int64], scratch: Scratch,
) -> int:  # fmt: skip
    """Until nothing can be added to any state; how many there are."""
    count, lines, until, oldest, earliest = 1, 0, 0, 0, 0
    while earliest < OVER:
        until = max(until, earliest) + stride
        place = 0
        while place < count:
            if states.table[place, TIME] < until:
                count = _advance(problem, guide, marks, states, place, count, oldest, scratch)
            else:
                place += 1
        count, lines = _select(states, count, width, oldest, kept, lines)
        earliest = OVER
        for place in range(count):
            earliest = min(earliest, states.table[place, TIME])
        while oldest < len(problem.arrival) and problem.deadline[oldest] <= earliest:
            oldest += 1
    return count


@compiled
def _advance(
    problem: Problem, guide: Guide, marks: NDArray[np.int64], states: States, place: int, count: int, oldest: int,
    scratch: Scratch,
) -> int:  # fmt: skip
    """Put its children in the place of a state, the others behind the rest; how many states there are then."""
    first, now = oldest, states.table[place, TIME]
    while first < len(problem.arrival) and (states.served[place, first] or problem.deadline[first] <= now):
        first += 1
    if first == len(problem.arrival):
        states.table[place, TIME] = OVER
        return count
    choices, until = _choose(problem, guide, states.served[place], first, now, scratch)
    if choices == 0:
        states.table[place, TIME] = until
        return count
    base = states.promise[place] - _value(guide, now)
    for choice in range(choices - 1, -1, -1):
        child = place if choice == 0 else count
        if choice > 0:
            count += 1
            _copy(states, place, child, oldest)
        states.promise[child] = base + scratch.worth[choice]
        _take(states, child, scratch.choices, choice, marks)
    return count


@compiled
def _choose(
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
        if start >= soonest or (found == BRANCHES and _value(guide, start) <= scratch.worth[found - 1]):
            return found, start


@inlined
def _waiting(
    problem: Problem, guide: Guide, served: NDArray[np.bool_], first: int, last: int, start: int,
    waiting: NDArray[np.int64],
) -> int:  # fmt: skip
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
    problem: Problem, guide: Guide, served: NDArray[np.bool_], first: int, last: int, now: int, start: int, count: int,
    found: int, soonest: int, scratch: Scratch,
) -> tuple[int, int]:  # fmt: skip
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
                found = _enter(scratch, found, worth + _value(guide, end), start, end, taken)
    return found, soonest


@inlined
def _fill(
    problem: Problem, guide: Guide, served: NDArray[np.bool_], first: int, last: int, now: int, end: int, longest: int,
    size: int, count: int, scratch: Scratch,
) -> tuple[int, float, bool]:  # fmt: skip
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
        _move(choices, at - 1, choices, at)
        at -= 1
    scratch.worth[at] = worth
    choices[at, START], choices[at, END], choices[at, ROWS] = start, end, taken
    for place in range(taken):
        choices[at, MEMBERS + place] = scratch.members[place]
    return min(found + 1, BRANCHES)


@inlined
def _take(states: States, child: int, choices: NDArray[np.int64], choice: int, marks: NDArray[np.int64]) -> None:
    _move(choices, choice, states.newest, child)
    states.newest[child, BEFORE] = states.table[child, LAST]
    states.table[child, FRESH] = 1
    states.table[child, TIME] = choices[choice, END]
    states.table[child, FINISHED] += choices[choice, ROWS]
    for place in range(choices[choice, ROWS]):
        request = choices[choice, MEMBERS + place]
        states.served[child, request] = True
        states.reached[0] = max(states.reached[0], request + 1)
        states.table[child, DIGEST] ^= marks[request]


@compiled
def _select(
    states: States, count: int, width: int, oldest: int, kept: NDArray[np.int64], lines: int
) -> tuple[int, int]:
    """Keep the most promising states, one of those that have served the same; write down their batches."""
    chosen, many, table, keeps = np.empty(width, np.int64), 0, states.table, np.zeros(count, np.bool_)
    for state in np.argsort(-states.promise[:count], kind="mergesort"):
        twin = False
        for place in range(many):
            other = chosen[place]
            twin = twin or (table[other, DIGEST] == table[state, DIGEST] and table[other, TIME] <= table[state, TIME])
        if not twin:
            chosen[many], keeps[state] = state, True
            many += 1
        if many == width:
            break
    place = 0
    for state in range(count):
        if keeps[state]:
            if state != place:
                _copy(states, state, place, oldest)
            if table[place, FRESH]:
                _move(states.newest, place, kept, lines)
                table[place, LAST], table[place, FRESH] = lines, 0
                lines += 1
            place += 1
    return many, lines


@inlined
def _copy(states: States, source: int, target: int, oldest: int) -> None:
    states.promise[target] = states.promise[source]
    for column in range(DIGEST + 1):
        states.table[target, column] = states.table[source, column]
    if states.table[source, FRESH]:
        _move(states.newest, source, states.newest, target)
    for request in range(oldest, states.reached[0]):
        states.served[target, request] = states.served[source, request]


@inlined
def _move(source: NDArray[np.int64], line: int, target: NDArray[np.int64], to: int) -> None:
    target[to, START], target[to, END] = source[line, START], source[line, END]
    target[to, ROWS], target[to, BEFORE] = source[line, ROWS], source[line, BEFORE]
    for place in range(source[line, ROWS]):
        target[to, MEMBERS + place] = source[line, MEMBERS + place]


@inlined
def _value(guide: Guide, now: int) -> float:
    """Between the buckets, too."""
    bucket = now // guide.bucket_ns
    if bucket >= len(guide.value) - 1:
        return 0.0
    part = (now - bucket * guide.bucket_ns) / guide.bucket_ns
    return float(guide.value[bucket] + part * (guide.value[bucket + 1] - guide.value[bucket]))
