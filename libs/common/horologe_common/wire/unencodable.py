"""Names the part of a message that cannot be encoded, such as an integer of more than 64 bits."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode


def find_unencodable(value: Any, place: str = "") -> str:
    """Return place and value of the first part that msgpack cannot encode; empty if there is none."""
    try:
        _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        for name, part in _parts(value):
            if found := find_unencodable(part, place + name):
                return found
        return f"{place}: got {_shown(value)}"
    return ""


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return [part for key, item in value.items() for part in ((f"[{_shown(key)}]", key), (f"[{_shown(key)}]", item))]
    return [(f"[{index}]", item) for index, item in enumerate(value)] if isinstance(value, list | tuple) else []


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # an integer of more than 4,300 digits
        return f"a large {type(value).__name__}"
