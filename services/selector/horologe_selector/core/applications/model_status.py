"""Requests for the status of an application's models in a context, answered once the context's state is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import ApplicationInfo, Applications
from horologe_selector.core.contexts.context import context_key, read_context
from horologe_selector.store import TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.application_registry import ApplicationRegistry
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.store import Record, RecordsRead

PENDING_LIMIT = 1000
"""Maximum number of requests that wait for states to be read; more are refused."""


class PendingStatus(msgspec.Struct):
    """Status requests that wait for one context's state."""

    application: str
    deadline_ns: int
    senders: list[tuple[str, int]] = []
    """Frontend, and its id of the request."""


class ModelStatusRequests:
    """Pending status requests. Invariant: each is answered after `TIMES.read_timeout_ns` at the latest.

    A status request does not create a context, and does not keep one in memory.
    """

    def __init__(self, registry: ApplicationRegistry, contexts: Contexts, post: Callable[[Out], None]) -> None:
        self._registry = registry
        self._contexts = contexts
        self._post = post
        self._pending: dict[str, PendingStatus] = {}
        """Keyed by the context's record, the earliest deadline first."""

    def on_application_info(
        self, now_ns: int, frontend: str, message: ApplicationInfo, buffers: Sequence[Buffer] = ()
    ) -> None:
        """Answer with all declarations, or with the named application and the status of its models."""
        name, sender = message.name, (frontend, message.id)
        if not name:
            self._post(Out(frontend, Applications(message.id, self._registry.announced_states())))
            return
        contexts, context = self._contexts, message.context
        active = self._registry.active.get(name)
        if active is None or not contexts.is_stale(now_ns, active, context):
            self._answer(name, sender, None if active is None else contexts.cached_state(active, context))
            return
        if sum(len(pending.senders) for pending in self._pending.values()) >= PENDING_LIMIT:
            reason = f"{PENDING_LIMIT} status requests already wait for the state store"
            self._post(Out(frontend, Applications(message.id, (), int(Status.REFUSED), reason)))
            return
        key = context_key(name, context)
        if key not in self._pending:
            contexts.request_read(key)
            self._pending[key] = PendingStatus(name, now_ns + TIMES.read_timeout_ns)
        self._pending[key].senders.append(sender)

    def on_records_read(self, message: RecordsRead) -> None:
        """Answer the requests whose records are in `message`. It may also be a reply to other reads."""
        if not self._pending:
            return
        for index, key in enumerate(message.keys):
            if key in self._pending:
                self._finish_requests(key, message.records[index] if message.records else None)

    def tick(self, now_ns: int) -> None:
        """Answer overdue requests with the state in memory."""
        while self._pending and (first := next(iter(self._pending.items())))[1].deadline_ns <= now_ns:
            self._finish_requests(first[0], None)

    def next_ns(self) -> int | None:
        return next(iter(self._pending.values())).deadline_ns if self._pending else None

    def remove_application(self, name: str) -> None:
        for key in [key for key, pending in self._pending.items() if pending.application == name]:
            self._finish_requests(key, None)

    def _finish_requests(self, key: str, record: Record | None) -> None:
        pending = self._pending.pop(key)
        active, state = self._registry.active.get(pending.application), None
        if active is not None and record is not None:
            state = read_context(active, record.data).state
        elif active is not None:
            state = self._contexts.cached_state(active, key.partition("\n")[2])
        for sender in pending.senders:
            self._answer(pending.application, sender, state)

    def _answer(self, name: str, sender: tuple[str, int], state: Any) -> None:
        """Answer one request. `state` None stands for the state of a new context."""
        frontend, number = sender
        active = self._registry.active.get(name)
        if active is None:
            error = self._registry.unknown_application(name)
            self._post(Out(frontend, Applications(number, (), int(error.status), error.reason)))
            return
        shown = active.policy.init() if state is None else state
        described = active.describe(shown, self._contexts.count_contexts(name))
        self._post(Out(frontend, Applications(number, (described,))))
