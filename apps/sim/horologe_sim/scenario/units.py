"""Units in TOML files: durations, sizes and noises as text, and the fields that their keys stand for."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from horologe_common.service.settings import DURATIONS, SIZES, SettingsError, parse_quantity
from horologe_sim.engine.noise import NOISES

DURATION_KEYS = re.compile(
    "duration|warmup|settle|patience|slo|at|restart|for|from|think|every|burst|times|clocks|turn|delay|resend|step|"
    "minute|jitter|notice|spike"
)
"""Keys of a scenario file whose fields end in `_ns`."""


def read_units(where: str, value: Any, key: str = "") -> Any:
    """Convert durations and sizes to numbers, the name of a noise to its settings, and keys to field names.

    Raises SettingsError for an unknown unit or noise.
    """
    if isinstance(value, dict):
        return {
            _field_name(name): read_units(f"{where}: {name}", item, _field_name(name)) for name, item in value.items()
        }
    if isinstance(value, list):
        return [read_units(where, item, key) for item in value]
    if isinstance(value, str) and key.endswith("_ns"):
        return parse_quantity(where, value, DURATIONS)
    if isinstance(value, str) and key.endswith("_bytes"):
        return parse_quantity(where, value, SIZES)
    if isinstance(value, str) and key == "noise":
        if value not in NOISES:
            raise SettingsError(f"{where}: got {value!r}, wanted one of {', '.join(NOISES)}, or a table")
        return msgspec.to_builtins(NOISES[value])
    return value


def _field_name(key: str) -> str:
    """Return the field for a key of a scenario file."""
    return "cancel_ns" if key == "cancel_after" else f"{key}_ns" if DURATION_KEYS.fullmatch(key) else key
