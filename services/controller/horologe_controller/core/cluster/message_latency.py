"""Latencies of messages between the controller and its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.instruments import RollingQuantile
from horologe_controller.core.cluster.stalls import STALL_NS

if TYPE_CHECKING:
    from horologe_controller.core.cluster.lane import Action

RETURN_WINDOW = 200
"""Results over which the return latency is measured."""
RETURN_PART = 4
"""At most 1/4 of a budget is reserved for the return latency: one stalled result must not refuse requests that have
enough time."""
MARGIN_PART = 8
"""At most 1/8 of the time that a request could wait is margin. With all of it, requests with short budgets are refused
that would be in time: 0.004 of all requests in 120 workloads."""


class MessageLatency:
    """Latencies of the messages of INFERs, and overruns of EXECs.

    The low quantiles are what the network takes: a stall of a process says nothing about the next message. Over slow
    links, EXECs have ended whose Results are still on their way, and an idle device waits for what was sent.
    """

    def __init__(self, return_window: int = 1) -> None:
        self.returns = RollingQuantile(window=return_window, age_ns=s(5), quantile=0.9)
        """Time from the end of an EXEC until its Result arrives here."""
        self.overruns = RollingQuantile(window=100, age_ns=s(5), quantile=0.9)
        """Time by which EXECs end later than predicted when they were planned."""
        self._excess = RollingQuantile(window=RETURN_WINDOW, age_ns=s(10), quantile=0.99)
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
