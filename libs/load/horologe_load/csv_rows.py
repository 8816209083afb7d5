"""Reads the lines of a CSV file, with errors that name the line."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_LINES = 1_000_000
SHOWN = 40
"""Characters of a cell in an error."""


class CsvRow(NamedTuple):
    """The cells of a line without spaces around them. `line` counts from 1."""

    line: int
    cells: list[str]


def read_rows(path: Path, limit: int = MAX_LINES) -> Iterator[CsvRow]:
    """Yield the lines of a UTF-8 file that are not empty. A byte order mark is ignored.

    Raises OSError for a file that cannot be read, ValueError for other encodings, for text that is not CSV, and for
    more than `limit` lines.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            for row in reader:
                if reader.line_num > limit:
                    raise ValueError(f"got more than {limit:,} lines")
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield CsvRow(reader.line_num, cells)
        except UnicodeDecodeError as error:
            wrong = error.object[error.start]
            raise ValueError(f"encoding: got the byte 0x{wrong:02x}, wanted a file in UTF-8") from error
        except csv.Error as error:
            raise ValueError(
                f"line {reader.line_num}: got text that is not CSV ({error}), wanted cells and commas"
            ) from error


def shorten(text: str) -> str:
    """Return the text as an error shows it."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}... ({len(text):,} characters)"
