"""What the pings of a worker show: the offset of its clock, and stalls.

A stall of the worker, of the controller, or of the link between them explains why an action took long.
"""

from __future__ import annotations

from collections import deque

from horologe_common.clock import NEVER_NS, ms

WINDOW = 16
"""Round trips that the estimate uses."""
STALL_NS = ms(100)
"""A Pong this much later than the fastest one, or a turn of the controller this much later than its timer, is a stall.
A container with a CPU quota is paused for less than its period, which is 100 ms by default."""


class ClockOffset:
    """Offset of a peer's monotonic clock to this machine's, from the round trips of pings.

    The estimate uses the shortest of the last `WINDOW` round trips. Its error is at most half of that round trip
    (Cristian's algorithm with a minimum filter, as in NTP).
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self.offset_ns = 0

    @property
    def is_measured(self) -> bool:
        """Return whether there was a round trip. Before, `offset_ns` is 0 and meaningless."""
        return bool(self._samples)

    @property
    def error_ns(self) -> int:
        """Return the largest possible error of `offset_ns`: half of the shortest round trip. 0 before there was one."""
        return min(self._samples)[0] // 2 if self._samples else 0

    def observe(self, sent_ns: int, peer_ns: int, received_ns: int) -> None:
        """Add a round trip: `sent_ns` and `received_ns` on this clock, `peer_ns` on the peer's in between."""
        self._samples.append((received_ns - sent_ns, peer_ns - (sent_ns + received_ns) // 2))
        self.offset_ns = min(self._samples)[1]


class Stalls:
    """Stalls of one worker, from the times at which it answers pings.

    A stopped process, a paused container or virtual machine, a process without a processor and a link that loses
    packets have the same effect: pings wait. A worker that has never answered a ping has no known stalls.
    """

    def __init__(self) -> None:
        self._awaited: deque[int] = deque(maxlen=64)
        """Send times of the pings without an answer."""
        self._answers = False
        self.ended_ns = -1
        """End of the last stall."""
        self.visible_ns = NEVER_NS
        """From when on a stall lasts, unless the worker answers before."""

    def on_ping(self, now_ns: int) -> None:
        """Record that a ping is sent."""
        self._awaited.append(now_ns)
        self._find_visible()

    def on_pong(self, now_ns: int, sent_ns: int, fastest_ns: int) -> None:
        """Record the answer to the ping of `sent_ns`. `fastest_ns`: the shortest recent round trip."""
        self._answers = True
        while self._awaited and self._awaited[0] <= sent_ns:
            self._awaited.popleft()
        self._find_visible()
        if now_ns - sent_ns > fastest_ns + STALL_NS:
            self.ended_ns = now_ns

    def _find_visible(self) -> None:
        self.visible_ns = self._awaited[0] + STALL_NS if self._answers and self._awaited else NEVER_NS

    def mark_stall(self, now_ns: int) -> None:
        """Record a stall that has just ended."""
        self.ended_ns = now_ns
