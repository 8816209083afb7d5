"""How the models of an application stand in a context: told as soon as the context's state has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.applications import undeclared
from horologe_common.core import Out
from horologe_common.status import Status
from horologe_common.wire import ApplicationInfo, Applications

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core import Buffer
    from horologe_selector.contexts import Contexts
    from horologe_selector.registry import Registry

WAITING = 1000
"""Questions that may wait for states to be read; more are refused."""


class Standings:
    """Law: a question waits for as long as its context is being read, `selector.context_read_ns` at most."""

    def __init__(self, registry: Registry, contexts: Contexts, post: Callable[[Out], None]) -> None:
        self._registry = registry
        self._contexts = contexts
        self._post = post
        self._waiting: dict[tuple[str, str], list[tuple[str, int]]] = {}

    def ask(self, now_ns: int, frontend: str, message: ApplicationInfo, buffers: Sequence[Buffer] = ()) -> None:
        """All that are declared, or the one that is named, with its standings."""
        name, context = message.name, message.context
        if not name:
            self._post(Out(frontend, Applications(message.id, self._registry.states())))
            return
        running = self._registry.running.get(name)
        if running is None or self._contexts.get(now_ns, running, context) is not None:
            self._tell(now_ns, frontend, message.id, name, context)
        elif sum(map(len, self._waiting.values())) >= WAITING:
            reason = f"{WAITING} questions wait for the state store already"
            self._post(Out(frontend, Applications(message.id, (), int(Status.REFUSED), reason)))
        else:
            self._waiting.setdefault((name, context), []).append((frontend, message.id))

    def ready(self, now_ns: int, name: str, context: str) -> None:
        """The state of this context has been read, or cannot be."""
        for frontend, number in self._waiting.pop((name, context), ()):
            self._tell(now_ns, frontend, number, name, context)

    def forget(self, now_ns: int, name: str) -> None:
        """The application is gone, and its contexts with it."""
        for key in [key for key in self._waiting if key[0] == name]:
            self.ready(now_ns, *key)

    def _tell(self, now_ns: int, frontend: str, number: int, name: str, context: str) -> None:
        running = self._registry.running.get(name)
        if running is None:
            error = undeclared(name)
            self._post(Out(frontend, Applications(number, (), int(error.status), error.reason)))
            return
        state = self._contexts.get(now_ns, running, context)
        described = running.describe(running.policy.init() if state is None else state, self._contexts.count(name))
        self._post(Out(frontend, Applications(number, (described,))))
