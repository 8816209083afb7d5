"""Contexts in memory, evicted by last use (LRU)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from horologe_selector.core.contexts.context import FAMILIES, Context, context_family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_selector.core.applications.active_application import ActiveApplication

EVICTION_SCAN = 8
"""Contexts examined per eviction. If all of them are being read or saved, the cache exceeds its limit for a while."""


class ContextLru:
    """Contexts by key, the least recently used first; at most `limit` except while some are being read or saved."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: OrderedDict[str, Context] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[Context]:
        return iter(self._contexts.values())

    def __contains__(self, key: object) -> bool:
        return key in self._contexts

    def peek(self, key: str) -> Context | None:
        """Return the context without counting this as a use."""
        return self._contexts.get(key)

    def touch(self, active: ActiveApplication, name: str) -> Context:
        """Return the context of this name, creating it if needed, and mark it as the most recently used."""
        key = f"{FAMILIES}{active.application.name}\n{name}"  # `context_key` inlined: one call less per observation
        context = self._contexts.get(key)
        if context is None:
            self._evict()
            context = self._contexts[key] = Context(key, active)
            return context
        self._contexts.move_to_end(key)
        if context.active is not active:
            context.change_application(active)
        return context

    def shrink(self) -> None:
        """Evict contexts beyond the limit, as far as they are not being read or saved."""
        if len(self._contexts) > self._limit:
            self._evict()

    def count_contexts(self, application: str) -> int:
        family = context_family(application) + "\n"
        return sum(key.startswith(family) for key in self._contexts)

    def pop_application(self, application: str) -> list[Context]:
        family = context_family(application) + "\n"
        return [self._contexts.pop(key) for key in [key for key in self._contexts if key.startswith(family)]]

    def _evict(self) -> None:
        contexts, scans = self._contexts, EVICTION_SCAN
        while len(contexts) >= self._limit and scans:
            key = next(iter(contexts))
            if contexts[key].is_busy:
                contexts.move_to_end(key)
                scans -= 1
            else:
                del contexts[key]
