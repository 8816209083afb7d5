"""Checks of the fields of messages, before a core acts on them. A core counts a message that fails and ignores it."""

from __future__ import annotations

from horologe_common.core.protocol import role
from horologe_common.status import InvalidInput

INVALID_MESSAGES = "horologe_invalid_messages_total"
"""Counter of ignored messages, by type."""
NUMBER_MAX = 1 << 53
"""Largest id, count or number of a message."""


def check_range(field: str, value: float, least: float, most: float) -> None:
    """Raise `InvalidInput` unless `least` <= value <= `most`. NaN is never in a range."""
    if not least <= value <= most:
        raise InvalidInput(f"{field}: got {value}, wanted {least} to {most}")


def check_sender(sender: str, wanted: str) -> None:
    """Raise `InvalidInput` unless the sender has the wanted role."""
    if role(sender) != wanted:
        raise InvalidInput(f"sender: got {sender!r}, wanted a {wanted}")
