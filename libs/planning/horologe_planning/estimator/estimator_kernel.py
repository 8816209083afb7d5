"""The event loop of the estimator, compiled with numba. `estimator.py` states its rules.

Arrays have one row per query, stage or group of replicas. A query is known by its place in the trace, a stage by its
place in the structure, a group by its place in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from horologe_common.service.settings import SettingsError

try:
    import numba
except ImportError as error:
    raise SettingsError("numba: not installed: pip install 'horologe[planner]'") from error

F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray

NOW, ARRIVED, IN_FLIGHT, STARTED, MISSED, ANSWERED = range(6)
"""Entries of `State.counters`: time, queries that have arrived, running batches, batches started so far, queries that
missed the SLO, queries that are complete."""
END, NUMBER, GROUP, FIRST, LAST = range(5)
"""Columns of `State.batches`: end of the batch, its number, group, and its range of `State.queue`."""
HEAD, TAIL, LONGEST = range(3)
"""Columns of `State.queues`: range of `State.queue` that waits, and the longest queue so far."""
FREE, LIVE, SURPLUS = range(3)
"""Columns of `State.replicas`: idle; idle and busy; busy ones to remove when their batch ends."""
BATCHES, CALLS, BUSY_NS, RELEASED_NS = range(4)
"""Columns of `State.totals`: batches and calls started, their time, and the sum of the times of removals."""
REACHED, FULL, STOPPED = range(3)
"""Results of `advance`: the time is reached; `State.batches` is full; more queries than allowed have missed the SLO."""
RANK_BITS = 8
"""`State.queue` holds query << RANK_BITS | rank of the input."""


class Problem(NamedTuple):
    """Constants of a run."""

    arrivals_ns: Array
    """(queries,), ascending."""
    calls: Array
    """(queries, stages): calls of each query, 0 for a stage that it does not visit."""
    first_child: Array
    """(stages + 1,): ranges of `children`."""
    children: Array
    stage_of: Array
    """(groups,): stage of each group."""
    batch: Array
    """(groups,): largest batch."""
    latency_ns: Array
    """(groups, rows of the batch, ranks)."""
    ranks: Array
    """(stages,): number of ranks, 1 for times that do not depend on the input."""
    seed: Any
    """uint64, for the ranks."""
    slo_ns: int
    missed_limit: int


class State(NamedTuple):
    """State of a run."""

    counters: Array
    parents: Array
    """(queries, stages): visited parents that are not complete."""
    unanswered: Array
    """(queries, stages): calls without an answer."""
    open_stages: Array
    """(queries,): visited stages that are not complete."""
    latency_ns: Array
    """(queries,): -1 until the query is complete."""
    queue: Array
    queues: Array
    replicas: Array
    totals: Array
    batches: Array
    """Heap of running batches, ordered by end and number."""


def compiled(function: F) -> F:
    """Compile a function that allocates nothing, without reference counts of arrays: they took 85% of its time."""
    options: dict[str, Any] = {"cache": True, "_nrt": False}
    return cast("F", numba.njit(**options)(function))


def inlined(function: F) -> F:
    """Compile a function into its callers: a call that passes this many arrays costs as much as its work."""
    return cast("F", numba.njit(inline="always")(function))


@compiled
def input_rank(seed: Any, query: int, stage: int, call: int, ranks: int) -> Any:
    """Return the rank of a call's input, from 0 to `ranks` - 1 with equal probability (SplitMix64)."""
    value = seed + np.uint64(query) * np.uint64(0x9E3779B97F4A7C15)
    value += np.uint64(stage * 65536 + call + 1) * np.uint64(0xD1B54A32D192ED03)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value = value ^ (value >> np.uint64(31))
    return np.int64((value >> np.uint64(40)) % np.uint64(ranks))


@inlined
def enqueue(problem: Problem, state: State, query: int, stage: int) -> None:
    """Put all calls of a query to a stage at the end of the stage's queue."""
    tail = state.queues[stage, TAIL]
    for call in range(problem.calls[query, stage]):
        rank = 0
        if problem.ranks[stage] > 1:
            rank = input_rank(problem.seed, query, stage, call, problem.ranks[stage])
        state.queue[tail] = query << RANK_BITS | rank
        tail += 1
    state.queues[stage, TAIL] = tail
    waiting = tail - state.queues[stage, HEAD]
    if waiting > state.queues[stage, LONGEST]:
        state.queues[stage, LONGEST] = waiting


@inlined
def complete_query(problem: Problem, state: State, query: int, now_ns: int) -> None:
    latency_ns = now_ns - problem.arrivals_ns[query]
    state.latency_ns[query] = latency_ns
    state.counters[ANSWERED] += 1
    if latency_ns > problem.slo_ns:
        state.counters[MISSED] += 1


@inlined
def complete_stage(problem: Problem, state: State, query: int, stage: int, now_ns: int) -> None:
    """Complete a stage of a query: start the children that waited for it alone, or complete the query."""
    state.open_stages[query] -= 1
    if state.open_stages[query] == 0:
        complete_query(problem, state, query, now_ns)
        return
    for place in range(problem.first_child[stage], problem.first_child[stage + 1]):
        child = problem.children[place]
        if problem.calls[query, child] > 0:
            state.parents[query, child] -= 1
            if state.parents[query, child] == 0:
                enqueue(problem, state, query, child)


