"""States of the policies, one for each application and context (Clipper section 5.3), in memory and in the store.

An observation changes the state in memory at once and is saved later. While a write of a context is in flight, new
observations of it are collected for the next write. If another selector wrote first, the unsaved observations are
observed again upon the state that is stored then. Each observation counts exactly once: a record names the last write
of each writer in it, which shows whether a write whose reply was lost was done.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any

from horologe_selector.core.contexts.context import context_family, context_key
from horologe_selector.core.contexts.context_cache import ContextLru
from horologe_selector.store import (
    DAMAGED,
    DAMAGED_LIMIT,
    TIMES,
    DamagedRecord,
    ReadRecords,
    RecordsRead,
    RecordsWritten,
    TrimFamily,
    WriteRecords,
    aside_change,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_selector.core.applications.active_application import ActiveApplication
    from horologe_selector.core.contexts.context import Context
    from horologe_selector.policy import Selection
    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import Record, StoreTimes

    StoreRequest = ReadRecords | WriteRecords | TrimFamily | DamagedRecord

TRIM_EVERY = 16
"""The store is trimmed whenever 1/16 of an application's limit of contexts has been added to it."""


class Contexts:
    """Contexts of all applications.

    `saved` collects the tokens of observations that are durable, `failed` the tokens of those that cannot be saved,
    with the reason. The caller clears both. `send` sends a message to the store writer.
    """

    def __init__(
        self,
        settings: SelectorSettings,
        address: str,
        shared: bool,
        send: Callable[[StoreRequest], None],
        times: StoreTimes = TIMES,
    ) -> None:
        self._send = send
        self._times = times
        self.saved: list[Any] = []
        self.failed: list[tuple[Any, str]] = []
        self.unsaved = 0
        self._writer = int.from_bytes(hashlib.blake2b(address.encode(), digest_size=7).digest())
        self._shared = shared
        self._contexts = ContextLru(settings.contexts_memory)
        self._dirty: list[Context] = []
        self._unconfirmed: list[Context] = []
        """Contexts whose last write has an unknown outcome."""
        self._unread: list[str] = []
        """Keys of the contexts whose read was not sent to the store yet."""
        self._without_state: deque[tuple[int, Context]] = deque()
        """Contexts that are read and have no state, by the time at which they get a new one."""
        self._ready: list[tuple[str, str]] = []
        self._created: dict[str, int] = {}
        self._writes = 0
        self._retry_ns = 0
        """Time of the next attempt to reach the store; 0 while it is available."""

    @property
    def store_unavailable(self) -> bool:
        return self._retry_ns > 0

    def count_contexts(self, application: str) -> int:
        return self._contexts.count_contexts(application)

    def get_state(self, now_ns: int, active: ActiveApplication, name: str) -> Any:
        """Return the state of a context, or None while it is being read; `pop_ready` reports when it is known.

        For an application that has been replaced, adapt the state in memory to its old declaration.
        """
        if active.replaced:
            return self.cached_state(active, name) or active.policy.init()
        context = self._contexts.touch(active, name)
        if context.read_ns < 0 or self._shared:
            self._refresh(now_ns, context)
        context.awaited = context.awaited or context.state is None
        return context.state

    def cached_state(self, active: ActiveApplication, name: str) -> Any:
        """Return the state in memory, adapted to `active`, or None. Do not read or create anything."""
        context = self._contexts.peek(context_key(active.application.name, name))
        if context is None or context.state is None:
            return None
        return context.state if context.active is active else active.policy.init(context.state)

    def is_stale(self, now_ns: int, active: ActiveApplication, name: str) -> bool:
        """Return True if the store may hold a newer state than memory. For callers that then use `request_read`."""
        context = self._contexts.peek(context_key(active.application.name, name))
        if context is None or context.state is None:
            return True
        return self._shared and not context.is_busy and not self._is_fresh(now_ns, context)

    def request_read(self, key: str) -> None:
        """Read a record without creating a context. The caller takes the result from the `RecordsRead` itself."""
        self._send(ReadRecords((key,)))

    def pop_ready(self) -> list[tuple[str, str]]:
        """Return (application, context) of awaited states that are now known, or that could not be read."""
        ready, self._ready = self._ready, []
        return ready

    def observe(
        self,
        now_ns: int,
        active: ActiveApplication,
        name: str,
        selection: Selection,
        losses: Mapping[str, float],
        token: Any,
        observation: bytes = b"",
    ) -> None:
        """Observe losses of models in `selection`. The token is added to `saved` when the observation is durable.

        `observation` is the name of the observation (`observation_name`). While it is among the latest of its context,
        a duplicate is not counted.
        """
        context = self._contexts.touch(active, name)
        if context.read_ns < 0:
            self._refresh(now_ns, context)
        if context.observe(selection, losses, token, observation):
            self.unsaved += 1
            self._mark_dirty(context)
        else:
            self.saved.append(token)

    def on_store_reply(self, now_ns: int, message: Any) -> None:
        """Process a `RecordsRead` or `RecordsWritten`. Keys that belong to no context are ignored."""
        if isinstance(message, RecordsRead):
            self._on_records_read(now_ns, message)
        elif isinstance(message, RecordsWritten):
            self._on_records_written(now_ns, message)

    def tick(self, now_ns: int) -> None:
        """Send reads and writes to the store; continue without states that were not read in time."""
        self._end_overdue_reads(now_ns)
        self._contexts.shrink()
        if now_ns < self._retry_ns:
            return
        if self._unread:
            self._send(ReadRecords(tuple(self._unread)))
            self._unread.clear()
        if self._dirty or self._unconfirmed:
            # A retried write is unchanged, so that its number identifies it.
            changes = [context.change for context in self._unconfirmed if context.change]
            for context in self._dirty:
                self._writes += 1
                changes.append(context.start_write(self._writer, self._writes, self._shared))
            damaged = [context for context in (*self._unconfirmed, *self._dirty) if context.damage]
            copies = [aside_change(context.key, context.version, context.data) for context in damaged]
            self._unconfirmed.clear()
            self._dirty.clear()
            self._send(WriteRecords((*changes, *copies)))
            if copies:
                self._send(TrimFamily(DAMAGED, DAMAGED_LIMIT))

    def wakeup_ns(self) -> int | None:
        waiting = self._dirty or self._unconfirmed or self._unread
        times = (self._retry_ns if waiting else None, self._without_state[0][0] if self._without_state else None)
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def remove_application(self, application: str, erase: bool = False) -> None:
        """Drop the contexts of a withdrawn application; with `erase`, delete them from the store too."""
        for context in self._contexts.pop_application(application):
            if context.awaited:
                self._ready.append((application, context.key.partition("\n")[2]))
            reason = f"application {application!r} was withdrawn"
            self.failed += [(unsaved.token, reason) for unsaved in context.unsaved]
            self.unsaved -= len(context.unsaved)
            context.unsaved, context.reading, context.change = [], False, None
        self._dirty = [context for context in self._dirty if context.key in self._contexts]
        self._unconfirmed = [context for context in self._unconfirmed if context.key in self._contexts]
        self._unread = [key for key in self._unread if key in self._contexts]
        self._created.pop(application, None)
        if erase:
            self._send(TrimFamily(context_family(application), 0))

    def check(self) -> None:
        assert self.unsaved == sum(len(context.unsaved) for context in self._contexts)
        dirty = {id(context) for context in self._dirty}
        for context in self._contexts:
            assert context.dirty == (id(context) in dirty)
            assert context.sent <= len(context.unsaved)
            assert context.change or not context.sent
            assert not context.unsaved or context.change or context.dirty or context.reading

    def _refresh(self, now_ns: int, context: Context) -> None:
        """Read the context if it was never read, or is too old. While the store is unavailable, use a new state."""
        if context.reading or self._is_fresh(now_ns, context):
            return
        if now_ns < self._retry_ns:
            if context.state is None:
                self._rebase(context, None)
            return
        context.reading = True
        self._unread.append(context.key)
        if context.state is None:
            self._without_state.append((now_ns + self._times.read_timeout_ns, context))

    def _end_overdue_reads(self, now_ns: int) -> None:
        """Give a new state to the contexts whose read takes too long."""
        while self._without_state:
            deadline_ns, context = self._without_state[0]
            waiting = context.reading and context.state is None
            if waiting and now_ns < deadline_ns:
                return
            self._without_state.popleft()
            if waiting:
                self._rebase(context, None)

    def _is_fresh(self, now_ns: int, context: Context) -> bool:
        return context.read_ns >= 0 and now_ns < context.read_ns + self._times.refresh_ns

    def _rebase(self, context: Context, record: Record | None) -> None:
        """Rebase on the stored record. If None is wrong, the next write will conflict and return the record."""
        self._mark_saved(context.rebase(record))
        self._report_damage(context)
        self._publish_state(context)

    def _report_damage(self, context: Context) -> None:
        if context.damage:
            self._send(DamagedRecord(context.key, context.damage))

    def _mark_saved(self, tokens: list[Any]) -> None:
        self.unsaved -= len(tokens)
        self.saved += tokens

    def _publish_state(self, context: Context) -> None:
        """Report a state that queries wait for, and write unsaved observations."""
        if context.awaited:
            context.awaited = False
            self._ready.append((context.active.application.name, context.key.partition("\n")[2]))
        if context.unsaved:
            self._mark_dirty(context)

    def _mark_dirty(self, context: Context) -> None:
        if not context.dirty and context.change is None and context.state is not None:
            context.dirty = True
            self._dirty.append(context)

    def _on_records_read(self, now_ns: int, message: RecordsRead) -> None:
        records = message.records
        self._retry_ns = now_ns + self._times.retry_ns if records is None else 0
        for index, key in enumerate(message.keys):
            context = self._contexts.peek(key)
            if context is None or not context.reading:
                continue
            record = records[index] if records else None
            context.reading, context.read_ns = False, now_ns if records else context.read_ns
            changed = records and not context.change and context.version != (record.version if record else 0)
            if context.state is None or changed:
                self._rebase(context, record)

    def _on_records_written(self, now_ns: int, message: RecordsWritten) -> None:
        results = message.results
        self._retry_ns = now_ns + self._times.retry_ns if results is None else 0
        saved: list[Any] = []
        for index, change in enumerate(message.changes):
            context = self._contexts.peek(change.key)
            if context is None or context.change != change:
                continue
            if results is None:
                self._unconfirmed.append(context)
                continue
            result = results[index]
            if isinstance(result, int):
                saved += context.finish_write(change, result)
                if change.version == 0:
                    self._count_created(context.active)
            else:
                saved += context.resolve_conflict(self._writer, result)
                context.read_ns = now_ns
                self._report_damage(context)
            self._publish_state(context)
        self._mark_saved(saved)

    def _count_created(self, active: ActiveApplication) -> None:
        """Count a new record of the application; trim the oldest records when its limit may be exceeded."""
        name, limit = active.application.name, active.application.contexts
        created = self._created.get(name, limit) + 1
        if created * TRIM_EVERY > limit:
            self._send(TrimFamily(context_family(name), limit))
            created = 0
        self._created[name] = created
