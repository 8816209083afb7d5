"""Batch choice for a model with known distributions of execution times: the highest expected value per expected time.

The value of a batch is the sum over its requests of P(it ends by its deadline) * urgency of its kind. Its cost is the
time that it is expected to take. Example: two requests of 2 ms that are certain to be in time are worth more than the
same two with one of 20 ms, since the long row would make the whole batch take 40 ms more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_controller.core.runtime_distributions import RuntimeDistributions

    Floats = NDArray[np.float64]
    Places = NDArray[np.intp]

PATIENCE = 2.0
"""Decay of urgency, in mean solo times: a kind with this much more slack than another counts 1/e of it. Measured by
benchmarks/horologe_constants.py (docs/experiments/orloj.md): 1 to 5 differ by at most 0.003 in the finish rate, 0.2
loses up to 0.017 and 20 up to 0.009."""
CANDIDATE_QUANTILES = (0.5, 0.95)
"""A candidate batch holds the requests that are in time if its longest row takes this quantile. Two candidates per kind
and size: an optimistic and a cautious one. Measured as `PATIENCE`: 0.95 alone loses up to 0.012, 0.5 alone 0.002, and
four quantiles gain at most 0.001."""
EXPECTED_QUANTILE = 0.9
"""Quantile of a batch's duration that is sent as expected, as with the estimates of static models."""


class BatchChoice(NamedTuple):
    """The requests at `places` in the queue, ascending, as a batch of `size`; a high and a low quantile of its time."""

    places: tuple[int, ...]
    size: int
    expected_ns: int
    least_ns: int


class CandidateTimes(NamedTuple):
    """Times of c candidates: `cdf` (c, GRID) of what the longest row adds; means `mean_ns` (c,); sizes `size` (c,)."""

    cdf: Floats
    mean_ns: Floats
    size: Floats


def choose_batch(
    start_ns: int,
    deadlines_ns: Sequence[int],
    kinds: Sequence[int],
    sizes: Sequence[int],
    distributions: RuntimeDistributions,
) -> BatchChoice | None:
    """Return the best batch that could start at `start_ns`; None if no request can be expected to end in time.

    `deadlines_ns` (n,), ascending, and `kinds` (n,) describe the queued requests. `sizes`, ascending, can be run.
    """
    slack_ns = np.array(deadlines_ns, np.float64) - (start_ns + distributions.base_ns)
    kind = np.array(kinds, np.intp)
    candidates = _candidates(slack_ns, kind, sizes, distributions)
    if not candidates:
        return None
    members = np.full((len(candidates), sizes[-1]), -1, np.intp)
    for row, (places, _) in enumerate(candidates):
        members[row, : places.size] = places
    times = _candidate_times(members, kind, [size for _, size in candidates], distributions)
    urgency = _urgency(slack_ns, kind, members[members >= 0], distributions)
    in_time = _interpolate_cdf(slack_ns[members] / times.size[:, None], times.cdf, distributions.grid_ns)
    value = np.where(members >= 0, in_time * urgency[kind[members]], 0.0).sum(axis=1)
    chosen = int(np.argmax(value / times.mean_ns))
    if value[chosen] <= 0.0:
        return None
    places, size = candidates[chosen]
    quantiles = (EXPECTED_QUANTILE, 1 - EXPECTED_QUANTILE)
    high, low = np.interp(quantiles, times.cdf[chosen], distributions.grid_ns)
    base_ns = distributions.base_ns
    return BatchChoice(tuple(places.tolist()), size, int(base_ns + size * high), int(base_ns + size * low))


def _candidates(
    slack_ns: Floats, kind: Places, sizes: Sequence[int], distributions: RuntimeDistributions
) -> list[tuple[Places, int]]:
    """Return (places, size) of the candidates: by queued kind, size and quantile, the most urgent requests in time.

    A candidate holds only requests no longer than its kind. A size is left out if a smaller one holds them all.
    `slack_ns` (n,): time that rows may add.
    """
    candidates: list[tuple[Places, int]] = []
    for longest in np.unique(kind).tolist():
        eligible = np.flatnonzero(kind <= longest)
        eligible_slack_ns = slack_ns[eligible]
        for size in sizes:
            if size > 1 and eligible.size <= size // 2:
                break
            previous = -1
            for quantile in CANDIDATE_QUANTILES:
                row_ns = distributions.row_quantile_ns(longest, quantile ** (1 / size))
                first = int(np.searchsorted(eligible_slack_ns, size * row_ns))
                places = eligible[first : first + size]
                if first != previous and places.size > size // 2:
                    candidates.append((places, size))
                previous = first
    return candidates


def _urgency(slack_ns: Floats, kind: Places, candidates: Places, distributions: RuntimeDistributions) -> Floats:
    """Return the weight of each kind: it decays with the slack of the kind's most urgent request.

    `candidates`: places that are in any candidate. Within a kind all requests weigh the same. Batches take them in the
    order of deadlines already, and to favour the most urgent ones would favour those that may fail.
    """
    kind_slack_ns = np.full(len(distributions), np.inf)
    slack_alone_ns = np.maximum(0.0, slack_ns - distributions.row_mean_ns[kind])
    np.minimum.at(kind_slack_ns, kind[candidates], slack_alone_ns[candidates])
    kind_slack_ns -= kind_slack_ns.min()  # only differences count, and exp of large slacks would underflow
    return np.exp(-kind_slack_ns / (PATIENCE * distributions.mean_ns))


def _candidate_times(
    members: Places, kind: Places, sizes: Sequence[int], distributions: RuntimeDistributions
) -> CandidateTimes:
    """Return the times of the candidates. `members` (c, most rows): places, filled up with -1.

    The CDF of the largest of independent rows is the product of theirs (ORLOJ section 4.2): a sum of logs by kind.
    """
    is_member = members >= 0
    counts = np.zeros((len(members), len(distributions)))
    row = np.broadcast_to(np.arange(len(members))[:, None], members.shape)
    np.add.at(counts, (row[is_member], kind[members[is_member]]), 1.0)
    cdf = np.exp(counts @ distributions.log_cdf)
    grid, size = distributions.grid_ns, np.array(sizes, np.float64)
    longest_ns = grid[-1] - (cdf[:, 1:] + cdf[:, :-1]) @ np.diff(grid) / 2
    return CandidateTimes(cdf, distributions.base_ns + size * longest_ns, size)


def _interpolate_cdf(row_ns: Floats, cdf: Floats, grid: Floats) -> Floats:
    """Return the probability that the longest row of each candidate adds at most `row_ns` (c, n)."""
    place = np.clip(np.searchsorted(grid, row_ns), 1, grid.size - 1)
    part = np.clip((row_ns - grid[place - 1]) / (grid[place] - grid[place - 1]), 0.0, 1.0)
    below, above = np.take_along_axis(cdf, place - 1, 1), np.take_along_axis(cdf, place, 1)
    return np.where(row_ns < grid[0], 0.0, below + part * (above - below))
