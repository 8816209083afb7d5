"""Ten ways to damage a state file, and fields with numbers out of range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EXTREMES = (math.nan, math.inf, -math.inf, 1e300, -1.0, -1, 0, 1 << 62, 1 << 63, (1 << 64) - 1)
"""Numbers that a file or a message may hold instead of one that is in range."""


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("")


FILE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes((7 * at * at + 3) % 251 for at in range(4096))),
    "wrong version": lambda path: path.write_bytes(path.read_bytes().replace(b"\x01", b"\x63", 1)),
    "another type": lambda path: path.write_bytes(msgspec.msgpack.encode({"a": [1, 2]})),
    "JSON": lambda path: path.write_bytes(b'{"number": 7}'),
    "nested": lambda path: path.write_bytes(b"\x91" * 100_000),
    "huge length": lambda path: path.write_bytes(b"\xdd\xff\xff\xff\xff" + bytes(100)),
    "folder": make_folder,
    "another service": lambda path: path.write_bytes(path.read_bytes().replace(b"horologe-", b"horologg-", 1)),
}
"""Damage after which nothing of a state file can be used, by name."""


def damaged_values(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (what was damaged, value) for a decoded value: each number replaced, each field removed, and others."""
    if isinstance(value, bool):
        yield "bool", "yes"
    elif isinstance(value, int | float):
        yield from ((f"number {extreme}", extreme) for extreme in EXTREMES)
        yield "text", "1"
    elif isinstance(value, str):
        yield from (("no text", ""), ("long text", "x" * 100_000), ("nil", None), ("NUL", "a\0b\n"))
    elif isinstance(value, list):
        yield from (("no list", {}), ("empty list", []), ("doubled", [*value, *value]))
        for at, item in enumerate(value):
            yield f"without [{at}]", [*value[:at], *value[at + 1 :]]
            for name, damaged in damaged_values(item):
                yield f"[{at}] {name}", [*value[:at], damaged, *value[at + 1 :]]
    elif isinstance(value, dict):
        yield from (("no map", []), ("empty map", {}), ("further field", {**value, "further": 1}))
        for key, item in value.items():
            yield f"without {key}", {other: value[other] for other in value if other != key}
            for name, damaged in damaged_values(item):
                yield f"{key} {name}", {**value, key: damaged}
