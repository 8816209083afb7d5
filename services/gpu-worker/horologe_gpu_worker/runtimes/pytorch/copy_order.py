"""Order of the copies to a device: inputs go between the pieces of a LOAD.

A device copies in the order in which copies were started, whatever the priority of their streams. So the pieces of a
LOAD are started one by one, each short enough for an input to wait for.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Condition
from time import perf_counter_ns
from typing import TYPE_CHECKING

from horologe_common.clock import us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_NS = us(350)
"""Time of a piece of a LOAD. An input waits for one: the rest of 0.5 ms is for starting copies and waking threads."""
FIRST_BYTES = 2 << 20
"""Size of the first piece: 350 us at 6 GB/s, half of PCIe 3.0 x16."""
LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
GROWTH = 2
"""A piece has at most this many times the bytes of the one before: one that was measured too fast does no harm."""


class CopyOrder:
    """One copy at a time. A waiting input goes before the next piece, and a waiting piece before the next input.

    So an input waits for at most one piece, and a LOAD progresses however many inputs there are. One LOAD and one
    INPUT copy at a time: each has a lane.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._is_copying = False
        self._waiting_inputs = self._waiting_pieces = 0
        self._is_piece_next = False
        self.piece_bytes = FIRST_BYTES

    @contextmanager
    def input_copy(self) -> Iterator[None]:
        """Hold the device's link for the copy of an input."""
        with self._changed:
            self._waiting_inputs += 1
            self._changed.wait_for(lambda: not (self._is_copying or (self._is_piece_next and self._waiting_pieces)))
            self._waiting_inputs -= 1
            self._is_copying = self._is_piece_next = True
        try:
            yield
        finally:
            self._release()

    def copy_pieces(self, size: int, copy: Callable[[int, int], None]) -> None:
        """Call `copy(begin, end)` for all pieces of [0, size). It returns when the piece has been copied."""
        begin = 0
        while begin < size:
            with self._changed:
                self._waiting_pieces += 1
                self._changed.wait_for(
                    lambda: not (self._is_copying or (self._waiting_inputs and not self._is_piece_next))
                )
                self._waiting_pieces -= 1
                self._is_copying, self._is_piece_next = True, False
            end = min(begin + self.piece_bytes, size)
            begin_ns = perf_counter_ns()
            try:
                copy(begin, end)
            finally:
                self._release()
            self._observe(end - begin, perf_counter_ns() - begin_ns)
            begin = end

    def _release(self) -> None:
        with self._changed:
            self._is_copying = False
            self._changed.notify_all()

    def _observe(self, size: int, took_ns: int) -> None:
        """Choose the size of the next piece by the rate of this one. A last piece, which is small, says little."""
        if size == self.piece_bytes:
            fitting = min(size * PIECE_NS // max(took_ns, 1), GROWTH * size)
            self.piece_bytes = min(max(fitting, LEAST_BYTES), MOST_BYTES)
