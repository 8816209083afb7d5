"""Pacing of a connection that sends the next request at once after each refusal: it learns of refusals later."""

from __future__ import annotations

from horologe_common.clock import ms

AT_ONCE_NS = ms(5)
"""A client that asks again within this time after a refusal has not waited. Over a network, the way alone takes longer
than that, or paces the client."""
FREE = 2
"""Refusals in a row, each followed at once by the next request, that are answered without a pause."""
FIRST_NS, LONGEST_NS = ms(4), ms(64)
"""Pause before the next refusal. It doubles with each of them. With 64 clients on two processors that also run the
model, refusals took more time than the requests that were served."""
MOST = FREE + (LONGEST_NS // FIRST_NS).bit_length()
"""Refusals in a row that are counted. An answer halves them: a client that gets one in five still asks too often."""


class RefusalPacing:
    """Pauses before the refusals of one connection. The request itself is never delayed."""

    __slots__ = ("_refused_ns", "in_row")

    def __init__(self) -> None:
        self.in_row = 0
        """Refusals in a row after each of which the client asked again at once. While it is 0, nothing else matters."""
        self._refused_ns = 0
        """When the last refusal was sent; 0: the last response was none."""

    def begin_request(self, now_ns: int) -> None:
        """Note a request. It does not come at once if the last refusal was sent long ago."""
        if now_ns - self._refused_ns > AT_ONCE_NS:
            self.in_row = 0

    def pause_ns(self) -> int:
        """Return how long to wait before the refusal of the present request is sent."""
        return min(FIRST_NS << (self.in_row - FREE), LONGEST_NS) if self.in_row >= FREE else 0

    def end_request(self, now_ns: int, refused: bool) -> None:
        """Note the response that is sent now."""
        self.in_row = min(self.in_row + 1, MOST) if refused else self.in_row // 2
        self._refused_ns = now_ns
