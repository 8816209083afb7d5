"""Which requests of a queue to run together, where what they take is known as distributions.

A batch is worth the requests in it that can be expected to end in time, each counted the less the longer it could
still wait, and costs the time that it can be expected to take. The best has the highest worth for its cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_controller.core.runtime_distributions import ModelDurations

    Floats = NDArray[np.float64]
    Places = NDArray[np.intp]

PATIENCE = 2.0
"""In mean solo times: a kind of request that could wait so much longer than another counts 1/e of it. More than this
serves rare long requests worse where there is time for all, less serves fewer under overload: see decision 12."""
SURE = (0.5, 0.95)
"""Candidates hold requests that are in time if their longest row takes what these quantiles of it say."""
PROMISE = 0.9
"""The quantile that is told as the expected duration, as with the estimates of static models."""


class Prospect(NamedTuple):
    """`places` in the queue, ascending, and the `size` they run as; a high and a low quantile of what that takes."""

    places: tuple[int, ...]
    size: int
    expected_ns: int
    least_ns: int


class Outlook(NamedTuple):
    """Of c candidates: `cdf` (c, GRID) of what their longest row adds, what they take in the mean (c,), their size."""

    cdf: Floats
    takes_ns: Floats
    size: Floats


def best(
    start_ns: int, deadlines_ns: Sequence[int], kinds: Sequence[int], sizes: Sequence[int], known: ModelDurations
) -> Prospect | None:
    """The best batch that could start at `start_ns`; None if no request could be expected to end in time.

    `deadlines_ns` (n,), ascending, and `kinds` (n,) of the waiting requests; `sizes`, ascending, that can be run.
    """
    left_ns = np.array(deadlines_ns, np.float64) - (start_ns + known.base_ns)
    kind = np.array(kinds, np.intp)
    candidates = _candidates(left_ns, kind, sizes, known)
    if not candidates:
        return None
    members = np.full((len(candidates), sizes[-1]), -1, np.intp)
    for row, (places, _) in enumerate(candidates):
        members[row, : places.size] = places
    outlook = _outlook(members, kind, [size for _, size in candidates], known)
    urgency = _urgency(left_ns, kind, members[members >= 0], known)
    in_time = _within(left_ns[members] / outlook.size[:, None], outlook.cdf, known.grid_ns)
    worth = np.where(members >= 0, in_time * urgency[kind[members]], 0.0).sum(axis=1)
    chosen = int(np.argmax(worth / outlook.takes_ns))
    if worth[chosen] <= 0.0:
        return None
    places, size = candidates[chosen]
    high, low = np.interp((PROMISE, 1 - PROMISE), outlook.cdf[chosen], known.grid_ns)
    return Prospect(tuple(places.tolist()), size, int(known.base_ns + size * high), int(known.base_ns + size * low))


def _candidates(left_ns: Floats, kind: Places, sizes: Sequence[int], known: ModelDurations) -> list[tuple[Places, int]]:
    """For every kind that is there, every size and surety: the most urgent of all requests no longer than the kind.

    `left_ns` (n,): what rows may add. A size is left out where a smaller one would hold them all.
    """
    found: list[tuple[Places, int]] = []
    for longest in np.unique(kind).tolist():
        able = np.flatnonzero(kind <= longest)
        able_left_ns = left_ns[able]
        for size in sizes:
            if size > 1 and able.size <= size // 2:
                break
            before = -1
            for sure in SURE:
                row_ns = known.quantile_ns(longest, sure ** (1 / size))
                first = int(np.searchsorted(able_left_ns, size * row_ns))
                places = able[first : first + size]
                if first != before and places.size > size // 2:
                    found.append((places, size))
                before = first
    return found


def _urgency(left_ns: Floats, kind: Places, candidates: Places, known: ModelDurations) -> Floats:
    """How much a request counts, by kind: the less the longer the most urgent of its kind could still wait.

    `candidates`: places that are in any batch. Within a kind it is enough that batches are made in the order of
    deadlines; to count those that can wait for less there would only favour batches that may fail.
    """
    slack_ns = np.full(len(known), np.inf)
    np.minimum.at(slack_ns, kind[candidates], np.maximum(0.0, left_ns - known.row_mean_ns[kind])[candidates])
    slack_ns -= slack_ns.min()  # only differences count, and all might be as good as for ever
    return np.exp(-slack_ns / (PATIENCE * known.mean_ns))


def _outlook(members: Places, kind: Places, sizes: Sequence[int], known: ModelDurations) -> Outlook:
    """What candidates take. `members` (c, most rows): places, filled up with -1.

    The largest of independent rows has the product of their CDFs (ORLOJ section 4.2): a sum of logarithms by kind.
    """
    there = members >= 0
    counts = np.zeros((len(members), len(known)))
    row = np.broadcast_to(np.arange(len(members))[:, None], members.shape)
    np.add.at(counts, (row[there], kind[members[there]]), 1.0)
    cdf = np.exp(counts @ known.log_cdf)
    grid, size = known.grid_ns, np.array(sizes, np.float64)
    longest_ns = grid[-1] - (cdf[:, 1:] + cdf[:, :-1]) @ np.diff(grid) / 2
    return Outlook(cdf, known.base_ns + size * longest_ns, size)


def _within(row_ns: Floats, cdf: Floats, grid: Floats) -> Floats:
    """How likely the longest row of each candidate adds at most `row_ns` (c, n)."""
    place = np.clip(np.searchsorted(grid, row_ns), 1, grid.size - 1)
    part = np.clip((row_ns - grid[place - 1]) / (grid[place] - grid[place - 1]), 0.0, 1.0)
    below, above = np.take_along_axis(cdf, place - 1, 1), np.take_along_axis(cdf, place, 1)
    return np.where(row_ns < grid[0], 0.0, below + part * (above - below))
