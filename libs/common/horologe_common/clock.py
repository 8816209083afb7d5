"""Time in nanoseconds: units, the real clock, and the offset between the clocks of two machines."""

import time
from collections import deque

NEVER_NS = 1 << 62
"""A time later than any other."""
NS_PER_MS = 1_000_000


def us(value: float) -> int:
    """Return microseconds in nanoseconds."""
    return round(value * 1_000)


def ms(value: float) -> int:
    """Return milliseconds in nanoseconds."""
    return round(value * NS_PER_MS)


def s(value: float) -> int:
    """Return seconds in nanoseconds."""
    return round(value * 1_000_000_000)


monotonic_ns = time.monotonic_ns
"""The real clock. Cores do not read it; they get the time as an argument."""


class ClockOffset:
    """Offset of a peer's monotonic clock to this machine's, from the round trips of pings.

    The estimate uses the shortest of the last `window` round trips. Its error is at most half of that round trip
    (Cristian's algorithm with a minimum filter, as in NTP).
    """

    def __init__(self, window: int = 16) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=window)
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
