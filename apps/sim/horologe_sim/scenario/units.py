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


def read_units(where: str, value: Any, key: str = "", with_unit: bool = False) -> Any:
    """Convert durations and sizes to numbers, the name of a noise to its settings, and keys to field names.

    `with_unit`: a plain number other than 0 is an error, because the key does not name its unit. Raises SettingsError
    for this, and for an unknown unit or noise.
    """
    if isinstance(value, dict):
        return {
            field_name(name): read_units(
                f"{where}: {name}", item, key if with_unit else field_name(name), with_unit or field_name(name) != name
            )
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [read_units(where, item, key, with_unit) for item in value]
    if isinstance(value, str) and key.endswith("_ns"):
        return parse_quantity(where, value, DURATIONS)
    if isinstance(value, str) and key.endswith("_bytes"):
        return parse_quantity(where, value, SIZES)
    if isinstance(value, int | float) and with_unit and value:
        raise SettingsError(f'{where}: got {value}, wanted a duration with a unit, such as "{value}ms" or "{value}s"')
    if isinstance(value, str) and key == "noise":
        if value not in NOISES:
            raise SettingsError(f"{where}: got {value!r}, wanted one of {', '.join(NOISES)}, or a table")
        return msgspec.to_builtins(NOISES[value])
    return value


def field_name(key: str) -> str:
    """Return the field for a key of a scenario file."""
    return "cancel_ns" if key == "cancel_after" else f"{key}_ns" if DURATION_KEYS.fullmatch(key) else key


def written_name(field: str) -> str:
    """Return the key of a scenario file for a field."""
    key = field.removesuffix("_ns")
    return "cancel_after" if field == "cancel_ns" else key if field_name(key) == field else field
