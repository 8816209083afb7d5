"""The contexts in memory: as many as settings allow, and those that were not used for longest go."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from horologe_selector.core.contexts.context import FAMILIES, Context, family_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_selector.core.applications.active_application import Running

LOOKS = 8
"""Contexts looked at for one to forget; more are held while so many are being saved or read."""


class Recent:
    """By key, the least recently used first. More than `limit` only while they are being read or saved."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: OrderedDict[str, Context] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[Context]:
        return iter(self._contexts.values())

    def __contains__(self, key: object) -> bool:
        return key in self._contexts

    def get(self, key: str) -> Context | None:
        """It is not used by that."""
        return self._contexts.get(key)

    def use(self, running: Running, context: str) -> Context:
        """It is made if it is not there."""
        key = f"{FAMILIES}{running.application.name}\n{context}"  # for every observation: not by a call
        one = self._contexts.get(key)
        if one is None:
            self._make_room()
            one = self._contexts[key] = Context(key, running)
            return one
        self._contexts.move_to_end(key)
        if one.running is not running:
            one.serve(running)
        return one

    def shrink(self) -> None:
        """Back to the limit, as far as that is possible."""
        if len(self._contexts) > self._limit:
            self._make_room()

    def count(self, application: str) -> int:
        """Those of an application."""
        family = family_of(application) + "\n"
        return sum(key.startswith(family) for key in self._contexts)

    def forget(self, application: str) -> list[Context]:
        """Those of an application, which are here no more."""
        family = family_of(application) + "\n"
        return [self._contexts.pop(key) for key in [key for key in self._contexts if key.startswith(family)]]

    def _make_room(self) -> None:
        """For one more."""
        contexts, looks = self._contexts, LOOKS
        while len(contexts) >= self._limit and looks:
            key = next(iter(contexts))
            if contexts[key].held:
                contexts.move_to_end(key)
                looks -= 1
            else:
                del contexts[key]
