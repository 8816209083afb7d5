"""A state store in a file of SQLite's, of one selector alone: what is acknowledged survives kill -9 and power failures.

Write-ahead log, `synchronous=FULL`: a commit returns when the log has been synced to the device.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_selector.store import Away, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import Change

SCHEMA = 1
APPLICATION_ID = 0x484F524C
"""Says what the file is: `HORL`."""
CREATE = "CREATE TABLE records (key TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"
ON_CONFLICT = " ON CONFLICT (key) DO UPDATE SET version = excluded.version, data = excluded.data"
PUTS = {
    rows: f"INSERT INTO records (key, version, data) VALUES {', '.join(['(?, ?, ?)'] * rows)}{ON_CONFLICT}"
    for rows in (256, 64, 16, 4, 1)
}
"""So many rows in one step. Every step lets go of the interpreter, and a busy loop gives it back after 0.2 ms: row by
row, a group of 85 took 8 ms."""
VERSIONS = "SELECT json_group_object(key, version) FROM records WHERE key IN (SELECT value FROM json_each(?))"
RECORDS = "SELECT json_group_array(json_array(key, version, hex(data))) FROM records"
"""One row, for the same reason."""
OF_KEYS = "WHERE key IN (SELECT value FROM json_each(?))"
OF_FAMILY = "WHERE key >= ? || char(10) AND key < ? || char(11)"

PRAGMAS = (
    "page_size=1024",  # a record is 100 to 200 bytes, and a commit writes whole pages
    "locking_mode=EXCLUSIVE",
    "journal_mode=WAL",
    "synchronous=FULL",
    "cache_size=-16000",
)

log = logger("selector")


def open_sqlite(settings: SelectorSettings) -> Sqlite:
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
        self._path = path
        try:
            self._last = self._prepare()
            opened = path.stat()
            self._file = (opened.st_dev, opened.st_ino)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> int:
        """Take the lock, make the table, read all versions: a file that is damaged mostly shows that here."""
        for pragma in PRAGMAS:
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
            found = self._records(OF_KEYS, json.dumps(keys))
        return [found.get(key) for key in keys]

    def write(self, changes: Sequence[Change]) -> list[int | Record]:
        self._check_there()
        with away(), self._transaction():
            return self._write(changes)

    def _check_there(self) -> None:
        """Raise `Away` once the file is deleted or another: SQLite would go on writing into what nobody can open."""
        try:
            there = self._path.stat()
        except OSError as error:
            raise Away(f"{self.name}: {error.strerror}: what is in memory goes with this process") from error
        if (there.st_dev, there.st_ino) != self._file:
            raise Away(f"{self.name}: it is another file than was opened")

    def _write(self, changes: Sequence[Change]) -> list[int | Record]:
        there: dict[str, int] = self._one(VERSIONS, json.dumps([change.key for change in changes]))
        results: list[int | None] = []
        rows: dict[str, tuple[str, int, bytes]] = {}
        gone: dict[str, int] = {}
        for change in changes:
            key = change.key
            if there.get(key, 0) != change.version:
                results.append(None)
            elif change.data is None:
                gone[key] = there[key] = 0
                rows.pop(key, None)
                results.append(0)
            else:
                version = there[key] = self._next()
                gone.pop(key, None)
                rows[key] = (key, version, change.data)
                results.append(version)
        self._db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in gone])
        self._put([*rows.values()])
        return self._told(changes, results)

    def _put(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        done = 0
        for many, query in PUTS.items():
            while len(rows) - done >= many:
                self._db.execute(query, [*chain.from_iterable(rows[done : done + many])])
                done += many

    def _told(self, changes: Sequence[Change], results: Sequence[int | None]) -> list[int | Record]:
        """In the place of None, what is there instead."""
        missed = [change.key for change, result in zip(changes, results, strict=True) if result is None]
        there = self._records(OF_KEYS, json.dumps(missed)) if missed else {}
        return [
            (there.get(change.key) or Record(change.key, 0, b"")) if result is None else result
            for change, result in zip(changes, results, strict=True)
        ]

    def family(self, name: str) -> list[Record]:
        with away():
            return list(self._records(OF_FAMILY, name, name).values())

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

    def _records(self, which: str, *values: str) -> dict[str, Record]:
        found = self._one(f"{RECORDS} {which}", *values)
        return {key: Record(key, version, bytes.fromhex(data)) for key, version, data in found}

    def _one(self, query: str, *values: str) -> Any:
        """The JSON of a query that gives just that."""
        ((text,),) = self._db.execute(query, values).fetchall()
        return json.loads(text)

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
