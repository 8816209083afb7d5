"""A state store in a file of SQLite's, of one selector alone: what is acknowledged survives kill -9 and power failures.

Write-ahead log, `synchronous=FULL`: a commit returns when the log has been synced to the device.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.log import logger
from horologe_common.settings import SettingsError
from horologe_selector.store import Away, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_selector.settings import Settings
    from horologe_selector.store import Change

SCHEMA = 1
APPLICATION_ID = 0x484F524C
"""Says what the file is: `HORL`."""
CREATE = "CREATE TABLE records (key TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"
PUT = (
    "INSERT INTO records (key, version, data) VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET version = excluded.version, data = excluded.data"
)
OF_KEYS = "WHERE key IN (SELECT value FROM json_each(?))"
OF_FAMILY = "WHERE key >= ? || char(10) AND key < ? || char(11)"

log = logger("selector")


def open_sqlite(settings: Settings) -> Sqlite:
    """Raises `SettingsError` for a file that is corrupt, something else, in use, or cannot be written."""
    path = Path(settings.state) / f"selector-{settings.name}.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Sqlite(path, settings.store_timeout_ns)
    except (OSError, sqlite3.Error, ValueError) as error:
        log.error("the state store cannot be opened", path=str(path), error=str(error))
        in_use = "locked" in str(error)
        advice = "another selector uses it" if in_use else "move the file away to start anew, or mend it"
        raise SettingsError(f"setting selector.state: {path}: {error}: {advice}") from error


class Sqlite:
    """The connection holds the file's lock as long as it is open. Raises `sqlite3.Error` and `ValueError` if it cannot.

    Versions are microseconds of the clock, pushed on where that would give one twice.
    """

    shared = False

    def __init__(self, path: Path, timeout_ns: int, clock: Callable[[], int] = time.time_ns) -> None:
        self.name = str(path)
        self._clock = clock
        self._db = sqlite3.connect(
            path, timeout=timeout_ns / 1e9, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        try:
            self._last = self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> int:
        """Take the lock, make the table, read all versions: a file that is damaged mostly shows that here."""
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        with self._transaction():
            ((kind,),) = self._db.execute("PRAGMA application_id").fetchall()
            ((schema,),) = self._db.execute("PRAGMA user_version").fetchall()
            ((tables,),) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            if not tables:
                self._db.execute(CREATE)
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
            elif (kind, schema) != (APPLICATION_ID, SCHEMA):
                raise ValueError(f"got a database of kind {kind:#x} {schema}, wanted {APPLICATION_ID:#x} {SCHEMA}")
            ((last,),) = self._db.execute("SELECT max(version) FROM records").fetchall()
        return last or 0

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def read(self, keys: Sequence[str]) -> list[Record | None]:
        """See `StateStore`, as for all others."""
        with away():
            found = self._records(f"SELECT key, version, data FROM records {OF_KEYS}", json.dumps(keys))
        return [found.get(key) for key in keys]

    def write(self, changes: Sequence[Change]) -> list[int | Record]:
        with away(), self._transaction():
            return self._write(changes)

    def _write(self, changes: Sequence[Change]) -> list[int | Record]:
        keys = json.dumps([change.key for change in changes])
        there: dict[str, int] = dict(self._db.execute(f"SELECT key, version FROM records {OF_KEYS}", (keys,)))
        results: list[int | None] = []
        puts: dict[str, tuple[str, int, bytes] | None] = {}
        for change in changes:
            key = change.key
            if there.get(key, 0) != change.version:
                results.append(None)
                continue
            version = there[key] = 0 if change.data is None else self._next()
            puts[key] = None if change.data is None else (key, version, change.data)
            results.append(version)
        self._db.executemany(PUT, [row for row in puts.values() if row])
        if gone := [(key,) for key, row in puts.items() if row is None]:
            self._db.executemany("DELETE FROM records WHERE key = ?", gone)
        return self._told(changes, results)

    def _told(self, changes: Sequence[Change], results: Sequence[int | None]) -> list[int | Record]:
        """In the place of None, what is there instead."""
        missed = [change.key for change, result in zip(changes, results, strict=True) if result is None]
        there = {}
        if missed:
            there = self._records(f"SELECT key, version, data FROM records {OF_KEYS}", json.dumps(missed))
        return [
            (there.get(change.key) or Record(change.key, 0, b"")) if result is None else result
            for change, result in zip(changes, results, strict=True)
        ]

    def family(self, name: str) -> list[Record]:
        with away():
            return list(self._records(f"SELECT key, version, data FROM records {OF_FAMILY}", name, name).values())

    def trim(self, name: str, limit: int) -> int:
        with away(), self._transaction():
            ((count,),) = self._db.execute(f"SELECT count(*) FROM records {OF_FAMILY}", (name, name)).fetchall()
            if count <= limit:
                return 0
            oldest = f"SELECT key FROM records {OF_FAMILY} ORDER BY version LIMIT ?"
            self._db.execute(f"DELETE FROM records WHERE key IN ({oldest})", (name, name, count - limit))
        return int(count - limit)

    def close(self) -> None:
        self._db.close()

    def _records(self, query: str, *values: str) -> dict[str, Record]:
        return {key: Record(key, version, data) for key, version, data in self._db.execute(query, values)}

    def _next(self) -> int:
        self._last = max(self._last + 1, self._clock() // 1_000)
        return self._last


@contextlib.contextmanager
def away() -> Iterator[None]:
    """A full disk, a damaged page: the store cannot do it now."""
    try:
        yield
    except sqlite3.Error as error:
        raise Away(str(error)) from error
