"""How the models of an application stand in a context: told as soon as the context's state has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import undeclared_application
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import ApplicationInfo, Applications
from horologe_selector.core.contexts.context import key_of, restored, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.registry import Registry
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.store import Found, Record

WAITING = 1000
"""Questions that may wait for states to be read; more are refused."""


class Asked(msgspec.Struct):
    """Who waits for the state of a context to be read, and until when."""

    application: str
    until_ns: int
    askers: list[tuple[str, int]] = []
    """Frontend, and its number of the question."""


class Standings:
    """Law: a question waits for as long as its context is being read, `read_ns` at most, and leaves no trace."""

    def __init__(self, registry: Registry, contexts: Contexts, read_ns: int, post: Callable[[Out], None]) -> None:
        self._registry = registry
        self._contexts = contexts
        self._read_ns = read_ns
        self._post = post
        self._asked: dict[str, Asked] = {}
        """By the key of the context; those asked first come first."""

    def ask(self, now_ns: int, frontend: str, message: ApplicationInfo, buffers: Sequence[Buffer] = ()) -> None:
        """All that are declared, or the one that is named, with its standings."""
        name, asker = message.name, (frontend, message.id)
        if not name:
            self._post(Out(frontend, Applications(message.id, self._registry.states())))
            return
        contexts, context = self._contexts, message.context
        running = self._registry.running.get(name)
        if running is None or not contexts.stale(now_ns, running, context):
            self._tell(name, asker, None if running is None else contexts.known(running, context))
            return
        if sum(len(asked.askers) for asked in self._asked.values()) >= WAITING:
            reason = f"{WAITING} questions wait for the state store already"
            self._post(Out(frontend, Applications(message.id, (), int(Status.REFUSED), reason)))
            return
        key = key_of(name, context)
        if key not in self._asked:
            contexts.look(key)
            self._asked[key] = Asked(name, now_ns + self._read_ns)
        self._asked[key].askers.append(asker)

    def found(self, message: Found) -> None:
        """The store has answered; perhaps what was asked here."""
        if not self._asked:
            return
        for at, key in enumerate(message.keys):
            if key in self._asked:
                self._told(key, message.records[at] if message.records else None)

    def tick(self, now_ns: int) -> None:
        """Go on without what is not read in time."""
        while self._asked and (first := next(iter(self._asked.items())))[1].until_ns <= now_ns:
            self._told(first[0], None)

    def next_ns(self) -> int | None:
        return next(iter(self._asked.values())).until_ns if self._asked else None

    def forget(self, name: str) -> None:
        """The application is gone, and its contexts with it."""
        for key in [key for key, asked in self._asked.items() if asked.application == name]:
            self._told(key, None)

    def _told(self, key: str, record: Record | None) -> None:
        asked = self._asked.pop(key)
        running, state = self._registry.running.get(asked.application), None
        if running is not None and record is not None:
            state = restored(running, stored(record.data))
        elif running is not None:
            state = self._contexts.known(running, key.partition("\n")[2])
        for asker in asked.askers:
            self._tell(asked.application, asker, state)

    def _tell(self, name: str, asker: tuple[str, int], state: Any) -> None:
        """`state` None: what a new context begins with."""
        frontend, number = asker
        running = self._registry.running.get(name)
        if running is None:
            error = undeclared_application(name)
            self._post(Out(frontend, Applications(number, (), int(error.status), error.reason)))
            return
        described = running.describe(running.policy.init() if state is None else state, self._contexts.count(name))
        self._post(Out(frontend, Applications(number, (described,))))
