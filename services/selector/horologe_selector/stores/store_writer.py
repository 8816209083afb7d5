"""Who owns the state store: a thread, so that the selector's loop never waits for it.

All that waits is done as one group: one transaction, one sync to the device, however many observations are in it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, TypeAlias

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_selector.store import Away, Found, List, Listed, Read, Trim, Write, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.store import StateStore

Message: TypeAlias = "Read | Write | List | Trim"
Reply: TypeAlias = "Found | Written | Listed"

log = logger("selector")


def serve(store: StateStore, group: Sequence[Message]) -> list[Reply]:
    """Do what the messages ask, those between two of List and Trim as one: writes, then reads. Raises `Away`."""
    replies: list[Reply] = []
    begin = 0
    for at, message in enumerate(group):
        if isinstance(message, List | Trim):
            replies += _together(store, group[begin:at])
            begin = at + 1
            if isinstance(message, List):
                replies.append(Listed(message.family, store.family(message.family)))
            else:
                store.trim(message.family, message.limit)
    return replies + _together(store, group[begin:])


def _together(store: StateStore, group: Sequence[Message]) -> list[Reply]:
    writes = [message for message in group if isinstance(message, Write)]
    reads = [message for message in group if isinstance(message, Read)]
    replies: list[Reply] = []
    if writes:
        results = iter(store.write([change for message in writes for change in message.changes]))
        replies += [Written(message.changes, [next(results) for _ in message.changes]) for message in writes]
    if reads:
        records = iter(store.read([key for message in reads for key in message.keys]))
        replies += [Found(message.keys, [next(records) for _ in message.keys]) for message in reads]
    return replies


def refused(group: Iterable[Message], reason: str) -> list[Reply]:
    """What they are answered while the store is away."""
    replies: list[Reply] = []
    for message in group:
        if isinstance(message, Read):
            replies.append(Found(message.keys, None))
        elif isinstance(message, Write):
            replies.append(Written(message.changes, None, reason))
        elif isinstance(message, List):
            replies.append(Listed(message.family, None))
    return replies


class Keeper:
    """The thread. `post` hands a reply to the core and is called from here (`Reactor.post_threadsafe`).

    At most `limit` messages wait; beyond, and for `pause_ns` after a failure, they are answered that the store is away.
    A group that fails may have been written nevertheless: it is answered so as a whole.
    """

    def __init__(self, store: StateStore, post: Callable[[Reply], None], limit: int, pause_ns: int) -> None:
        self._store = store
        self._post = post
        self._limit = limit
        self._pause_ns = pause_ns
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._again_ns = 0
        self._away = ""

    def start(self) -> None:
        self._thread.start()

    def deliver(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        """From the loop's thread (`Reactor.attach`)."""
        if self._queue.qsize() < self._limit:
            self._queue.put(message)
            return
        for reply in refused([message], f"{self._limit} messages wait for the state store"):
            self._post(reply)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Do what waits, then close the store; nothing is posted from now on. False: it has not ended by then."""
        self._post = lambda reply: None
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ending = False
        while not ending:
            group, ending = self._group()
            for reply in self._served(group):
                self._tell(reply)
        self._store.close()

    def _tell(self, reply: Reply) -> None:
        """A loop that has ended says so; what waits is done nevertheless."""
        with contextlib.suppress(RuntimeError):
            self._post(reply)

    def _group(self) -> tuple[list[Message], bool]:
        """Wait for a message; all that are there by then, and whether to end with them."""
        group: list[Message] = []
        message = self._queue.get()
        while message is not None:
            group.append(message)
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _served(self, group: Sequence[Message]) -> list[Reply]:
        if self._away and monotonic_ns() < self._again_ns:
            return refused(group, self._away)
        try:
            replies = serve(self._store, group)
        except Exception as error:
            if not isinstance(error, Away):
                log.exception("state store fault", store=self._store.name)
            elif not self._away:
                log.warning("the state store is away", store=self._store.name, error=str(error))
            self._away = str(error) or type(error).__name__
            self._again_ns = monotonic_ns() + self._pause_ns
            return refused(group, self._away)
        if self._away and group:
            log.info("the state store is back", store=self._store.name)
            self._away = ""
        return replies
