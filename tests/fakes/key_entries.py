"""Entries of a key file for tests: the key of a client is its name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_frontend.core.access import EVERYTHING, KeyEntry

if TYPE_CHECKING:
    from pathlib import Path


def hash_of(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def entry(name: str, **fields: Any) -> KeyEntry:
    """Return an entry whose key is its name."""
    return KeyEntry((hash_of(name),), **fields)


def keys_of(*names: str) -> dict[str, KeyEntry]:
    """Return entries that permit everything, one for each name."""
    return {name: msgspec.structs.replace(EVERYTHING, hashes=(hash_of(name),)) for name in names}


def write_keys(file: Path, entries: dict[str, KeyEntry]) -> str:
    """Write a key file at once, as `horologe keys` does. Return its path."""
    lines = []
    for name, values in entries.items():
        lines.append(f"[keys.{name}]")
        fields = msgspec.structs.asdict(values).items()
        lines += [f"{field} = {msgspec.json.encode(value).decode()}" for field, value in fields if value is not None]
    part = file.with_suffix(".part")
    part.write_text("\n".join(lines))
    part.replace(file)
    return str(file)
