"""State store in memory, lost with its process; for tests and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_selector.store import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_selector.store import RecordChange


class MemoryStore:
    """State store that keeps each family's records in the order of their last writes."""

    name = "memory"

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self._families: dict[str, dict[str, Record]] = {}
        self._last_version = 0

    def read_records(self, keys: Sequence[str]) -> list[Record | None]:
        return [self._family_of(key).get(key) for key in keys]

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        return [self._write_change(change) for change in changes]

    def _write_change(self, change: RecordChange) -> int | Record:
        family = self._family_of(change.key)
        present = family.get(change.key)
        if (present.version if present else 0) != change.version:
            return present or Record(change.key, 0, b"")
        family.pop(change.key, None)
        if change.data is None:
            return 0
        self._last_version += 1
        family[change.key] = Record(change.key, self._last_version, change.data)
        return self._last_version

    def list_family(self, name: str) -> list[Record]:
        return list(self._families.get(name, {}).values())

    def trim_family(self, name: str, limit: int) -> int:
        family = self._families.get(name, {})
        oldest = list(family)[: max(0, len(family) - limit)]
        for key in oldest:
            del family[key]
        return len(oldest)

    def close(self) -> None: ...

    def _family_of(self, key: str) -> dict[str, Record]:
        return self._families.setdefault(key.partition("\n")[0], {})
