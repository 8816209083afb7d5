"""Requests for the controller alone, drawn in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import NEVER_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class DynamicRequest(NamedTuple):
    """A request of a dynamic model. Only the device knows `solo_ns`, its execution time alone."""

    solo_ns: int
    application: str = ""
    length: int = 0
    rows: int = 1


STATIC = DynamicRequest(0)


class Chunk(NamedTuple):
    """Requests in order of time, relative to the start of the load. `models`: indices in the list of models.

    `requests` is empty if all models are static.
    """

    times_ns: Sequence[int]
    models: Sequence[int]
    slos_ns: Sequence[int]
    groups: Sequence[int]
    requests: Sequence[DynamicRequest] = ()


class OpenLoop:
    """The requests of chunks, in the order in which they arrive at the controller."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self.next_ns = NEVER_NS
        """When the next request arrives. `NEVER_NS` before `start` and after the last one."""
        self._chunks = iter(chunks)
        self._chunk = Chunk((), (), (), ())
        self._place = self._offset_ns = 0

    def start(self, offset_ns: int) -> None:
        """Let a request of time t arrive at `offset_ns` + t."""
        self._offset_ns = offset_ns
        self._next_chunk()

    def _next_chunk(self) -> None:
        for chunk in self._chunks:
            if chunk.times_ns:
                self._chunk, self._place = chunk, 0
                self.next_ns = self._offset_ns + chunk.times_ns[0]
                return
        self.next_ns = NEVER_NS

    def pop_arrived(self, now_ns: int) -> Iterator[tuple[int, int, int, int, DynamicRequest]]:
        """Yield (time, model, SLO, group, traits) of each request that has arrived."""
        while self.next_ns <= now_ns:
            times_ns, models, slos_ns, groups, requests = self._chunk
            place, end = self._place, len(times_ns)
            while place < end and (sent_ns := times_ns[place]) + self._offset_ns <= now_ns:
                yield sent_ns, models[place], slos_ns[place], groups[place], requests[place] if requests else STATIC
                place += 1
            if place == end:
                self._next_chunk()
            else:
                self._place, self.next_ns = place, times_ns[place] + self._offset_ns


class Open(msgspec.Struct, frozen=True, gc=False):
    """A request in flight. `slo_ns` 0: best effort."""

    sent_ns: int
    slo_ns: int
    group: int
