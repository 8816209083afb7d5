"""Questions about applications: which there are, and how the models of one stand in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.applications import undeclared
from horologe_common.core import Out
from horologe_common.wire import ApplicationInfo, Applications

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core import Buffer
    from horologe_selector.contexts import Contexts
    from horologe_selector.registry import Registry
    from horologe_selector.running import Running


class Inquiries:
    """A question about a context whose state has to be read first is answered when it is there."""

    def __init__(self, registry: Registry, contexts: Contexts, post: Callable[[Out], None]) -> None:
        self._registry = registry
        self._contexts = contexts
        self._post = post
        self._asked: dict[tuple[str, str], list[tuple[str, int]]] = {}

    def ask(self, now_ns: int, frontend: str, message: ApplicationInfo, buffers: Sequence[Buffer] = ()) -> None:
        """Answer with all that are declared, or one with the standing of its models."""
        if not message.name:
            self._post(Out(frontend, Applications(message.id, self._registry.states())))
            return
        running = self._registry.running.get(message.name)
        if running is None:
            error = undeclared(message.name)
            self._post(Out(frontend, Applications(message.id, (), int(error.status), error.reason)))
        elif self._contexts.get(now_ns, running, message.context) is None:
            self._asked.setdefault((message.name, message.context), []).append((frontend, message.id))
        else:
            self._describe(now_ns, running, message.context, frontend, message.id)

    def ready(self, now_ns: int, name: str, context: str) -> None:
        """The state has been read, or cannot be."""
        running = self._registry.running.get(name)
        for frontend, number in self._asked.pop((name, context), ()):
            if running is not None:
                self._describe(now_ns, running, context, frontend, number)

    def forget(self, name: str) -> None:
        """The application is gone: the frontend tells that its question was not answered."""
        for key in [key for key in self._asked if key[0] == name]:
            del self._asked[key]

    def _describe(self, now_ns: int, running: Running, context: str, frontend: str, number: int) -> None:
        state = self._contexts.get(now_ns, running, context) or running.policy.init()
        described = running.describe(state, self._contexts.count(running.application.name))
        self._post(Out(frontend, Applications(number, (described,))))
