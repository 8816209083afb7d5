"""A batch that could go next, and its rank: the lowest goes first (Clockwork app. B)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import NEVER_NS, ms

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue

SOLO_WINDOW_NS = ms(100)
"""Window of a solo request: a share must not wait longer for inputs that a lost or hung profiler does not ship."""


class Rank(NamedTuple):
    """Order of batches on a share."""

    when_dry: int
    """0: a share gets the batch at once. More: just before it runs dry (`DECISION_LEAD_NS`), since a better batch may
    come until then; the fewer, the earlier. Systems whose executor takes its next batch after the last one have 1."""
    order_ns: int
    """Order of the policy."""
    first_id: int
    """The first request decides between equal batches."""


class Strategy(msgspec.Struct, frozen=True):
    """A batch of `size` from the requests at these `places` of a queue.

    `latest_ns` is the last start that leaves one of them a chance; None: `expected_ns` before the first deadline.
    """

    rank: Rank
    queue: ModelQueue
    size: int
    places: range | tuple[int, ...]
    expected_ns: int
    latest_ns: int | None = None
    in_time: float | None = None
    """Number of its requests that are expected to be in time, if most are not."""


def oldest_strategy(
    now_ns: int, start_ns: int, share: Share, queue: ModelQueue, until_ns: int = NEVER_NS
) -> Strategy | None:
    """Return the best-effort strategy: the oldest requests, in the largest batch they fill that ends by `until_ns`."""
    if not queue:
        return None
    for size in queue.batch_sizes():
        expected_ns = share.predict(now_ns, queue.model, size)
        if start_ns + expected_ns > until_ns:
            continue
        place = queue.first_in_time(start_ns + expected_ns, size)
        if count := queue.count_filling(place, size):
            first = queue[place]
            rank = Rank(1, first.arrival_ns, first.id)
            latest_ns = start_ns + SOLO_WINDOW_NS if first.solo else None
            return Strategy(rank, queue, size, range(place, place + count), expected_ns, latest_ns)
    return None
