"""Core of the selector: it resolves each query to models and gives it exactly one answer.

Query for a model: answered from the prediction cache, by an equal prediction in flight, or by a Submit to the
controller. Outputs come from the worker, an Outcome from the controller. Query for an application: the same for each
model that its policy selects, then combined (applications/query.py). Feedback updates the policies' states
(feedback/, contexts/). applications/application_processor.py passes results between these parts. Queries for a pipeline
are submitted to this selector itself, which executes them (pipelines/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.core.faults import raise_faults
from horologe_common.core.instruments import Stats
from horologe_common.core.message_checks import INVALID_MESSAGES
from horologe_common.core.protocol import UNLIMITED, Out, PeerConnected, PeerDisconnected, role
from horologe_common.core.return_latency import ReturnLatency
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    Cancel,
    Drain,
    ItemsTaken,
    Models,
    Outcome,
    Outputs,
    Pong,
    Query,
    Release,
    Settle,
    Settled,
)
from horologe_selector.core.announced_models import AnnouncedModels
from horologe_selector.core.applications.application_processor import ApplicationProcessor
from horologe_selector.core.message_senders import SENDERS
from horologe_selector.core.pipelines.pipeline_processor import PipelineProcessor
from horologe_selector.core.predictions.cache import prediction_key
from horologe_selector.core.predictions.inflight import OK, InflightPredictions, Waiter
from horologe_selector.core.shared_parts import SharedParts
from horologe_selector.core.streams.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.core.predictions.inflight import PredictionResult
    from horologe_selector.policy import RandomSource
    from horologe_selector.settings import SelectorSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


TOO_LARGE = int(Status.TOO_LARGE)
NO_TICK = frozenset({Query, Outputs, Outcome, Models, Pong})
"""Messages that need a tick only if they concern an application. Most do not, and a tick for each took 3 us."""


ROWS_MAX = 1 << 32


class Selector:
    """Selector core. `random_source` serves the policies; `losses` adds the operator's loss functions by name.

    `shared`: True if other selectors write to the same state store. `store` is the address of the store writer.
    """

    records_predictions = True
    """Recordings keep summaries of its tensors, because predictions influence its decisions."""

    def __init__(
        self,
        address: str,
        settings: SelectorSettings,
        random_source: RandomSource,
        losses: Mapping[str, Loss] | None = None,
        shared: bool = False,
    ) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.store = f"store/{settings.name}"
        self.stats = Stats()
        self.models = AnnouncedModels()
        self.inflight = InflightPredictions(
            address, settings, self.models.pipelines, self.stats, self._post, self._on_result
        )
        self.return_latency = ReturnLatency()
        parts = SharedParts(address, settings, self.models, self.inflight, self.return_latency, self.stats, self._post)
        self.applications = ApplicationProcessor(parts, random_source, losses or {}, self.store, shared)
        self.pipelines = PipelineProcessor(parts)
        self.streams = self.pipelines.calls.streams = Streams(parts, self._send)
        self._frontends: dict[str, bool] = {}
        """Connected frontends, and whether each has replied to Drain: it sends no further queries."""
        self._frame_limits: dict[str, int] = {}
        """Connected frontend -> maximum size (bytes) of the tensors of one message to it."""
        self._draining = False
        self._waiters: dict[tuple[str, int], Waiter] = {}
        """Open queries for one model, by holder and id."""
        self._tick_needed = True
        self._wakeup_ns = 0
        self._faults: list[Exception] = []
        self._handlers: dict[type, Handler] = {
            Query: self._on_query,
            Outputs: self.inflight.on_outputs,
            Outcome: self.inflight.on_outcome,
            Cancel: self._on_cancel,
            Models: self.models.on_models,
            PeerConnected: self._on_peer_connected,
            PeerDisconnected: self._on_peer_disconnected,
            Pong: self._on_pong,
            Settle: self._on_settle,
            Drain: self._on_drain,
            ItemsTaken: self._on_items_taken,
            **self.applications.handlers,
            **self.pipelines.handlers,
        }

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Process a message from a frontend, a worker, the controller, the store writer or the host."""
        kind = type(message)
        if handler := self._handlers.get(kind):
            if (senders := SENDERS.get(kind)) is not None and not sender.startswith(senders):
                self.stats.count(INVALID_MESSAGES, kind.__name__)
                return
            self._tick_needed = self._tick_needed or kind not in NO_TICK
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Work for applications: answer queries at their deadlines, process feedback, send changes to peers."""
        if not self._tick_needed and now_ns < self._wakeup_ns:
            return
        self._tick_needed = False
        for part in (self.applications, self.pipelines, self.streams):
            try:
                part.tick(now_ns)
            except Exception as error:
                self._faults.append(error)
        times = (self.applications.wakeup_ns(), self.pipelines.wakeup_ns(), self.streams.wakeup_ns())
        self._wakeup_ns = min(at_ns for at_ns in times if at_ns is not None)
        faults, self._faults = self._faults, []
        raise_faults(faults)

    def wakeup_ns(self) -> int | None:
        return None if self._wakeup_ns == NEVER_NS else self._wakeup_ns

    def drain(self) -> None:
        """Move the frontends to another selector. Queries that arrive before their replies are answered."""
        self._draining = True
        self.out.extend(Out(frontend, Drain()) for frontend in self._frontends)

    def drained(self) -> bool:
        """Return True if no query is open, none can arrive, and all observations are saved and acknowledged."""
        if self._draining and not all(self._frontends.values()):
            return False
        return not self._waiters and not self.streams and self.applications.drained()

    def check(self) -> None:
        self.inflight.check()
        self.applications.check()
        self.pipelines.check()
        self.streams.check()
        waiting = [
            waiter
            for waiter in self.inflight.waiters()
            if not waiter.application_query and not waiter.pipeline_call and waiter.step is None
        ]
        assert sorted(self._waiters) == sorted((waiter.holder, waiter.query.id) for waiter in waiting)

    def refresh_stats(self) -> None:
        """Update the metrics that are computed from counters, before they are exported."""
        self.applications.registry.publish_metrics(self.stats)
        self.pipelines.registry.publish_metrics(self.stats)
        self.streams.publish_metrics()

    def _post(self, out: Out) -> None:
        self._send(out)

    def _send(self, out: Out) -> bool:
        """Send a message. Outputs that the frontend does not accept are answered TOO_LARGE: then return False."""
        if out.buffers and isinstance(answer := out.message, Answer):
            size, limit = sum(map(len, out.buffers)), self._frame_limits.get(out.to, UNLIMITED)
            if size > limit:
                reason = f"outputs: got {size} bytes, wanted at most {limit} (links.max_frame_bytes)"
                answer = msgspec.structs.replace(answer, status=TOO_LARGE, outputs=(), reason=reason, more=False)
                self.out.append(Out(out.to, answer))
                return False
        self.out.append(out)
        return True

    def _on_query(self, now_ns: int, holder: str, query: Query, buffers: Sequence[Buffer]) -> None:
        if not (0 < query.rows <= ROWS_MAX and abs(query.budget_ns) < NEVER_NS):  # below 0: the deadline has passed
            self.stats.count(INVALID_MESSAGES, "Query")
            reason = f"query: got {query.rows} rows and a budget of {query.budget_ns} ns, which are out of range"
            self.out.append(Out(holder, Answer(query.id, int(Status.INVALID_INPUT), (), reason)))
        elif query.model and query.stream is not None:
            self._tick_needed = True
            self.streams.on_query(now_ns, holder, query)
        elif query.model:
            self._on_model_query(now_ns, holder, query)
        elif (active := self.applications.registry.active.get(query.application)) is not None:
            self._tick_needed = True
            self.applications.queries.on_query(now_ns, holder, query, active)
        else:
            error = self.applications.registry.unknown_application(query.application)
            self.out.append(Out(holder, Answer(query.id, int(error.status), (), error.reason, error.retry_after_ns)))

    def _on_model_query(self, now_ns: int, holder: str, query: Query) -> None:
        """Answer the query from the cache, or wait for its prediction. Ignore a query that is open already.

        A frontend sends its open queries again when it reconnects, perhaps before this selector detected its loss.
        """
        key = holder, query.id
        if key in self._waiters:
            return
        budget_ns = max(0, query.budget_ns - self.return_latency.path_ns.get(holder, 0))
        waiter = Waiter(holder, query, now_ns, now_ns + budget_ns)
        spec = self.models.versions.get(query.model) or self.models.pipelines.get(query.model)
        cache_key = prediction_key(spec, query.input_hash) if query.input_hash and spec is not None else b""
        result = self.inflight.request_prediction(now_ns, waiter, spec, query.model, cache_key)
        if result is None:
            self._waiters[key] = waiter
        else:
            self._answer_model_query(now_ns, waiter, result)

    def _on_result(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Deliver a result. A fault is raised by the next tick: the other rows of the message have results too."""
        try:
            if waiter.application_query:
                self._tick_needed = True
                self.applications.queries.on_result(now_ns, waiter, result)
            elif waiter.pipeline_call:
                self._tick_needed = True
                self.pipelines.calls.on_result(now_ns, waiter, result)
            elif waiter.step is not None:
                self._tick_needed = True
                self.streams.on_result(now_ns, waiter, result)
            else:
                del self._waiters[waiter.holder, waiter.query.id]
                self._answer_model_query(now_ns, waiter, result)
        except Exception as error:
            self._faults.append(error)
            self._tick_needed = True

    def _answer_model_query(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Answer with the prediction, or with the status of its failure."""
        status, outputs, buffers, reason, retry_after_ns, exec_ns, size, cached, content_hash, *_ = result
        number, (name, _, version) = waiter.query.id, waiter.query.model.partition("/")
        computed = status == OK and waiter.submit_id != 0
        queue_ns = max(0, now_ns - waiter.arrival_ns - exec_ns) if computed else 0
        answer = Answer(number, status, outputs, reason, retry_after_ns, name, version, queue_ns, exec_ns, size, cached)
        if waiter.query.content_hash:
            answer = msgspec.structs.replace(answer, content_hashes=(content_hash,))
        self._post(Out(waiter.holder, answer, buffers))

    def _cancel_model_query(self, now_ns: int, holder: str, query_id: int) -> None:
        """Drop a query without an answer, and release its inputs."""
        if waiter := self._waiters.pop((holder, query_id), None):
            self.inflight.remove_waiter(now_ns, waiter)
        self.out.append(Out(holder, Release((query_id,))))

    def _on_cancel(self, now_ns: int, holder: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        if holder == self.address:
            self._tick_needed = True
            for number in message.ids:
                self.pipelines.runs.cancel_run(now_ns, number)
            return
        for query_id in message.ids:
            if self.streams.cancel(now_ns, holder, query_id):
                self._tick_needed = True
            elif not self.applications.queries.cancel_query(now_ns, holder, query_id):
                self._cancel_model_query(now_ns, holder, query_id)

    def _on_items_taken(self, now_ns: int, sender: str, message: ItemsTaken, buffers: Sequence[Buffer]) -> None:
        if sender == self.address:
            self.pipelines.runs.on_taken(message)
        else:
            self.streams.on_taken(now_ns, sender, message)

    def _on_pong(self, now_ns: int, peer: str, pong: Pong, buffers: Sequence[Buffer]) -> None:
        if role(peer) == "driver":
            self._tick_needed = True
            self.pipelines.registry.on_pong(peer, pong)
        else:
            self.return_latency.on_pong(now_ns, peer, pong)

    def _on_drain(self, now_ns: int, frontend: str, message: Drain, buffers: Sequence[Buffer]) -> None:
        self._frontends[frontend] = True

    def _on_settle(self, now_ns: int, controller: str, message: Settle, buffers: Sequence[Buffer]) -> None:
        """Answer at once: the announcement before it has set the contents that cached predictions must have."""
        self.out.append(Out(controller, Settled(message.id)))

    def _on_peer_connected(self, now_ns: int, sender: str, message: PeerConnected, buffers: Sequence[Buffer]) -> None:
        self.return_latency.add_peer(message.address)
        self._tick_needed = True
        match role(message.address):
            case "controller":
                self.models.order.connect(message.address)
                self.inflight.on_controller_connected(now_ns, message.address)
            case "frontend":
                self._frontends[message.address] = False
                self._frame_limits[message.address] = message.max_frame_bytes
                if self._draining:
                    self.out.append(Out(message.address, Drain()))
                if self.applications.registry.loaded:
                    self.out.append(Out(message.address, self.applications.registry.announcement()))
                self.pipelines.announce_to(message.address)
            case "profiler":
                self.pipelines.calls.sampler.profiler = message.address
            case "worker":
                self.out.extend(self.pipelines.staging.add_worker(message.address, message.max_frame_bytes))

    def _on_peer_disconnected(
        self, now_ns: int, sender: str, message: PeerDisconnected, buffers: Sequence[Buffer]
    ) -> None:
        address = message.address
        self.models.order.disconnect(address)
        self.return_latency.remove_peer(address)
        if role(address) in ("worker", "frontend"):
            self._tick_needed = True
            self.streams.remove_peer(now_ns, address)
        if address == self.inflight.controller:
            self.inflight.controller = ""
        elif role(address) == "profiler":
            self.pipelines.calls.sampler.profiler = ""
        elif role(address) == "worker":
            self.pipelines.staging.remove_worker(address)
        elif role(address) == "frontend":
            self._frontends.pop(address, None)
            self._frame_limits.pop(address, None)
            self.applications.queries.cancel_holder(now_ns, address)
            # The newest first: see `ApplicationQueries.cancel_holder`.
            for holder, query_id in [key for key in reversed(self._waiters) if key[0] == address]:
                self._cancel_model_query(now_ns, holder, query_id)
