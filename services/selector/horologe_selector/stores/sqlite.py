"""State store in an SQLite file, for one selector. Acknowledged writes survive `kill -9` and power failures.

It uses a write-ahead log with `synchronous=FULL`: a commit returns when the log has been synced to the device.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.service.state_file import aside_path
from horologe_selector.store import STORE_TIMEOUT_NS, Record, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import RecordChange

ROWS_AT_ONCE = 1000
VERSION_MAX = 1 << 62
"""Limit of a version. Later ones must still fit into 64 bits."""
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR)
"""The last one is that of a missing table or column."""
SCHEMA = 1
APPLICATION_ID = 0x484F524C
"""`HORL`: identifies the file as a state store."""
CREATE = "CREATE TABLE records (key TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"
ON_CONFLICT = " ON CONFLICT (key) DO UPDATE SET version = excluded.version, data = excluded.data"
PUTS = {
    rows: f"INSERT INTO records (key, version, data) VALUES {', '.join(['(?, ?, ?)'] * rows)}{ON_CONFLICT}"
    for rows in (256, 64, 16, 4, 1)
}
"""Statements by number of rows. SQLite releases the interpreter's lock at each statement, and a busy loop returns it
only after 0.2 ms: writing 85 rows one by one took 8 ms."""
NUMBER = "CAST(version AS INTEGER)"
"""A damaged version may have another type."""
LAST_VERSION = f"SELECT max({NUMBER}) FROM records WHERE {NUMBER} < {VERSION_MAX}"
VERSIONS = f"SELECT json_group_object(key, {NUMBER}) FROM records WHERE key IN (SELECT value FROM json_each(?))"
RECORDS = f"SELECT json_group_array(json_array(key, {NUMBER}, hex(data))) FROM records"
"""All records as one JSON row, for the same reason."""
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


PROBE_S = 0.5
"""Seconds in which a selector that ends may release its file."""


def open_sqlite(settings: SelectorSettings, timeout_ns: int = STORE_TIMEOUT_NS) -> SqliteStore:
    """Open or create the store's file. Raises `SettingsError` if it is in use, or the folder or file not writable.

    A file that is damaged or foreign is kept aside, and its readable records are copied into a new one.
    """
    path = store_path(settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return SqliteStore(path, timeout_ns)
        except (sqlite3.Error, ValueError) as error:
            if not _is_damaged(path, error):
                raise
            return _replace_damaged(path, timeout_ns, error)
    except (OSError, sqlite3.Error, ValueError) as error:
        log.error("the state store cannot be opened", path=str(path), error=str(error))
        in_use = "locked" in str(error)
        advice = "another selector uses it" if in_use else "wanted a folder and a file that can be written"
        raise SettingsError(f"setting selector.state: {path}: {error}: {advice}") from error


def store_path(settings: SelectorSettings) -> Path:
    """Return the store's file."""
    return Path(settings.state) / f"selector-{settings.name}.sqlite"


def is_in_use(path: Path) -> bool:
    """Return whether another process has the store's file open. Blocks for up to `PROBE_S` then."""
    if not path.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=PROBE_S)) as db:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except sqlite3.Error as error:
        return "locked" in str(error)  # a store replaces a damaged file
    return False


def _replace_damaged(path: Path, timeout_ns: int, error: Exception) -> SqliteStore:
    """Keep the file aside, and return a new store with the records that can be read from it."""
    aside = _keep_aside(path)
    store = SqliteStore(path, timeout_ns)
    copied = 0
    for rows in _readable_rows(aside):
        copied += store.copy_rows(rows)
    log.error("the state store is damaged", path=str(path), error=str(error), kept=str(aside), records_copied=copied)
    return store


