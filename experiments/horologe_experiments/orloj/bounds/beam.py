"""Beam search for a schedule: keeps the most promising partial schedules, extended to about the same time.

The promise of a partial schedule has three parts: the requests it has finished, the prices of the requests it can still
serve, and the value of the remaining time at these prices (`relaxation.Plan`). With good prices the promise is an upper
bound on the final result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.orloj.bounds.choices import (
    BEFORE,
    BRANCHES,
    END,
    LARGEST,
    MEMBERS,
    NONE,
    OVER,
    ROWS,
    START,
    Guide,
    Scratch,
    batches,
    choose,
    copy_batch,
    value_at,
)
from horologe_experiments.orloj.bounds.compiled import compiled, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem

TIME, FINISHED, LAST, FRESH, DIGEST = range(5)
"""Columns of a partial schedule. TIME: its end. FINISHED: requests served. LAST: row of its last batch in the table of
stored batches, or NONE. FRESH: 1 while its last batch is in `newest`. DIGEST: hash of the requests it has served."""


class States(NamedTuple):
    """Partial schedules, one per row."""

    table: NDArray[np.int64]
    promise: NDArray[np.float64]
    newest: NDArray[np.int64]
    """Last batches that are not in the table of stored batches yet."""
    served: NDArray[np.bool_]
    reached: NDArray[np.int64]
    """Array of one number: the first request that no state has served."""


def search(
    problem: Problem, guide: Guide, width: int, marks: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Search with `width` partial schedules. Return the number of finished requests, and start and end of each or NONE.

    `marks` holds a random number per request, for hashes of sets of requests.
    """
    requests, lines = len(problem.arrival), width * (BRANCHES + 1)
    stride = int(problem.fixed[0] + problem.per[0] * problem.solo.min())
    states = States(
        np.zeros((lines, DIGEST + 1), np.int64),
        np.zeros(lines),
        batches(lines),
        np.zeros((lines, requests), np.bool_),
        np.zeros(1, np.int64),
    )
    states.table[0, LAST] = NONE
    states.promise[0] = guide.value[0] + guide.prices.sum()
    scratch = Scratch(np.zeros(requests, np.int64), np.zeros(LARGEST, np.int64), np.zeros(BRANCHES), batches(BRANCHES))
    stored = batches(width * int(2 + problem.deadline[-1] // stride))
    count = _run(problem, guide, width, stride, marks, states, stored, scratch)
    best = states.table[:count, FINISHED].argmax()
    start, end = np.full(requests, NONE), np.full(requests, NONE)
    line = states.table[best, LAST]
    while line >= 0:
        members = stored[line, MEMBERS : MEMBERS + stored[line, ROWS]]
        start[members], end[members] = stored[line, START], stored[line, END]
        line = stored[line, BEFORE]
    return int(states.table[best, FINISHED]), start, end


@compiled
def _run(
    problem: Problem,
    guide: Guide,
    width: int,
    stride: int,
    marks: NDArray[np.int64],
    states: States,
    stored: NDArray[np.int64],
    scratch: Scratch,
) -> int:
    """Extend the states until nothing can be added to any of them. Return the number of states."""
    count, lines, until, oldest, earliest = 1, 0, 0, 0, 0
    while earliest < OVER:
        until = max(until, earliest) + stride
        index = 0
        while index < count:
            if states.table[index, TIME] < until:
                count = _advance(problem, guide, marks, states, index, count, oldest, scratch)
            else:
                index += 1
        count, lines = _select(states, count, width, oldest, stored, lines)
        earliest = OVER
        for index in range(count):
            earliest = min(earliest, states.table[index, TIME])
        while oldest < len(problem.arrival) and problem.deadline[oldest] <= earliest:
            oldest += 1
    return count


@compiled
def _advance(
    problem: Problem,
    guide: Guide,
    marks: NDArray[np.int64],
    states: States,
    index: int,
    count: int,
    oldest: int,
    scratch: Scratch,
) -> int:
    """Replace a state by its best child and append its other children. Return the new number of states."""
    first, now = oldest, states.table[index, TIME]
    while first < len(problem.arrival) and (states.served[index, first] or problem.deadline[first] <= now):
        first += 1
    if first == len(problem.arrival):
        states.table[index, TIME] = OVER
        return count
    choices, until = choose(problem, guide, states.served[index], first, now, scratch)
    if choices == 0:
        states.table[index, TIME] = until
        return count
    base = states.promise[index] - value_at(guide, now)
    for choice in range(choices - 1, -1, -1):
        child = index if choice == 0 else count
        if choice > 0:
            count += 1
            _copy(states, index, child, oldest)
        states.promise[child] = base + scratch.worth[choice]
        _append_batch(states, child, scratch.choices, choice, marks)
    return count


@inlined
def _append_batch(
    states: States, child: int, choices: NDArray[np.int64], choice: int, marks: NDArray[np.int64]
) -> None:
    copy_batch(choices, choice, states.newest, child)
    states.newest[child, BEFORE] = states.table[child, LAST]
    states.table[child, FRESH] = 1
    states.table[child, TIME] = choices[choice, END]
    states.table[child, FINISHED] += choices[choice, ROWS]
    for index in range(choices[choice, ROWS]):
        request = choices[choice, MEMBERS + index]
        states.served[child, request] = True
        states.reached[0] = max(states.reached[0], request + 1)
        states.table[child, DIGEST] ^= marks[request]


@compiled
def _select(
    states: States, count: int, width: int, oldest: int, stored: NDArray[np.int64], lines: int
) -> tuple[int, int]:
    """Keep the most promising states, one per set of served requests, and store their last batches.

    Return the number of states and of stored batches.
    """
    chosen, count_chosen, table, keeps = np.empty(width, np.int64), 0, states.table, np.zeros(count, np.bool_)
    for state in np.argsort(-states.promise[:count], kind="mergesort"):
        twin = False
        for index in range(count_chosen):
            other = chosen[index]
            twin = twin or (table[other, DIGEST] == table[state, DIGEST] and table[other, TIME] <= table[state, TIME])
        if not twin:
            chosen[count_chosen], keeps[state] = state, True
            count_chosen += 1
        if count_chosen == width:
            break
    index = 0
    for state in range(count):
        if keeps[state]:
            if state != index:
                _copy(states, state, index, oldest)
            if table[index, FRESH]:
                copy_batch(states.newest, index, stored, lines)
                table[index, LAST], table[index, FRESH] = lines, 0
                lines += 1
            index += 1
    return count_chosen, lines


@inlined
def _copy(states: States, source: int, target: int, oldest: int) -> None:
    states.promise[target] = states.promise[source]
    for column in range(DIGEST + 1):
        states.table[target, column] = states.table[source, column]
    if states.table[source, FRESH]:
        copy_batch(states.newest, source, states.newest, target)
    for request in range(oldest, states.reached[0]):
        states.served[target, request] = states.served[source, request]
