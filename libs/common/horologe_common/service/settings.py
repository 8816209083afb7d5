"""Settings: a frozen struct per section, read once from file, environment and flags, in this order.

Fields called `*_ns` also accept durations ("5ms"), `*_bytes` sizes ("16MiB"). Unknown names are errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from horologe_common.service.user_files import read_toml
from horologe_common.status import HorologeError, describe_error

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=msgspec.Struct)

DURATIONS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}
SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class SettingsError(HorologeError):
    """A setting is unknown or invalid. The message contains its name, the value and what was expected."""


def load_settings(
    kind: type[S], section: str, file: str | Path | None, env: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> S:
    """Read the settings of `section`: table of the TOML `file`, `HOROLOGE_SECTION_FIELD` in `env`, `flags`."""
    values: dict[str, Any] = {}
    if file:
        values |= _table(Path(file), section)
    names = {field.name: field for field in msgspec.structs.fields(kind)}
    prefix = f"HOROLOGE_{section.upper()}_"
    values |= {key[len(prefix) :].lower(): value for key, value in env.items() if key.startswith(prefix)}
    values |= {key: value for key, value in (flags or {}).items() if value is not None}
    for key, value in values.items():
        if key not in names:
            raise SettingsError(f"setting {section}.{key}: unknown; the settings are {', '.join(names)}")
        values[key] = _parse(f"{section}.{key}", key, value, names[key].type)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings of {section}: {error}") from error


def _table(path: Path, section: str) -> dict[str, Any]:
    try:
        table = read_toml(path, wait=True).get(section, {})
    except (OSError, ValueError) as error:
        raise SettingsError(f"settings file {path}: {describe_error(error)}") from error
    if not isinstance(table, dict):
        raise SettingsError(f"settings file {path}: {section}: got {type(table).__name__}, wanted a table")
    return table


def _parse(where: str, key: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, str):
        return value
    if key.endswith("_ns"):
        return parse_quantity(where, value, DURATIONS)
    if key.endswith("_bytes"):
        return parse_quantity(where, value, SIZES)
    if "tuple" in str(kind):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


MAX_QUANTITY = 1 << 62
"""146 years in nanoseconds. Sums of two such numbers are 64-bit integers."""


def parse_quantity(where: str, text: str, units: Mapping[str, int]) -> int:
    """Return the number in base units: "5ms" -> 5_000_000. Raises `SettingsError` without a unit of `units`, and for a
    number that the wire cannot carry.
    """
    number = text.strip()
    for unit in sorted(units, key=len, reverse=True):
        if number.endswith(unit):
            try:
                amount = round(float(number[: -len(unit)]) * units[unit])
            except (ValueError, OverflowError):  # not a number, nan, inf
                break
            if abs(amount) <= MAX_QUANTITY:
                return amount
            break
    if number == "0":
        return 0
    raise SettingsError(f"setting {where}: got {text!r}, wanted a number with one of {', '.join(units)}")
