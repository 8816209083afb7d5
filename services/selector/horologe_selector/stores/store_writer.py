"""Thread that owns the state store, so that the selector's loop never waits for it.

All queued messages are executed as one group: one transaction and one sync to the device, however many observations
they contain.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, TypeAlias

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_selector.store import (
    TIMES,
    DamagedRecord,
    FamilyListed,
    ListFamily,
    ReadRecords,
    RecordsRead,
    RecordsWritten,
    StoreUnavailable,
    TrimFamily,
    WriteRecords,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.store import StateStore

MESSAGES_LIMIT = 10_000
"""Maximum number of messages queued for the store."""
StoreMessage: TypeAlias = "ReadRecords | WriteRecords | ListFamily | TrimFamily | DamagedRecord"
StoreReply: TypeAlias = "RecordsRead | RecordsWritten | FamilyListed"

log = logger("selector")


def execute_messages(store: StateStore, group: Sequence[StoreMessage]) -> list[StoreReply]:
    """Execute messages and return their replies. Raises `StoreUnavailable`.

    `ListFamily` and `TrimFamily` are executed in their place. Between two of them, all writes are one transaction,
    followed by all reads.
    """
    replies: list[StoreReply] = []
    begin = 0
    for index, message in enumerate(group):
        if isinstance(message, ListFamily | TrimFamily):
            replies += _write_and_read(store, group[begin:index])
            begin = index + 1
            if isinstance(message, ListFamily):
                replies.append(FamilyListed(message.family, store.list_family(message.family)))
            else:
                store.trim_family(message.family, message.limit)
    return replies + _write_and_read(store, group[begin:])


def _write_and_read(store: StateStore, group: Sequence[StoreMessage]) -> list[StoreReply]:
    writes = [message for message in group if isinstance(message, WriteRecords)]
    reads = [message for message in group if isinstance(message, ReadRecords)]
    replies: list[StoreReply] = []
    if writes:
        results = iter(store.write_changes([change for message in writes for change in message.changes]))
        replies += [RecordsWritten(message.changes, [next(results) for _ in message.changes]) for message in writes]
    if reads:
        records = iter(store.read_records([key for message in reads for key in message.keys]))
        replies += [RecordsRead(message.keys, [next(records) for _ in message.keys]) for message in reads]
    return replies


def unavailable_replies(group: Iterable[StoreMessage], reason: str) -> list[StoreReply]:
    """Return the replies to messages that were not executed because the store is unavailable."""
    replies: list[StoreReply] = []
    for message in group:
        if isinstance(message, ReadRecords):
            replies.append(RecordsRead(message.keys, None))
        elif isinstance(message, WriteRecords):
            replies.append(RecordsWritten(message.changes, None, reason))
        elif isinstance(message, ListFamily):
            replies.append(FamilyListed(message.family, None))
    return replies


class StoreWriter:
    """Thread of a state store. It passes replies to `post`, which must be thread-safe (`Reactor.post_threadsafe`).

    At most `limit` messages are queued. Messages beyond, and messages in the `retry_ns` after a failure, get the reply
    that the store is unavailable. So does a whole group that fails, although part of it may have been written.
    """

    def __init__(
        self,
        store: StateStore,
        post: Callable[[StoreReply], None],
        limit: int = MESSAGES_LIMIT,
        retry_ns: int = TIMES.retry_ns,
    ) -> None:
        self._store = store
        self._post = post
        self._limit = limit
        self._retry_interval_ns = retry_ns
        self._queue: queue.SimpleQueue[StoreMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._retry_ns = 0
        self._failure = ""
        """Reason why the store is unavailable; empty while it works."""

    def start(self) -> None:
        self._thread.start()

    def deliver(self, message: StoreMessage, buffers: Sequence[Buffer] = ()) -> None:
        """Queue a message. Called by the loop's thread (`Reactor.attach`)."""
        if isinstance(message, DamagedRecord):
            log.warning("stored record damaged", store=self._store.name, key=message.key, error=message.reason)
            return
        if self._queue.qsize() < self._limit:
            self._queue.put(message)
            return
        for reply in unavailable_replies([message], f"{self._limit} messages wait for the state store"):
            self._post(reply)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Execute queued messages without posting replies, then close the store. Return False on a timeout."""
        self._post = lambda reply: None
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._collect_group()
            for reply in self._execute(group):
                with contextlib.suppress(RuntimeError):  # the loop has ended; the queue is executed nevertheless
                    self._post(reply)
        self._store.close()

    def _collect_group(self) -> tuple[list[StoreMessage], bool]:
        """Wait for a message. Return all queued messages, and whether to stop after them."""
        group: list[StoreMessage] = []
        message = self._queue.get()
        while message is not None:
            group.append(message)
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _execute(self, group: Sequence[StoreMessage]) -> list[StoreReply]:
        if self._failure and monotonic_ns() < self._retry_ns:
            return unavailable_replies(group, self._failure)
        try:
            replies = execute_messages(self._store, group)
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                log.exception("state store fault", store=self._store.name)
            elif not self._failure:
                log.warning("the state store is unavailable", store=self._store.name, error=str(error))
            self._failure = str(error) or type(error).__name__
            self._retry_ns = monotonic_ns() + self._retry_interval_ns
            return unavailable_replies(group, self._failure)
        if self._failure and group:
            log.info("the state store is available again", store=self._store.name)
            self._failure = ""
        return replies
