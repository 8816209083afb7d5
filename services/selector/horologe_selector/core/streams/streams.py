"""Streams: queries whose outputs are sent as items, each with a deadline of its own.

A stream of a model is a loop of steps. Each step is a prediction of the model, submitted, refused or run like any
other. The first step has the inputs and may run anywhere. Later steps run on the share that keeps the state of the
stream. The next step is submitted when the item before is there and the receiver has room for another one, so a stream
holds no device between its steps. A pipeline makes the items itself, and gets the number of those that were taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import (
    STREAM_IDLE_NS,
    STREAM_WINDOW,
    Answer,
    EndStreams,
    ItemsTaken,
    Query,
    Release,
    StreamLimits,
    StreamStep,
)
from horologe_selector.core.predictions.inflight import OK, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.predictions.inflight import PredictionResult
    from horologe_selector.core.shared_parts import SharedParts

    StreamKey = tuple[str, int]
    """(holder, id of the query)."""

ALWAYS_LATE = frozenset(map(int, (Status.REFUSED, Status.LATE)))
"""Failures of a step because of its deadline. After the first item, the stream is LATE: work was done for it."""
NO_LIMITS = StreamLimits()


class Stream(msgspec.Struct, eq=False):
    """An open stream. Times are of this selector's clock."""

    holder: str
    query: Query
    limits: StreamLimits
    arrival_ns: int
    deadline_ns: int
    """Of the whole stream. `NEVER_NS`: none."""
    due_ns: int = NEVER_NS
    """When the next item must be here."""
    asked_ns: int = 0
    """When the next item was asked for."""
    sent: int = 0
    """Items sent to the holder."""
    taken: int = 0
    """Items that the receiver has taken."""
    step: int = 0
    """Number of the last step that was submitted."""
    waiter: Waiter | None = None
    """The step, or the run of the pipeline, that is in flight."""
    number: int = 0
    """Number of the stream at its worker: `StreamStep.stream`."""
    worker: str = ""
    """Worker and share that keep its state. Empty before the first step has run."""
    share: int = 0

    @property
    def key(self) -> StreamKey:
        return self.holder, self.query.id

    @property
    def has_room(self) -> bool:
        """Return whether the receiver has room for another item."""
        return self.sent - self.taken < STREAM_WINDOW


