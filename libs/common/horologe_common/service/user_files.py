"""Reads files that users write (TOML, JSON, Python sources), bounded in bytes and depth.

The time and memory of `tomllib` grow with the square of the number of parts of a key: one key of 20,000 parts, a file
of 40 kB, takes seconds and 1.5 GB. The check of the depth is linear, and comes before the parser.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

T = TypeVar("T")

MAX_FILE_BYTES = 256 << 10
"""Limit of a file that a service reads: `tomllib` needs up to 1 s for it."""
MAX_DOCUMENT_BYTES = 16 << 20
"""Limit of a file that a command reads for its user."""
MAX_DEPTH = 16
"""Limit of the parts of a dotted key, and of arrays and tables inside one another."""

_HIDDEN = re.compile(
    r'"""(?:\\.?+|[^\\])*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\.?+|[^"\\\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+",
    re.DOTALL,
)
"""Strings and comments. Every alternative matches wherever its first characters are, so that the search is linear. It
agrees with `tomllib` up to the first syntax error, where `tomllib` stops."""
_SEPARATOR = re.compile(r"[=,{}\[\]\n]")
_BRACKET = re.compile(r"[\[\]{}]")


def read_file(path: Path, limit_bytes: int = MAX_FILE_BYTES, wait: bool = False) -> bytes:
    """Return the content of a regular file. Raises OSError, and ValueError for a larger file or another kind of file.

    With `wait`, also read pipes and devices, which may block: a command may wait for its user, a service may not.
    """
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if wait else os.O_NONBLOCK)), "rb") as file:
        if not wait and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("got a pipe, a socket or a device, wanted a regular file")
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"got more than {limit_bytes} bytes, wanted at most {limit_bytes}")
    return content


def read_toml(path: Path, limit_bytes: int = MAX_FILE_BYTES, wait: bool = False) -> dict[str, Any]:
    """Return the tables of a TOML file, as `parse_toml` does. Raises OSError and ValueError, see `read_file`."""
    return parse_toml(read_file(path, limit_bytes, wait))


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the tables of a TOML text in UTF-8; a byte order mark is ignored.

    Raises ValueError for text that is not UTF-8, is not TOML, or is nested more than `MAX_DEPTH` deep.
    """
    text = content.decode("utf-8-sig")
    check_depth(text)
    return tomllib.loads(text)


def read_json(path: Path, kind: type[T], limit_bytes: int = MAX_DOCUMENT_BYTES) -> T:
    """Return the document of a JSON file for a command, as `kind`. Raises OSError, and ValueError for invalid files."""
    try:
        return msgspec.json.decode(read_file(path, limit_bytes, wait=True), type=kind)
    except RecursionError:
        raise ValueError("got arrays and objects nested too deeply") from None


def check_depth(text: str) -> None:
    """Raise ValueError if a key of a TOML text has too many parts, or arrays and tables are nested too deeply."""
    bare = _HIDDEN.sub("_", text)
    for piece in _SEPARATOR.split(bare):
        if (parts := piece.count(".") + 1) > MAX_DEPTH:
            raise ValueError(f"got a key of {parts} parts ({piece.strip()[:20]}...), wanted at most {MAX_DEPTH}")
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"got arrays and tables nested more than {MAX_DEPTH} deep, wanted at most {MAX_DEPTH}")


def describe_mismatch(error: msgspec.ValidationError, document: Any) -> str:
    """Return msgspec's text, which names the field and what was wanted, with the value that came."""
    path = re.search(r" - at `\$(.*)`", str(error))
    value = document
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path[1] if path else ""):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            break
    return f"{error}: got {repr(value)[:80]}" if path else str(error)


class SourceLoader(SourceFileLoader):
    """Compiles a module from its source. A `__pycache__` may be of an earlier source with the same size and time."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module. Raises SyntaxError and OSError."""
        return self.source_to_code(self.get_data(self.path), self.path)
