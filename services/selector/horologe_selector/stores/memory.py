"""A state store that forgets at the end of its process; what tests and the simulator use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_selector.store import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_selector.store import Change


class Memory:
    """Families of records, each in the order in which they were last written."""

    name = "memory"

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self._families: dict[str, dict[str, Record]] = {}
        self._last = 0

    def read(self, keys: Sequence[str]) -> list[Record | None]:
        """See `StateStore`, as for all others."""
        return [self._family(key).get(key) for key in keys]

    def write(self, changes: Sequence[Change]) -> list[int | Record]:
        return [self._change(change) for change in changes]

    def _change(self, change: Change) -> int | Record:
        family = self._family(change.key)
        there = family.get(change.key)
        if (there.version if there else 0) != change.version:
            return there or Record(change.key, 0, b"")
        family.pop(change.key, None)
        if change.data is None:
            return 0
        self._last += 1
        family[change.key] = Record(change.key, self._last, change.data)
        return self._last

    def family(self, name: str) -> list[Record]:
        return list(self._families.get(name, {}).values())

    def trim(self, name: str, limit: int) -> int:
        family = self._families.get(name, {})
        oldest = list(family)[: max(0, len(family) - limit)]
        for key in oldest:
            del family[key]
        return len(oldest)

    def close(self) -> None: ...

    def _family(self, key: str) -> dict[str, Record]:
        return self._families.setdefault(key.partition("\n")[0], {})
