"""Lanes of a worker: the order in which operations start, and their metrics. Pure.

A `OperationQueue` is driven by a thread in the worker process and by the event heap in the simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.instruments import ModelCounters
from horologe_common.status import STATUS_NAMES, Status
from horologe_gpu_worker.core.stream_step import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.instruments import Stats
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport, Tensor

FAILURES = ("REFUSED", "FAILED", "TOO_LATE")
"""Statuses of failed operations. Their counters start at 0."""
FAILURE_CAUSES = ("error", "crash", "hang")
PROCESS_ENDS = ("crash", "hang")
"""Causes after which the model has no process any more."""


class LaneOperation(msgspec.Struct, frozen=True, gc=False):
    """The part of an action that one lane runs, sent from the worker core to its lanes. Never leaves the process."""

    action_id: int
    share: int
    lane: str
    """`load`, `unload` (both on the load lane), `input`, `exec`, `output`, `scan`, `replace` or `end` (of streams)."""
    model: str
    """Key `name/version`; for `scan` the model of the Scan message; for `end` empty if it is for all models."""
    batch_size: int = 0
    """The compiled batch size to run; `rows` of it hold requests, the rest is padding."""
    rows: int = 0
    earliest_ns: int = 0
    latest_ns: int = NEVER_NS
    """The operation begins inside [earliest_ns, latest_ns] or not at all."""
    expected_ns: int = 0
    inputs: Sequence[tuple[Tensor, Sequence[Buffer]]] = ()
    """Per input tensor: one header for all rows without padding, and the bytes of each row."""
    staged: Any = None
    """Data that `input` or `exec` left on the device for the next lane, if the model has those lanes."""
    spec: ModelSpec | None = None
    """The content of the model that the inputs were checked against. None: not known."""
    shapes: Sequence[Sequence[tuple[int, ...]]] = ()
    """Per input tensor: the shape of each row, if shapes differ and rows are padded to the shape of the header."""
    request_rows: Sequence[int] = ()
    """Rows of each request in the batch."""
    step: Step | None = None
    """The step of a stream that the operation is."""
    owner: str = ""
    """For `end`: the owner of the streams, and their numbers. Without numbers: all of them."""
    streams: tuple[int, ...] = ()

    @property
    def runtime(self) -> str:
        """Return the runtime of the model; empty if it is not known."""
        return self.spec.runtime if self.spec else ""


class Abort(msgspec.Struct, frozen=True, gc=False):
    """Message to a lane: remove this operation if it has not begun. It then finishes as CANCELLED."""

    action_id: int
    share: int
    lane: str


class Finished(msgspec.Struct, frozen=True, gc=False):
    """Message from a lane to the worker core: the result of an operation.

    `begin_ns` equals `end_ns` if the operation never ran.
    """

    action_id: int
    lane: str
    status: int
    begin_ns: int
    end_ns: int
    device_ns: int = 0
    outputs: Sequence[tuple[Tensor, Buffer]] = ()
    """Header (without padding rows) and bytes of every output, after `exec` or, if the model has that lane, `output`.
    """
    reason: str = ""
    staged: Any = None
    models: Sequence[ModelReport] = ()
    """After `scan`: the models of the repository."""
    content_hash: str = ""
    """With outputs: content of the model that ran."""
    failure: tuple[str, str] | None = None
    """After an operation that FAILED: key of the model, and cause as in `FAILURE_CAUSES`."""
    more: bool = False
    """After a step of a stream: more items may follow."""
    failed: Sequence[tuple[int, str]] = ()
    """After `exec`: requests that failed alone, by their index in the operation's `request_rows`, each with the reason.
    """


class VersionScanned(msgspec.Struct, frozen=True, gc=False):
    """Message to the worker core: the state of a version while its model is scanned, or the result for the version."""

    scan_id: int
    report: ModelReport


class ModelsChanged(msgspec.Struct, frozen=True, gc=False):
    """Message to the worker core: files of these models (names) have changed in the repository."""

    names: tuple[str, ...]


def finish(
    operation: LaneOperation, status: Status, begin_ns: int, end_ns: int, device_ns: int = 0, **result: Any
) -> Finished:
    """Return the Finished message of an operation with these further fields. `device_ns` 0: `end_ns` - `begin_ns`."""
    took_ns = device_ns or end_ns - begin_ns
    return Finished(operation.action_id, operation.lane, status, begin_ns, end_ns, took_ns, **result)


def not_run(operation: LaneOperation, status: Status, now_ns: int, reason: str = "") -> Finished:
    """Return the Finished message of an operation that never ran."""
    return finish(operation, status, now_ns, now_ns, reason=reason)


class OperationQueue:
    """Queue of operations ordered by (earliest_ns, arrival), as in Clockwork section 5.2. One runs at a time.

    Invariant: every pushed operation leaves exactly once, by `pop_startable`, `pop_expired` or `remove_operation`.
    """

    def __init__(self) -> None:
        self._order: IndexedHeap[int, tuple[int, int]] = IndexedHeap()
        """Action ids by (earliest_ns, arrival)."""
        self._operations: dict[int, LaneOperation] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._operations)

    def push(self, operation: LaneOperation) -> None:
        """Queue an operation. An action has at most one operation in a lane."""
        self._arrivals += 1
        self._operations[operation.action_id] = operation
        self._order.push(operation.action_id, (operation.earliest_ns, self._arrivals))

    def pop_expired(self, now_ns: int) -> LaneOperation | None:
        """Remove and return an operation whose window closed before its turn; it must not run.

        Call until None, before `pop_startable`.
        """
        first = self._order.peek()
        if first is None or self._operations[first[1]].latest_ns >= now_ns:
            return None
        return self._pop_first()

    def pop_startable(self, now_ns: int) -> LaneOperation | int | None:
        """Remove and return the operation to begin at `now_ns`.

        If none can begin, return the time in ns until the first can, or None if the lane is empty. The returned
        operation is inside its window: while the first operation's window has closed, the time is 0.
        """
        first = self._order.peek()
        if first is None:
            return None
        if self._operations[first[1]].latest_ns < now_ns:
            return 0
        earliest_ns = first[0][0]
        return self._pop_first() if earliest_ns <= now_ns else earliest_ns - now_ns

    def remove_operation(self, action_id: int) -> LaneOperation | None:
        """Remove and return the queued operation of this action; None if it is not queued."""
        self._order.remove(action_id)
        return self._operations.pop(action_id, None)

    def check(self) -> None:
        self._order.check()
        assert set(self._order) == set(self._operations)

    def _pop_first(self) -> LaneOperation:
        return self._operations.pop(self._order.pop()[1])


class LaneMetrics:
    """Metrics of a worker's lanes: operations by status, busy time and queueing delay, summed over its shares.

    Invariant: `len` is the number of operations that the lanes hold.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._possible_ns: dict[int, int] = {}
        """Action id -> earliest time at which its operation could begin. An action is in one lane at a time."""
        self.failures = ModelCounters(stats, "horologe_model_failures_total", FAILURE_CAUSES)
        stats.create_counters("horologe_lane_operations_total", ("load", "unload", "input", "exec", "output"), FAILURES)

    def __len__(self) -> int:
        return len(self._possible_ns)

    def record_queued(self, now_ns: int, operation: LaneOperation) -> None:
        """Record that an operation was queued."""
        self._possible_ns[operation.action_id] = max(now_ns, operation.earliest_ns)

    def record_finished(self, finished: Finished) -> None:
        """Record a finished operation. One that never ran (`begin_ns` == `end_ns`) has no busy time and no delay."""
        possible_ns = self._possible_ns.pop(finished.action_id, None)
        stats, lane = self._stats, finished.lane
        stats.count("horologe_lane_operations_total", lane, STATUS_NAMES[finished.status])
        if finished.failure:
            name, _, version = finished.failure[0].partition("/")
            self.failures.count(name, version, finished.failure[1])
        if busy_ns := finished.end_ns - finished.begin_ns:
            stats.count("horologe_lane_busy_seconds_total", lane, by=busy_ns / 1e9)
            if possible_ns is not None:
                stats.observe("horologe_lane_wait_seconds", lane, value=max(0, finished.begin_ns - possible_ns))
