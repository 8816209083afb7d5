"""Damaged SQLite files: what counts as damage, where the file is kept, and the rows that can still be read."""

from __future__ import annotations

import contextlib
import sqlite3
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from horologe_common.service.state_file import aside_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS_AT_ONCE = 1000
VERSION_MAX = 1 << 62
"""Limit of a version. Later ones must still fit into 64 bits."""
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR)
"""The last one is that of a missing table or column."""


def is_damaged(path: Path, error: Exception) -> bool:
    """Return whether opening failed because of the content, and not because the file is in use or not accessible."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return path.is_dir() or isinstance(error, ValueError) or code in DAMAGE_CODES


def keep_aside(path: Path) -> Path:
    """Rename the file with its log to a name with a hash of its content. Return the new path. Raises OSError."""
    aside = aside_path(path)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return path.replace(aside)


def readable_rows(path: Path) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yield the records up to the first damage, from either end of the table, some twice."""
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_open(path)) as db:
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


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)


def _until_error(rows: Iterator[tuple[object, object, object]]) -> Iterator[tuple[object, object, object]]:
    with contextlib.suppress(sqlite3.Error):
        yield from rows