class SqliteStore:
    """State store that locks its file while it is open. Raises `sqlite3.Error` or `ValueError` if it cannot open it.

    Versions are microseconds of the clock, incremented where that would repeat a version.
    """

    shared = False

    def __init__(self, path: Path, timeout_ns: int, clock: Callable[[], int] = time.time_ns) -> None:
        self.name = str(path)
        self._clock = clock
        self._db = sqlite3.connect(
            path, timeout=timeout_ns / 1e9, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        self._db.text_factory = _decode_text
        self._path = path
        try:
            self._last_version = self._prepare()
            opened = path.stat()
            self._file = (opened.st_dev, opened.st_ino)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> int:
        """Lock the file, create the table, check the file and return the last version."""
        for pragma in PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        with self._transaction():
            ((kind,),) = self._db.execute("PRAGMA application_id").fetchall()
            ((schema,),) = self._db.execute("PRAGMA user_version").fetchall()
            ((tables,),) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            if not tables and not kind:
                self._db.execute(CREATE)
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
            elif (kind, schema) != (APPLICATION_ID, SCHEMA):
                raise ValueError(f"got a database of kind {kind:#x} {schema}, wanted {APPLICATION_ID:#x} {SCHEMA}")
            ((result,),) = self._db.execute("PRAGMA quick_check(1)").fetchall()
            if result != "ok":
                raise ValueError(f"quick_check: {result}")
            ((last,),) = self._db.execute(LAST_VERSION).fetchall()
        return last or 0

    def copy_rows(self, rows: Sequence[tuple[str, int, bytes]]) -> int:
        """Add records of another file with their versions, except those that exist. Return how many are new."""
        with self._transaction():
            query = "INSERT INTO records (key, version, data) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
            added = self._db.executemany(query, rows).rowcount
        self._last_version = max(self._last_version, *(version for _, version, _ in rows))
        return added

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

    def read_records(self, keys: Sequence[str]) -> list[Record | None]:
        with translated_errors():
            records = self._records(OF_KEYS, json.dumps(keys))
        return [records.get(key) for key in keys]

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        self._check_file()
        with translated_errors(), self._transaction():
            return self._write(changes)

    def _check_file(self) -> None:
        """Raise `StoreUnavailable` if the file was deleted or replaced: SQLite would still write to the old file."""
        try:
            present = self._path.stat()
        except OSError as error:
            reason = f"{self.name}: {error.strerror}: states in memory will be lost with this process"
            raise StoreUnavailable(reason) from error
        if (present.st_dev, present.st_ino) != self._file:
            raise StoreUnavailable(f"{self.name}: the file was replaced after it was opened")

    def _write(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        """Apply the changes within a transaction. The result of a conflict is the record that is present instead."""
        versions: dict[str, int] = self._query_json(VERSIONS, json.dumps([change.key for change in changes]))
        results: list[int | None] = []
        rows: dict[str, tuple[str, int, bytes]] = {}
        deleted: dict[str, int] = {}
        for change in changes:
            key = change.key
            if versions.get(key, 0) != change.version:
                results.append(None)
            elif change.data is None:
                deleted[key] = versions[key] = 0
                rows.pop(key, None)
                results.append(0)
            else:
                version = versions[key] = self._next_version()
                deleted.pop(key, None)
                rows[key] = (key, version, change.data)
                results.append(version)
        self._db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in deleted])
        self._put_rows([*rows.values()])
        conflicts = [change.key for change, result in zip(changes, results, strict=True) if result is None]
        present = self._records(OF_KEYS, json.dumps(conflicts)) if conflicts else {}
        return [
            (present.get(change.key) or Record(change.key, 0, b"")) if result is None else result
            for change, result in zip(changes, results, strict=True)
        ]

    def _put_rows(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        begin = 0
        for count, query in PUTS.items():
            while len(rows) - begin >= count:
                self._db.execute(query, [*chain.from_iterable(rows[begin : begin + count])])
                begin += count

    def list_family(self, name: str) -> list[Record]:
        with translated_errors():
            return list(self._records(OF_FAMILY, name, name).values())

    def trim_family(self, name: str, limit: int) -> int:
        with translated_errors(), self._transaction():
            ((count,),) = self._db.execute(f"SELECT count(*) FROM records {OF_FAMILY}", (name, name)).fetchall()
            if count <= limit:
                return 0
            oldest = f"SELECT key FROM records {OF_FAMILY} ORDER BY version LIMIT ?"
            self._db.execute(f"DELETE FROM records WHERE key IN ({oldest})", (name, name, count - limit))
        return int(count - limit)

    def close(self) -> None:
        self._db.close()

    def _records(self, condition: str, *values: str) -> dict[str, Record]:
        rows = self._query_json(f"{RECORDS} {condition}", *values)
        return {key: Record(key, version, bytes.fromhex(data)) for key, version, data in rows}

    def _query_json(self, query: str, *values: str) -> Any:
        """Run a query that returns one JSON text, and decode it."""
        ((text,),) = self._db.execute(query, values).fetchall()
        return json.loads(text)

    def _next_version(self) -> int:
        self._last_version = max(self._last_version + 1, self._clock() // 1_000)
        return self._last_version


def _decode_text(text: bytes) -> str:
    """Decode a text of a file, which may be damaged: one bad key must not hide the other records."""
    return text.decode(errors="replace")


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of SQLite, such as a full disk or a damaged page, as `StoreUnavailable`."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnavailable(str(error)) from error


def _is_damaged(path: Path, error: Exception) -> bool:
    """Return whether opening failed because of the content, and not because the file is in use or not accessible."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return path.is_dir() or isinstance(error, ValueError) or code in DAMAGE_CODES


def _keep_aside(path: Path) -> Path:
    """Rename the file with its log to a name with a hash of its content. Return the new path. Raises OSError."""
    aside = aside_path(path)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return path.replace(aside)


def _readable_rows(path: Path) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yield the records up to the first damage, from either end of the table, some twice."""
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_open_damaged(path)) as db:
            cursor = db.execute(f"SELECT key, version, data FROM records ORDER BY key {order}")
            while rows := list(_until_error(islice(cursor, ROWS_AT_ONCE))):
                valid = [
                    (key, version, data)
                    for key, version, data in rows
                    if isinstance(key, str)
                    and isinstance(data, bytes)
                    and isinstance(version, int)
                    and 0 < version < VERSION_MAX
                ]
                if valid:
                    yield valid


def _open_damaged(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)


def _until_error(rows: Iterator[tuple[object, object, object]]) -> Iterator[tuple[object, object, object]]:
    with contextlib.suppress(sqlite3.Error):
        yield from rows