class Streams:
    """All open streams. Invariant: each ends once, by its answer or because it was cancelled."""

    def __init__(self, parts: SharedParts, send_answer: Callable[[Out], bool]) -> None:
        """`send_answer`: sends an Answer; False if it was too large, and TOO_LARGE was answered instead."""
        self._limit = parts.settings.streams
        self._pipelines = parts.models.pipelines
        self._inflight = parts.inflight
        self._path_ns = parts.return_latency.path_ns
        self._stats = parts.stats
        self._post = parts.post
        self._send_answer = send_answer
        self._streams: dict[StreamKey, Stream] = {}
        self._timers: IndexedHeap[StreamKey, int] = IndexedHeap()
        self._open_by_model: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def on_query(self, now_ns: int, holder: str, query: Query) -> None:
        """Open a stream. Ignore a query that is open already. Refuse it if too many are open."""
        if (holder, query.id) in self._streams:
            return
        if len(self._streams) >= self._limit:
            reason = f"{self._limit} streams are open (selector.streams)"
            self._send_answer(Out(holder, Answer(query.id, int(Status.REFUSED), (), reason)))
            return
        limits, deadline_ns = query.stream or NO_LIMITS, now_ns + query.budget_ns
        stream = Stream(holder, query, limits, now_ns, NEVER_NS if query.best_effort else deadline_ns)
        self._streams[stream.key] = stream
        self._count_open(stream, 1)
        self._ask_for_item(now_ns, stream)

    def on_taken(self, now_ns: int, holder: str, message: ItemsTaken, buffers: Sequence[Buffer] = ()) -> None:
        """Make further items, now that the receiver has taken some."""
        stream = self._streams.get((holder, message.id))
        if stream is None or not stream.taken < message.items <= stream.sent:
            return
        had_room, stream.taken = stream.has_room, message.items
        if stream.waiter is not None and self._is_pipeline(stream):
            self._post(Out(self._inflight.address, ItemsTaken(stream.waiter.submit_id, stream.taken)))
        if not had_room:
            self._ask_for_item(now_ns, stream)

    def on_result(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Send the item of a step, and submit the next one; or end the stream."""
        if (stream := self._streams.get((waiter.holder, waiter.query.id))) is None:
            return
        if result.worker:
            stream.worker, stream.share = result.worker, result.share
        if result.status != OK:
            stream.waiter = None
            self._fail(now_ns, stream, result)
        elif now_ns > min(stream.due_ns, stream.deadline_ns):
            stream.waiter = stream.waiter if result.more and self._is_pipeline(stream) else None
            self._end_late(now_ns, stream)
        else:
            self._send_item(now_ns, stream, result)

    def cancel(self, now_ns: int, holder: str, query_id: int) -> bool:
        """Drop a stream without an answer, and release its inputs. Return False if it is not open."""
        if (stream := self._streams.get((holder, query_id))) is None:
            return False
        self._remove(now_ns, stream)
        self._post(Out(holder, Release((query_id,))))
        return True

    def remove_peer(self, now_ns: int, address: str) -> None:
        """Cancel the streams of a holder that has disconnected. End those whose worker has as LOST."""
        for stream in list(self._streams.values()):
            if stream.holder == address:
                self._remove(now_ns, stream)
            elif stream.worker == address:
                reason = f"{address} has disconnected, with the state of the stream after {stream.sent} items"
                self._finish(now_ns, stream, Status.LOST, reason)

    def tick(self, now_ns: int) -> None:
        """End the streams whose next item is late, or whose receiver has taken none for too long."""
        for key in self._timers.pop_up_to(now_ns):
            stream = self._streams[key]
            if stream.has_room or now_ns >= stream.deadline_ns:
                self._end_late(now_ns, stream)
            else:
                reason = f"no item was taken for {STREAM_IDLE_NS / 1e9:g} s, after {stream.taken} of {stream.sent}"
                self._finish(now_ns, stream, Status.CANCELLED, reason)

    def wakeup_ns(self) -> int | None:
        return self._timers.smallest_priority()

    def publish_metrics(self) -> None:
        for labels, count in list(self._open_by_model.items()):
            self._stats.set("horologe_streams_open", *labels, to=count)

    def check(self) -> None:
        self._timers.check()
        assert set(self._timers) <= set(self._streams)
        assert sum(self._open_by_model.values()) == len(self._streams)
        for stream in self._streams.values():
            assert 0 <= stream.taken <= stream.sent <= stream.taken + STREAM_WINDOW
            assert stream.waiter is not None or not stream.has_room

    def _is_pipeline(self, stream: Stream) -> bool:
        return stream.query.model in self._pipelines

    def _ask_for_item(self, now_ns: int, stream: Stream) -> None:
        """Submit the step of the next item, if the receiver has room for it; a pipeline makes it by itself."""
        if not stream.has_room:
            stream.due_ns = NEVER_NS
            self._timers.push(stream.key, min(stream.deadline_ns, now_ns + STREAM_IDLE_NS))
            return
        limits, query = stream.limits, stream.query
        limit_ns = limits.gap_ns if stream.sent else limits.first_ns
        if not limit_ns and query.best_effort:
            limit_ns = query.budget_ns
        stream.asked_ns, stream.due_ns = now_ns, now_ns + limit_ns if limit_ns else NEVER_NS
        self._timers.push(stream.key, min(stream.due_ns, stream.deadline_ns))
        if stream.waiter is None:
            self._submit_step(now_ns, stream)

    def _submit_step(self, now_ns: int, stream: Stream) -> None:
        query, limits = stream.query, stream.limits
        has_limit = bool(limits.gap_ns if stream.sent else limits.first_ns)
        if query.best_effort and has_limit:
            query = msgspec.structs.replace(query, best_effort=False)
        due_ns = stream.deadline_ns if self._is_pipeline(stream) else min(stream.due_ns, stream.deadline_ns)
        deadline_ns = due_ns - self._path_ns.get(stream.holder, 0)
        stream.step += 1
        waiter = stream.waiter = Waiter(stream.holder, query, now_ns, max(now_ns, deadline_ns))
        waiter.step = StreamStep(stream.number, stream.step, stream.worker, stream.share)
        result = self._inflight.request_prediction(now_ns, waiter, None, query.model, b"")
        assert result is None  # without a key nothing is cached
        stream.number = stream.number or waiter.submit_id

    def _send_item(self, now_ns: int, stream: Stream, result: PredictionResult) -> None:
        if not (result.more and self._is_pipeline(stream)):
            stream.waiter = None
        if not result.more:
            stream.worker = ""  # its state has been dropped there
        if result.more and not result.outputs:
            self._submit_step(now_ns, stream)  # it needs further steps for the item
            return
        if result.outputs:
            self._observe_item(now_ns, stream)
        query, (name, _, version) = stream.query, stream.query.model.partition("/")
        answer = Answer(query.id, OK, result.outputs, "", 0, name, version, exec_ns=result.exec_ns, more=result.more)
        answer = msgspec.structs.replace(
            answer,
            queue_ns=max(0, now_ns - stream.asked_ns - result.exec_ns),
            content_hashes=(result.content_hash,) if query.content_hash else (),
        )
        is_sent = self._send_answer(Out(stream.holder, answer, result.buffers))
        if not (is_sent and result.more):
            self._remove(now_ns, stream)
            return
        stream.sent += 1
        self._ask_for_item(now_ns, stream)

    def _observe_item(self, now_ns: int, stream: Stream) -> None:
        name, _, version = stream.query.model.partition("/")
        metric = "horologe_stream_gap_seconds" if stream.sent else "horologe_stream_first_item_seconds"
        self._stats.observe(metric, name, version, value=now_ns - stream.asked_ns)

    def _fail(self, now_ns: int, stream: Stream, result: PredictionResult) -> None:
        """End a stream whose step has failed."""
        if stream.step > 1 and result.status in ALWAYS_LATE:
            self._end_late(now_ns, stream, result.reason)
        elif stream.step > 1 and result.status == Status.UNKNOWN_MODEL:
            self._finish(now_ns, stream, Status.LOST, result.reason)  # it was unloaded, with the state of the stream
        else:
            self._finish(now_ns, stream, Status(result.status), result.reason, result.retry_after_ns)

    def _end_late(self, now_ns: int, stream: Stream, cause: str = "") -> None:
        is_whole = stream.deadline_ns <= stream.due_ns  # the earlier limit: a step may fail before both
        limit_ns = stream.deadline_ns - stream.arrival_ns if is_whole else stream.due_ns - stream.asked_ns
        what = f"the stream, with {stream.sent} items," if is_whole else f"item {stream.sent + 1} of the stream"
        reason = f"{what} was not there within {limit_ns / 1e6:g} ms"
        self._finish(now_ns, stream, Status.LATE, f"{reason}: {cause}" if cause else reason)

    def _finish(self, now_ns: int, stream: Stream, status: Status, reason: str, retry_after_ns: int = 0) -> None:
        """End a stream with its answer."""
        self._remove(now_ns, stream)
        self._send_answer(Out(stream.holder, Answer(stream.query.id, int(status), (), reason, retry_after_ns)))

    def _remove(self, now_ns: int, stream: Stream) -> None:
        """Remove a stream, cancel its step in flight, and drop its state at the worker."""
        del self._streams[stream.key]
        self._timers.remove(stream.key)
        self._count_open(stream, -1)
        if stream.waiter is not None:
            self._inflight.remove_waiter(now_ns, stream.waiter)
        if stream.worker:
            self._post(Out(stream.worker, EndStreams(stream.share, stream.query.model, (stream.number,))))

    def _count_open(self, stream: Stream, by: int) -> None:
        name, _, version = stream.query.model.partition("/")
        self._open_by_model[name, version] = self._open_by_model.get((name, version), 0) + by
