"""Work for applications in a turn: removals, queries whose state is known, feedback, and messages to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_selector.core.applications.registry import FAMILY, MODEL_METRICS
from horologe_selector.store import RecordsRead, RecordsWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.instruments import Stats
    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.model_status import ModelStatusRequests
    from horologe_selector.core.applications.query import ApplicationQueries
    from horologe_selector.core.applications.registry import ApplicationRegistry
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.core.feedback.feedback import FeedbackProcessor
    from horologe_selector.core.return_latency import ReturnLatency


class ApplicationProcessor:
    """Passes results between registry, contexts, queries and feedback, which do not know one another.

    `post` sends a message to a peer; the state store is the one at `store`.
    """

    def __init__(
        self,
        registry: ApplicationRegistry,
        contexts: Contexts,
        model_status: ModelStatusRequests,
        feedback: FeedbackProcessor,
        queries: ApplicationQueries,
        return_latency: ReturnLatency,
        stats: Stats,
        store: str,
        post: Callable[[Out], None],
    ) -> None:
        self._registry = registry
        self._contexts = contexts
        self._model_status = model_status
        self._feedback = feedback
        self._queries = queries
        self._return_latency = return_latency
        self._stats = stats
        self._store = store
        self._post = post

    def tick(self, now_ns: int) -> None:
        """Answer queries at their deadlines, process feedback, send changes to peers."""
        self._registry.tick(now_ns)
        if self._registry.changed:
            self._announce_applications()
        self._queries.tick(now_ns)
        self._contexts.tick(now_ns)
        self._model_status.tick(now_ns)
        for name, context in self._contexts.pop_ready():
            self._queries.on_state_ready(now_ns, name, context)
        self._process_feedback(now_ns)
        for out in self._return_latency.pings(now_ns):
            self._post(out)
        for message in self._contexts.pop_messages():
            self._post(Out(self._store, message))

    def on_store_reply(
        self, now_ns: int, store: str, message: RecordsRead | RecordsWritten, buffers: Sequence[Buffer]
    ) -> None:
        """Pass a reply on to the registry, or to the contexts and the status requests."""
        if isinstance(message, RecordsWritten) and message.changes[0].key.startswith(f"{FAMILY}\n"):
            self._registry.on_written(now_ns, message)
        else:
            self._contexts.on_store_reply(now_ns, message)
            if isinstance(message, RecordsRead):
                self._model_status.on_records_read(message)

    def _process_feedback(self, now_ns: int) -> None:
        """Log answered queries for feedback, join repredictions with theirs, and start new repredictions."""
        queries, feedback = self._queries, self._feedback
        finished, queries.finished = queries.finished, []
        for query in finished:
            if query.token:
                feedback.on_repredicted(now_ns, query.token, query.values, query.selection)
            else:
                name, context = query.active.application.name, query.query.context
                feedback.predictions.add(query.prediction, name, context, query.selection, query.cache_keys)
        feedback.tick(now_ns)
        for again in feedback.pop_unstarted_repredictions():
            holder = again.item.feedback.frontend
            queries.on_query(now_ns, holder, again.query, again.active, again.token, again.selection)
        for out in feedback.pop_messages():
            self._post(out)

    def _announce_applications(self) -> None:
        """Drop the contexts of removed applications, and announce the present ones to all frontends."""
        self._registry.changed = False
        removed = self._registry.pop_removed()
        for name, erase in removed:
            self._contexts.remove_application(name, erase)
            self._model_status.remove_application(name)
        if removed:
            self._stats.remove_values(MODEL_METRICS, *[name for name, _ in removed])
        announcement = self._registry.announcement()
        for frontend in self._return_latency.frontends():
            self._post(Out(frontend, announcement))
