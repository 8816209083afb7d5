"""Stalls of a worker, of the controller, or of the link between them, which explain why an action took long."""

from __future__ import annotations

from collections import deque

from horologe_common.clock import ms

STALL_NS = ms(100)
"""A Pong this much later than the fastest one, or a turn of the controller this much later than its timer, is a stall.
A container with a CPU quota is paused for less than its period, which is 100 ms by default."""
MAX_AWAITED = 64


class Stalls:
    """Stalls of one worker, from the times at which it answers pings.

    A stopped process, a paused container or virtual machine, a process without a processor and a link that loses
    packets have the same effect: pings wait. A worker that has never answered a ping has no known stalls.
    """

    def __init__(self) -> None:
        self._awaited: deque[int] = deque(maxlen=MAX_AWAITED)
        """Send times of the pings without an answer."""
        self._answers = False
        self._until_ns = -1
        """End of the last stall."""

    def on_ping(self, now_ns: int) -> None:
        """Record that a ping is sent."""
        self._awaited.append(now_ns)

    def on_pong(self, now_ns: int, sent_ns: int, fastest_ns: int) -> None:
        """Record the answer to the ping of `sent_ns`. `fastest_ns`: the shortest recent round trip."""
        self._answers = True
        while self._awaited and self._awaited[0] <= sent_ns:
            self._awaited.popleft()
        if now_ns - sent_ns > fastest_ns + STALL_NS:
            self._until_ns = now_ns

    def mark_stall(self, now_ns: int) -> None:
        """Record a stall that has just ended."""
        self._until_ns = now_ns

    def happened_since(self, now_ns: int, since_ns: int) -> bool:
        """Return whether a stall has ended after `since_ns`, or lasts now."""
        lasts = self._answers and bool(self._awaited) and now_ns - self._awaited[0] > STALL_NS
        return lasts or since_ns < self._until_ns
