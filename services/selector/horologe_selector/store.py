"""Interface of a state store: versioned records under keys, with compare-and-set writes. Implementations: `stores/`.

Stores block. A thread of its own calls them (`stores/store_writer.py`), so the selector's loop never waits. The core
and that thread exchange the messages at the end of this module; these never cross a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from collections.abc import Sequence

STORE_TIMEOUT_NS = s(1)
"""Timeout of one operation on the store; after it the store counts as unavailable."""


class StoreTimes(msgspec.Struct, frozen=True):
    """Intervals and timeouts of what the selector asks its store for."""

    retry_ns: int = ms(500)
    """Interval between attempts to reach an unavailable store."""
    read_timeout_ns: int = ms(20)
    """Timeout for reading a context's state. After it the request uses the state of a new context."""
    refresh_ns: int = s(1)
    """Maximum age of a state in memory that other selectors may have changed. An older one is read again in the
    background."""


TIMES = StoreTimes()


class Record(msgspec.Struct, frozen=True, gc=False):
    """Stored bytes with their version.

    Versions are at least 1 and grow with every write to the store, so a key never gets the same version twice, even
    if it was deleted in between. The record written longest ago has the smallest version.
    """

    key: str
    version: int
    data: bytes
    whole: ClassVar[bool] = True
    """Snapshots keep all bytes (recording/snapshot.py)."""


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """Compare-and-set: replace version `version` of this key (0: no record yet). `data` None deletes the record."""

    key: str
    version: int
    data: bytes | None
    whole: ClassVar[bool] = True


DAMAGED = "damaged"
"""Family of the copies of damaged records that have been replaced."""
DAMAGED_LIMIT = 1000
"""Copies that are kept, the newest."""


def aside_change(key: str, version: int, data: bytes) -> RecordChange:
    """Return the change that copies a damaged record. Make it together with the one that replaces the record."""
    return RecordChange(f"{DAMAGED}\n{key}\n{version}", 0, data)


class StoreUnavailable(Exception):
    """The store cannot be reached or written. A write may have succeeded if only its reply was lost."""


class StateStore(Protocol):
    """All methods raise `StoreUnavailable`. A key is `family\\nname`; its family is the part before the newline."""

    shared: bool
    """True if other selectors may write to this store."""
    name: str
    """Location, for the log."""

    def read_records(self, keys: Sequence[str]) -> list[Record | None]:
        """Return the present record of each key; None for a key without a record."""

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        """Apply the changes in one transaction that is durable on return; each succeeds or fails on its own.

        Return for each change its new version (0: deleted), or on a conflict the present record. Where no record is
        present, that is one with version 0.
        """

    def list_family(self, name: str) -> list[Record]:
        """Return all records of a family."""

    def trim_family(self, name: str, limit: int) -> int:
        """Delete the records of a family that were written longest ago, down to `limit`. Return how many."""

    def close(self) -> None: ...


class ReadRecords(msgspec.Struct, frozen=True):
    """Core to store writer: read these records. The reply is `RecordsRead` with the same keys."""

    keys: tuple[str, ...]


class RecordsRead(msgspec.Struct, frozen=True):
    """Reply to `ReadRecords`; `records` is None if the store is unavailable."""

    keys: tuple[str, ...]
    records: list[Record | None] | None


class WriteRecords(msgspec.Struct, frozen=True):
    """Core to store writer: apply these changes. The reply is `RecordsWritten`."""

    changes: tuple[RecordChange, ...]


class RecordsWritten(msgspec.Struct, frozen=True):
    """Reply to `WriteRecords`, with the results of `StateStore.write_changes`.

    `results` is None if the store is unavailable; then it is unknown whether any change was written.
    """

    changes: tuple[RecordChange, ...]
    results: list[int | Record] | None
    reason: str = ""


class ListFamily(msgspec.Struct, frozen=True):
    """Core to store writer: list a family. The reply is `FamilyListed`."""

    family: str


class FamilyListed(msgspec.Struct, frozen=True):
    """Reply to `ListFamily`; `records` is None if the store is unavailable."""

    family: str
    records: list[Record] | None


class DamagedRecord(msgspec.Struct, frozen=True):
    """Core to store writer: log that a record cannot be used. There is no reply."""

    key: str
    reason: str


class TrimFamily(msgspec.Struct, frozen=True):
    """Core to store writer: delete the oldest records of a family, down to `limit` (0: all). There is no reply."""

    family: str
    limit: int
