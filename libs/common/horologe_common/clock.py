"""Nanosecond helpers, the one real clock, and the offset between two hosts' clocks."""

import time
from collections import deque

NEVER_NS = 1 << 62


def us(value: float) -> int:
    return round(value * 1_000)


def ms(value: float) -> int:
    return round(value * 1_000_000)


def s(value: float) -> int:
    return round(value * 1_000_000_000)


monotonic_ns = time.monotonic_ns
"""The real clock. Only the reactor and the shells around cores read it."""


class ClockOffset:
    """Offset of a peer's monotonic clock to ours, from ping round trips.

    The sample with the smallest round trip among the last `window` bounds the error by half that round trip
    (Cristian's algorithm with a minimum filter, as NTP's clock filter does).
    """

    def __init__(self, window: int = 16) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=window)
        self.offset_ns = 0

    @property
    def is_measured(self) -> bool:
        """Whether there has been a round trip; `offset_ns` means nothing before."""
        return bool(self._samples)

    def observe(self, sent_ns: int, peer_ns: int, received_ns: int) -> None:
        """`sent_ns`, `received_ns`: our clock around the round trip; `peer_ns`: the peer's clock inside it."""
        self._samples.append((received_ns - sent_ns, peer_ns - (sent_ns + received_ns) // 2))
        self.offset_ns = min(self._samples)[1]
