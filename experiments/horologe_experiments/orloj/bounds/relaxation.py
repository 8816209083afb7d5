"""The relaxed schedule behind the bound of `lagrangian.py`: time in buckets, and each request as often as it pays.

`sweep` goes over the buckets from last to first. In each bucket, an *option* is a batch size and a longest request (the
cap). The batch of an option holds the admissible requests of highest reward. The worth of an option changes only when
a request enters or leaves, so most buckets only look up the value at the option's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.orloj.bounds.compiled import compiled, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem

NONE = -1
LEAST = 1e-12


class Plan(NamedTuple):
    """Value of the time from each bucket on (one entry more than buckets), and the chosen option, or NONE."""

    value: NDArray[np.float64]
    size: NDArray[np.int64]
    cap: NDArray[np.int64]


class Options(NamedTuple):
    """The options of a bucket. `first`: first request that still finishes in time, when `worth` was computed."""

    size: NDArray[np.int64]
    cap: NDArray[np.int64]
    takes: NDArray[np.int64]
    first: NDArray[np.int64]
    worth: NDArray[np.float64]


def empty_plan(problem: Problem, bucket_ns: int) -> Plan:
    """Return an empty plan with buckets up to the last deadline."""
    buckets = int(problem.deadline[-1] // bucket_ns) + 1
    return Plan(np.zeros(buckets + 1), np.full(buckets, NONE), np.full(buckets, NONE))


@compiled
def sweep(problem: Problem, reward: NDArray[np.float64], bucket_ns: int, plan: Plan) -> float:
    """Fill `plan` with the best sequence of batches, each request earning `reward` each time. Return the total."""
    requests, buckets = len(problem.arrival), len(plan.size)
    options = _allocate_options(requests * len(problem.sizes))
    inside = np.empty(requests, np.int64)
    first = last = requests
    plan.value[buckets] = 0.0
    bucket = buckets - 1
    while bucket >= 0:
        while last > 0 and problem.arrival[last - 1] >= (bucket + 1) * bucket_ns:
            last -= 1
        while first > 0 and problem.deadline[first - 1] > bucket * bucket_ns:
            first -= 1
        count = _sort_admissible(reward, first, last, inside)
        option_count = _list_options(problem, inside, count, last, options)
        until = problem.arrival[last - 1] // bucket_ns if last > 0 else 0
        if first > 0:
            until = max(until, (problem.deadline[first - 1] - 1) // bucket_ns + 1)
        _choose_options(problem, reward, bucket_ns, plan, bucket, until, options, option_count, inside[:count])
        bucket = until - 1
    return float(plan.value[0])


@compiled
def _allocate_options(lines: int) -> Options:
    return Options(
        np.empty(lines, np.int64),
        np.empty(lines, np.int64),
        np.empty(lines, np.int64),
        np.empty(lines, np.int64),
        np.empty(lines),
    )


@compiled
def _sort_admissible(reward: NDArray[np.float64], first: int, last: int, inside: NDArray[np.int64]) -> int:
    """Write requests [first, last) of positive reward to `inside`, highest reward first. Return their number."""
    count = 0
    for request in range(first, last):
        if reward[request] > 0:
            at = count
            while at > 0 and reward[inside[at - 1]] < reward[request]:
                inside[at] = inside[at - 1]
                at -= 1
            inside[at] = request
            count += 1
    return count


@compiled
def _list_options(problem: Problem, inside: NDArray[np.int64], count: int, last: int, options: Options) -> int:
    """List every size with every cap, except sizes that the admissible requests do not need. Return the number."""
    option_count = 0
    for index in range(count):
        longest, fit, listed = problem.solo[inside[index]], 0, False
        for other in range(count):
            solo = problem.solo[inside[other]]
            fit += solo <= longest
            listed = listed or (other < index and solo == longest)
        for size in range(0 if not listed else len(problem.sizes), len(problem.sizes)):
            if size > 0 and fit <= problem.sizes[size - 1]:
                break
            options.size[option_count], options.cap[option_count] = size, inside[index]
            options.takes[option_count] = problem.fixed[size] + problem.per[size] * longest
            options.first[option_count], options.worth[option_count] = last, 0.0
            option_count += 1
    return option_count


@compiled
def _choose_options(
    problem: Problem,
    reward: NDArray[np.float64],
    bucket_ns: int,
    plan: Plan,
    bucket: int,
    until: int,
    options: Options,
    option_count: int,
    inside: NDArray[np.int64],
) -> None:
    """Choose the best option or waiting for each bucket from `bucket` back to `until`, which have the same options."""
    deadline, solo, values, takes, firsts, worths = (
        problem.deadline,
        problem.solo,
        plan.value,
        options.takes,
        options.first,
        options.worth,
    )
    for now in range(bucket, until - 1, -1):
        best, chosen = values[now + 1], NONE
        for option in range(option_count):
            end, first = now * bucket_ns + takes[option], firsts[option]
            while first > 0 and deadline[first - 1] >= end:
                first -= 1
            if first != firsts[option]:
                firsts[option] = first
                cap, size = options.cap[option], problem.sizes[options.size[option]]
                worths[option] = _worth(solo, reward, inside, first, solo[cap], size)
            value = worths[option] + values[min(len(values) - 1, now + takes[option] // bucket_ns)]
            if value > best + LEAST:
                best, chosen = value, option
        values[now] = best
        plan.size[now] = NONE if chosen == NONE else options.size[chosen]
        plan.cap[now] = NONE if chosen == NONE else options.cap[chosen]


@inlined
def _worth(
    solo: NDArray[np.int64], reward: NDArray[np.float64], inside: NDArray[np.int64], first: int, longest: int, size: int
) -> float:
    """Return the rewards of the best `size` requests from `first` on with solo times of at most `longest`."""
    worth, taken = 0.0, 0
    for request in inside:
        if request >= first and solo[request] <= longest:
            worth += reward[request]
            taken += 1
            if taken == size:
                break
    return worth


@compiled
def count_batches(problem: Problem, reward: NDArray[np.float64], bucket_ns: int, plan: Plan) -> NDArray[np.int64]:
    """Return the number of batches of the plan that hold each request."""
    requests, buckets = len(problem.arrival), len(plan.size)
    times, inside = np.zeros(requests, np.int64), np.empty(requests, np.int64)
    bucket = first = last = 0
    while bucket < buckets:
        if plan.size[bucket] < 0:
            bucket += 1
            continue
        size, longest = plan.size[bucket], problem.solo[plan.cap[bucket]]
        takes = problem.fixed[size] + problem.per[size] * longest
        while first < requests and problem.deadline[first] < bucket * bucket_ns + takes:
            first += 1
        while last < requests and problem.arrival[last] < (bucket + 1) * bucket_ns:
            last += 1
        left = problem.sizes[size]
        for index in range(_sort_admissible(reward, first, last, inside)):
            if left > 0 and problem.solo[inside[index]] <= longest:
                times[inside[index]] += 1
                left -= 1
        bucket += max(1, takes // bucket_ns)
    return times
