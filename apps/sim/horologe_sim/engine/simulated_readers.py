"""Readers of streams as a core: each keeps one stream open at a frontend, and begins another when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, ItemsTaken, Predict, StreamLimits
from horologe_sim.engine.traceable_inputs import inputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec


class SimulatedReaders:
    """`count` readers of a model, which begin one after the other within `begin_ns`. Nothing begins after `end_ns`.

    `cancel_after`: cancel a stream after so many items. 0: read it to its end.
    """

    recorded = False
    """The recorder ignores it: it is not part of the system under test."""

    def __init__(
        self, address: str, spec: ModelSpec, count: int, begin_ns: int, end_ns: int, cancel_after: int = 0
    ) -> None:
        self.address = address
        self.out: list[Out] = []
        self.open: dict[int, int] = {}
        """Items received, by stream."""
        self.first_ns: list[int] = []
        self.gaps_ns: list[int] = []
        self.ends: dict[int, int] = {}
        """Number of ended streams by status."""
        self.cancelled = 0
        self._spec = spec
        self._frontend = ""
        self._end_ns = end_ns
        self._cancel_after = cancel_after
        self._asked_ns: dict[int, int] = {}
        self._due: IndexedHeap[Any, int] = IndexedHeap()
        for reader in range(count):
            self._due.push(reader, begin_ns * reader // max(1, count))
        self._last_id = 0

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Count an item or the end of a stream."""
        match message:
            case PeerConnected() if role(message.address) == "frontend":
                if not self._last_id:
                    self._due = _shifted(self._due, now_ns)
                self._frontend = message.address
            case PeerDisconnected() if message.address == self._frontend:
                self._frontend = ""
                for stream in list(self.open):
                    self._end(now_ns, stream, int(Status.LOST))
            case Answer() if message.id in self.open:
                if message.outputs:
                    self._on_item(now_ns, message.id)
                if not message.more and message.id in self.open:
                    self._end(now_ns, message.id, message.status)

    def _end(self, now_ns: int, stream: int, status: int) -> None:
        self.ends[status] = self.ends.get(status, 0) + 1
        self._remove(now_ns, stream)

    def _on_item(self, now_ns: int, stream: int) -> None:
        self.open[stream] += 1
        (self.gaps_ns if self.open[stream] > 1 else self.first_ns).append(now_ns - self._asked_ns[stream])
        self._asked_ns[stream] = now_ns
        if self.open[stream] == self._cancel_after:
            self.out.append(Out(self._frontend, Cancel((stream,))))
            self.cancelled += 1
            self._remove(now_ns, stream)
        else:
            self.out.append(Out(self._frontend, ItemsTaken(stream, self.open[stream])))

    def _remove(self, now_ns: int, stream: int) -> None:
        del self.open[stream], self._asked_ns[stream]
        self._due.push(stream, now_ns)

    def tick(self, now_ns: int) -> None:
        """Begin the streams that are due."""
        if not self._frontend:
            return
        for _ in [reader for reader in self._due.pop_up_to(now_ns) if now_ns < self._end_ns]:
            self._last_id += 1
            key = 1_000_000 + self._last_id
            inputs, buffers = inputs_of(self._spec, key, 1)
            self.open[key], self._asked_ns[key] = 0, now_ns
            predict = Predict(key, self._spec.name, "", 0, inputs, stream=StreamLimits(), client="readers")
            self.out.append(Out(self._frontend, predict, buffers))

    def wakeup_ns(self) -> int | None:
        return self._due.smallest_priority() if self._frontend else None


def _shifted(heap: IndexedHeap[Any, int], by_ns: int) -> IndexedHeap[Any, int]:
    shifted: IndexedHeap[Any, int] = IndexedHeap()
    while (entry := heap.peek()) is not None:
        heap.pop()
        shifted.push(entry[1], entry[0] + by_ns)
    return shifted
