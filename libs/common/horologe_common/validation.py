"""Descriptions of values that do not have the type of their field."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import msgspec


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
