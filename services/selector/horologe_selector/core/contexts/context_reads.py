"""The contexts whose records are read from the store, and how long that is waited for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from horologe_selector.store import Read

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from horologe_selector.core.contexts.context import Context


class Reads:
    """Law: a context that has no state has it at last when its time is up."""

    def __init__(self) -> None:
        self._wanted: list[str] = []
        self._waiting: deque[tuple[int, Context]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether there is one that the store has not been asked for."""
        return bool(self._wanted)

    def want(self, one: Context, until_ns: int) -> None:
        """Have it read. `until_ns` never decreases from one to the next."""
        one.reading = True
        self._wanted.append(one.key)
        if one.state is None:
            self._waiting.append((until_ns, one))

    def overdue(self, now_ns: int) -> Iterator[Context]:
        """Those that have no state, and whose time is up."""
        while self._waiting:
            until_ns, one = self._waiting[0]
            waits = one.reading and one.state is None
            if waits and now_ns < until_ns:
                return
            self._waiting.popleft()
            if waits:
                yield one

    def take(self) -> list[Read]:
        """What to ask the store."""
        wanted, self._wanted = self._wanted, []
        return [Read(tuple(wanted))] if wanted else []

    def next_ns(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def keep(self, keys: Container[str]) -> None:
        """Want no others."""
        self._wanted = [key for key in self._wanted if key in keys]
