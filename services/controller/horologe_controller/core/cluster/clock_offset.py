"""The offset between the clocks of two machines."""

from collections import deque

WINDOW = 16
"""Round trips that the estimate uses."""


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
