"""The part of the selector core that serves applications: queries, feedback, declarations and the state store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.protocol import Out
from horologe_common.wire import ApplicationInfo, Declare, Feedback, Rollback, Withdraw
from horologe_selector.core.applications.application_registry import FAMILY, MODEL_METRICS, ApplicationRegistry
from horologe_selector.core.applications.model_status import ModelStatusRequests
from horologe_selector.core.applications.query import ApplicationQueries
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.core.feedback.feedback import FeedbackProcessor
from horologe_selector.store import FamilyListed, RecordsRead, RecordsWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.core.contexts.contexts import StoreRequest
    from horologe_selector.core.shared_parts import SharedParts
    from horologe_selector.policy import RandomSource


class ApplicationProcessor:
    """Registry, contexts, queries and feedback of the applications. Passes results between them.

    `handlers`: by the type of message. `store`: address of the state store. `shared`: other selectors write to it too.
    """

    def __init__(
        self,
        parts: SharedParts,
        random_source: RandomSource,
        losses: Mapping[str, Loss],
        store: str,
        shared: bool,
    ) -> None:
        self._store = store
        self._return_latency = parts.return_latency
        self._stats = parts.stats
        self._post = parts.post
        self.registry = ApplicationRegistry(losses, parts.models, parts.post, store, shared)
        self.contexts = Contexts(parts.settings, parts.address, shared, self._send_to_store)
        self._model_status = ModelStatusRequests(self.registry, self.contexts, parts.post)
        self._feedback = FeedbackProcessor(
            parts.settings,
            self.registry.active,
            self.contexts,
            parts.inflight.cache,
            self.registry.unknown_application,
            parts.post,
        )
        self.queries = ApplicationQueries(parts, random_source, self.contexts)
        self.handlers: dict[type, Callable[[int, str, Any, Sequence[Buffer]], None]] = {
            Declare: self.registry.on_declare,
            Withdraw: self.registry.on_withdraw,
            Rollback: self.registry.on_rollback,
            ApplicationInfo: self._model_status.on_application_info,
            Feedback: self._feedback.on_feedback,
            RecordsRead: self._on_store_reply,
            RecordsWritten: self._on_store_reply,
            FamilyListed: self.registry.on_listed,
        }

    def tick(self, now_ns: int) -> None:
        """Answer queries at their deadlines, process feedback, send changes to peers."""
        self.registry.tick(now_ns)
        if self.registry.changed:
            self._announce_applications()
        self.queries.tick(now_ns)
        self.contexts.tick(now_ns)
        self._model_status.tick(now_ns)
        for name, context in self.contexts.pop_ready():
            self.queries.on_state_ready(now_ns, name, context)
        self._process_feedback(now_ns)
        for out in self._return_latency.pings(now_ns):
            self._post(out)

    def wakeup_ns(self) -> int | None:
        times = (
            self.queries.deadlines.smallest_priority(),
            self.contexts.wakeup_ns(),
            self._feedback.wakeup_ns(),
            self.registry.next_ns(),
            self._return_latency.next_ns(),
            self._model_status.next_ns(),
            0 if self.queries.finished else None,
        )
        return min([at_ns for at_ns in times if at_ns is not None], default=None)

    def drained(self) -> bool:
        """Return True if no query is open, and all observations are saved and acknowledged."""
        return not self.queries and not self.contexts.unsaved and not len(self._feedback)

    def check(self) -> None:
        self.queries.check()
        self.contexts.check()
        self._feedback.check()

    def _send_to_store(self, message: StoreRequest) -> None:
        self._post(Out(self._store, message))

    def _on_store_reply(
        self, now_ns: int, store: str, message: RecordsRead | RecordsWritten, buffers: Sequence[Buffer]
    ) -> None:
        """Pass a reply on to the registry, or to the contexts and the status requests."""
        if isinstance(message, RecordsWritten) and message.changes[0].key.startswith(f"{FAMILY}\n"):
            self.registry.on_written(now_ns, message)
        else:
            self.contexts.on_store_reply(now_ns, message)
            if isinstance(message, RecordsRead):
                self._model_status.on_records_read(message)

    def _process_feedback(self, now_ns: int) -> None:
        """Log answered queries for feedback, join repredictions with theirs, and start new repredictions."""
        queries, feedback = self.queries, self._feedback
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

    def _announce_applications(self) -> None:
        """Drop the contexts of removed applications, and announce the present ones to all frontends."""
        self.registry.changed = False
        removed = self.registry.pop_removed()
        for name, erase in removed:
            self.contexts.remove_application(name, erase)
            self._model_status.remove_application(name)
        if removed:
            self._stats.remove_values(MODEL_METRICS, *[name for name, _ in removed])
        announcement = self.registry.announcement()
        for frontend in self._return_latency.frontends():
            self._post(Out(frontend, announcement))