@inlined
def enter(problem: Problem, state: State, query: int, now_ns: int) -> None:
    """Start the stages of a new query that wait for no other."""
    if state.open_stages[query] == 0:
        complete_query(problem, state, query, now_ns)
    for stage in range(problem.calls.shape[1]):
        if problem.calls[query, stage] > 0 and state.parents[query, stage] == 0:
            enqueue(problem, state, query, stage)


@inlined
def move_batch(heap: Array, source: int, target: int) -> None:
    """Copy a row of the heap. A slice of a row takes several times as long."""
    for column in range(5):
        heap[target, column] = heap[source, column]


@inlined
def pop_batch(state: State) -> None:
    """Remove the first batch of the heap."""
    heap = state.batches
    state.counters[IN_FLIGHT] -= 1
    size = state.counters[IN_FLIGHT]
    end_ns, number = heap[size, END], heap[size, NUMBER]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap[other, END] < heap[child, END]
            or (heap[other, END] == heap[child, END] and heap[other, NUMBER] < heap[child, NUMBER])
        ):
            child = other
        if heap[child, END] > end_ns or (heap[child, END] == end_ns and heap[child, NUMBER] > number):
            break
        move_batch(heap, child, place)
        place = child
    move_batch(heap, size, place)


@inlined
def push_batch(state: State, end_ns: int, group: int, first: int, last: int) -> None:
    """Add a batch to the heap. Its number is larger than all before, so it goes behind an equal end."""
    heap, place = state.batches, state.counters[IN_FLIGHT]
    state.counters[IN_FLIGHT] += 1
    while place > 0 and heap[(place - 1) >> 1, END] > end_ns:
        move_batch(heap, (place - 1) >> 1, place)
        place = (place - 1) >> 1
    heap[place, END], heap[place, NUMBER], heap[place, GROUP] = end_ns, state.counters[STARTED], group
    heap[place, FIRST], heap[place, LAST] = first, last
    state.counters[STARTED] += 1


@inlined
def finish_batch(problem: Problem, state: State, now_ns: int) -> None:
    """End the first batch of the heap: free its replica and answer its calls in their order."""
    group, first, last = state.batches[0, GROUP], state.batches[0, FIRST], state.batches[0, LAST]
    stage = problem.stage_of[group]
    pop_batch(state)
    if state.replicas[group, SURPLUS] > 0:
        state.replicas[group, SURPLUS] -= 1
        state.replicas[group, LIVE] -= 1
        state.totals[group, RELEASED_NS] += now_ns
    else:
        state.replicas[group, FREE] += 1
    for place in range(first, last):
        query = state.queue[place] >> RANK_BITS
        state.unanswered[query, stage] -= 1
        if state.unanswered[query, stage] == 0:
            complete_stage(problem, state, query, stage, now_ns)


@inlined
def start_batches(problem: Problem, state: State, now_ns: int) -> bool:
    """Start a batch on every free replica of a stage with waiting calls. Return False if the heap is full."""
    for group in range(problem.stage_of.shape[0]):
        stage = problem.stage_of[group]
        while state.replicas[group, FREE] > 0 and state.queues[stage, HEAD] < state.queues[stage, TAIL]:
            if state.counters[IN_FLIGHT] == state.batches.shape[0]:
                return False
            first = state.queues[stage, HEAD]
            size = min(problem.batch[group], state.queues[stage, TAIL] - first)
            rank = 0
            if problem.ranks[stage] > 1:
                for place in range(first, first + size):
                    rank = max(rank, state.queue[place] & ((1 << RANK_BITS) - 1))
            latency_ns = problem.latency_ns[group, size, rank]
            push_batch(state, now_ns + latency_ns, group, first, first + size)
            state.queues[stage, HEAD] = first + size
            state.replicas[group, FREE] -= 1
            state.totals[group, BATCHES] += 1
            state.totals[group, CALLS] += size
            state.totals[group, BUSY_NS] += latency_ns
    return True


@compiled
def advance(problem: Problem, state: State, until_ns: int) -> int:
    """Process all events before `until_ns`. Return `REACHED`, `FULL` or `STOPPED`. After `FULL` it can be resumed."""
    counters, batches, arrivals_ns = state.counters, state.batches, problem.arrivals_ns
    count = arrivals_ns.shape[0]
    if counters[NOW] < until_ns and not start_batches(problem, state, counters[NOW]):
        return FULL
    while counters[IN_FLIGHT] > 0 or counters[ARRIVED] < count:
        now_ns = until_ns
        if counters[IN_FLIGHT] > 0:
            now_ns = min(now_ns, batches[0, END])
        if counters[ARRIVED] < count:
            now_ns = min(now_ns, arrivals_ns[counters[ARRIVED]])
        if now_ns >= until_ns:
            return REACHED
        counters[NOW] = now_ns
        while counters[IN_FLIGHT] > 0 and batches[0, END] == now_ns:
            finish_batch(problem, state, now_ns)
        while counters[ARRIVED] < count and arrivals_ns[counters[ARRIVED]] == now_ns:
            counters[ARRIVED] += 1
            enter(problem, state, counters[ARRIVED] - 1, now_ns)
        if not start_batches(problem, state, now_ns):
            return FULL
        if counters[MISSED] > problem.missed_limit:
            return STOPPED
    return REACHED
