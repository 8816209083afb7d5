"""What a lane does next: operations in the order of their windows. Pure: driven by threads and by the simulator."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import ModelReport, Tensor


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One lane's part of an action, from the worker core to its lanes. Never leaves the process."""

    action_id: int
    share: int
    lane: str
    """`load`, `unload` (both on the load lane), `input`, `exec`, `output` or `scan`."""
    model: str
    """Key `name/version`; for `scan` whatever the Scan said."""
    batch_size: int = 0
    """The compiled size to run; `rows` of it are true, the rest is padding."""
    rows: int = 0
    earliest_ns: int = 0
    latest_ns: int = NEVER_NS
    """The operation begins inside [earliest_ns, latest_ns] or not at all."""
    expected_ns: int = 0
    inputs: Sequence[tuple[Tensor, Sequence[Buffer]]] = ()
    """Per input tensor: the header of all true rows together, and their bytes in row order."""
    staged: Any = None
    """What `input` or `exec` left on the device for the next lane, where these have lanes of their own."""
    runtime: str = ""
    """Of the model, for `exec`."""
    shapes: Sequence[Sequence[tuple[int, ...]]] = ()
    """Per input tensor: the shape of each part, where they differ and are to be padded to that of the header."""


class Abort(msgspec.Struct, frozen=True, gc=False):
    """To a lane: forget this operation if it has not begun (then it finishes as CANCELLED)."""

    action_id: int
    share: int
    lane: str


class Finished(msgspec.Struct, frozen=True, gc=False):
    """From a lane to the worker core: how an operation ended. `begin_ns` == `end_ns` if it was never run."""

    action_id: int
    lane: str
    status: int
    begin_ns: int
    end_ns: int
    device_ns: int = 0
    outputs: Sequence[tuple[Tensor, Buffer]] = ()
    """Header (true rows only) and bytes of every output, after `exec` (or `output`, where that is a lane)."""
    reason: str = ""
    staged: Any = None
    models: Sequence[ModelReport] = ()
    """After `scan`: what the repository holds now."""


def not_run(operation: Operation, status: Status, now_ns: int, reason: str = "") -> Finished:
    """The end of an operation that was never begun."""
    return Finished(operation.action_id, operation.lane, status, now_ns, now_ns, reason=reason)


class Lane:
    """Operations by (earliest_ns, arrival), as Clockwork section 5.2 has it; one is run at a time.

    Law: every operation pushed leaves exactly once, by `next`, `expired` or `abort`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Operation]] = []
        self._queued: dict[int, int] = {}  # action id -> arrival
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._queued)

    def push(self, operation: Operation) -> None:
        """Queue an operation; an action has at most one in a lane."""
        self._arrivals += 1
        self._queued[operation.action_id] = self._arrivals
        heapq.heappush(self._heap, (operation.earliest_ns, self._arrivals, operation))

    def expired(self, now_ns: int) -> Operation | None:
        """Remove and return an operation whose turn came after its window had closed: it must not be run.

        Call until None, before `next`.
        """
        head = self._head()
        return self._pop() if head is not None and head.latest_ns < now_ns else None

    def next(self, now_ns: int) -> Operation | int | None:
        """Remove and return the operation to begin now; else the ns until there is one; None when empty.

        What is handed out is inside its window: while one whose window has closed is first, the wait is 0.
        """
        head = self._head()
        if head is None:
            return None
        if head.latest_ns < now_ns:
            return 0
        return self._pop() if head.earliest_ns <= now_ns else head.earliest_ns - now_ns

    def abort(self, action_id: int) -> Operation | None:
        """Remove and return the operation of this action, if it is still queued."""
        arrival = self._queued.pop(action_id, None)
        if arrival is None:
            return None
        found = next(operation for _, number, operation in self._heap if number == arrival)
        if len(self._heap) > 2 * len(self._queued) + 16:
            self._heap = [entry for entry in self._heap if self._queued.get(entry[2].action_id) == entry[1]]
            heapq.heapify(self._heap)
        return found

    def check(self) -> None:
        live = {number for _, number, operation in self._heap if self._queued.get(operation.action_id) == number}
        assert live == set(self._queued.values())

    def _head(self) -> Operation | None:
        heap = self._heap
        while heap and self._queued.get(heap[0][2].action_id) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _pop(self) -> Operation:
        operation = heapq.heappop(self._heap)[2]
        del self._queued[operation.action_id]
        return operation
