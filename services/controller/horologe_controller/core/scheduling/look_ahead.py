"""Look-ahead of a turn: up to which times shares get work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import us

if TYPE_CHECKING:
    from horologe_controller.core.cluster.message_latency import MessageLatency
    from horologe_controller.settings import ControllerSettings

MORE_IN_FLIGHT, TURNS_AHEAD = 64, 3
"""Just-in-time policies may have short batches in flight in this multiple of `controller.in_flight`: any batch for one
return latency, full ones, which cannot grow, for three (experiments/results/schedulers.md)."""
DECISION_LEAD_NS = us(500)
"""Time before a share runs dry at which it gets a just-in-time, shrunken or best-effort batch: a better one may come
until then. This covers the latency of messages there and back. Goodput was the same with 300 us and with 500 us."""
OVERRUN_LIMIT_NS = us(500)
"""Most that a batch leaves for EXECs ahead of it to end later than predicted."""


class LookAhead(NamedTuple):
    """Times up to which the shares get work in one turn. All times are of the controller's clock."""

    in_flight: int
    """Limit of pending INFERs per share."""
    until_ns: int
    """A share with work until then gets no more."""
    more_until_ns: int
    """The same with `controller.in_flight` batches pending."""
    return_until_ns: int
    """The same with `controller.in_flight` batches pending, for a batch that may still grow."""
    lead_until_ns: int
    """The same for a batch that waits until the share runs dry (`Rank.when_dry`)."""
    earliest_ns: int
    """When a batch that is sent now can start."""
    overrun_ns: int
    """By how much EXECs may end later than predicted."""


def look_ahead(now_ns: int, latency: MessageLatency, settings: ControllerSettings, just_in_time: bool) -> LookAhead:
    """Return the look-ahead of this turn: `controller.lookahead_ns`, longer if messages take longer there and back."""
    trip_ns = latency.round_trip_ns
    lead_ns = max(DECISION_LEAD_NS, trip_ns)
    longest_ns = ahead_ns = max(settings.lookahead_ns, trip_ns) - 1
    if just_in_time:
        ahead_ns = min(ahead_ns, lead_ns)
    is_far = trip_ns > settings.lookahead_ns
    return_ns = latency.returns.high_quantile(now_ns) or 0
    overrun_ns = min(latency.overruns.high_quantile(now_ns) or 0, OVERRUN_LIMIT_NS)
    return LookAhead(
        settings.in_flight * (MORE_IN_FLIGHT if just_in_time or is_far else 1),
        now_ns + ahead_ns,
        now_ns + max(ahead_ns, min(longest_ns + 1, TURNS_AHEAD * return_ns)),
        now_ns + return_ns,
        now_ns + lead_ns,
        now_ns + latency.dispatch_ns,
        overrun_ns,
    )
