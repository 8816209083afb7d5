"""Latencies of messages between the controller and its workers, and how far ahead shares get work for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import s, us
from horologe_common.core.instruments import RollingQuantile
from horologe_controller.core.cluster.pings import STALL_NS

if TYPE_CHECKING:
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.settings import ControllerSettings

RESULTS = 200
"""Results over which the return latency is measured, and by how much EXECs take too long."""
RETURN_PART = 4
"""At most 1/4 of a budget is reserved for the return latency: one stalled result must not refuse requests that have
enough time."""
MARGIN_PART = 8
"""At most 1/8 of the time that a request could wait is margin. With all of it, requests with short budgets are refused
that would be in time: 0.004 of all requests in 120 workloads."""
MORE_IN_FLIGHT = 64
"""Just-in-time policies may have short batches in flight in this multiple of `controller.in_flight`
(experiments/results/schedulers.md)."""
DECISION_LEAD_NS = us(500)
"""Time before a share runs dry at which it gets a just-in-time, shrunken or best-effort batch: a better one may come
until then. This covers the latency of messages there and back. Goodput was the same with 300 us and with 500 us."""


class MessageLatency:
    """Latencies of the messages of INFERs, and overruns of EXECs.

    The low quantiles are what the network takes: a stall of a process says nothing about the next message. Over slow
    links, EXECs have ended whose Results are still on their way, and an idle device waits for what was sent.
    """

    def __init__(self) -> None:
        self.returns = RollingQuantile(window=RESULTS, age_ns=s(5), quantile=0.9)
        """Time from the end of an EXEC until its Result arrives here."""
        self.overruns = RollingQuantile(window=100, age_ns=s(5), quantile=0.9)
        """Time by which EXECs end later than predicted when they were planned."""
        self._excess = RollingQuantile(window=RESULTS, age_ns=s(10), quantile=0.99)
        """Time by which EXECs of static models take longer than predicted. The high quantile is the third largest of
        200: two stalls do not count."""
        self._dispatches = RollingQuantile(window=100, age_ns=s(5))
        self.dispatch_ns = 0
        """Low quantile of the time from a decision until an idle device begins: the INFER must arrive there, and the
        inputs, which a Dispatch asks their holder for."""
        self.return_ns = 0
        """Low quantile of `returns`."""

    @property
    def round_trip_ns(self) -> int:
        """Shortest time from a decision to its Result, without the EXEC."""
        return self.dispatch_ns + self.return_ns

    def reserved_ns(self, now_ns: int, budget_ns: int, exec_ns: int, return_ns: int, margin_ns: int) -> int:
        """Return the part of a budget that is kept for the return of the answer: the return latency and a margin.

        `exec_ns`: what the request takes alone. The margin is at least `margin_ns`, and as much as recent EXECs have
        taken too long: under overload, each batch ends just before the deadlines.
        """
        margin_ns = max(margin_ns, self._excess.high_quantile(now_ns) or 0)
        spare_ns = max(0, budget_ns - self.dispatch_ns - exec_ns - return_ns)
        return min(return_ns + min(margin_ns, spare_ns // MARGIN_PART), budget_ns // RETURN_PART)

    def observe(self, now_ns: int, action: Action, began_ns: int, end_ns: int, *, steady: bool = True) -> None:
        """Add an EXEC whose Result has arrived now. `steady`: its time did not depend on the input."""
        self.returns.observe(now_ns, now_ns - end_ns)
        self.overruns.observe(now_ns, max(0, end_ns - action.promised_ns))
        if steady:
            self._excess.observe(now_ns, max(0, end_ns - began_ns - action.expected_ns))
        self.return_ns = self.returns.low_quantile(now_ns) or 0
        if action.promised_ns - action.expected_ns <= action.sent_ns + self.dispatch_ns:
            self._dispatches.observe(now_ns, max(0, began_ns - action.sent_ns))
            dispatch_ns = self._dispatches.low_quantile(now_ns) or 0
            if dispatch_ns <= STALL_NS or self._dispatches.count > 1:  # else it is one that met a stall
                self.dispatch_ns = dispatch_ns


class LookAhead(NamedTuple):
    """Times up to which the shares get work in one turn. All times are of the controller's clock."""

    in_flight: int
    """Limit of pending INFERs per share."""
    until_ns: int
    """A share with work until then gets no more."""
    more_until_ns: int
    """The same with `controller.in_flight` batches pending: before their Results come, the share would run dry."""
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
    longest_ns = max(settings.lookahead_ns, trip_ns)
    ahead_ns = longest_ns - 1
    if just_in_time:
        ahead_ns = min(ahead_ns, lead_ns)
    is_far = trip_ns > settings.lookahead_ns
    return LookAhead(
        settings.in_flight * (MORE_IN_FLIGHT if just_in_time or is_far else 1),
        now_ns + ahead_ns,
        now_ns + min(longest_ns, latency.returns.high_quantile(now_ns) or 0),
        now_ns + lead_ns,
        now_ns + latency.dispatch_ns,
        latency.overruns.high_quantile(now_ns) or 0,
    )
