"""Settings: a frozen struct per section, read once from file, environment and flags, in this order.

Fields called `*_ns` also accept durations ("5ms"), `*_bytes` sizes ("16MiB"). Unknown names are errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from horologe_common.service.user_files import read_toml
from horologe_common.setting_ranges import DURATIONS as DURATIONS
from horologe_common.setting_ranges import SIZES as SIZES
from horologe_common.setting_ranges import describe_range, range_of
from horologe_common.status import HorologeError, describe_error

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=msgspec.Struct)

SECTIONS = (
    "links", "frontend", "http", "grpc", "tls", "selector", "controller", "worker", "profiler", "tuner", "hardware",
    "metrics", "tracing", "log", "recorder",
)  # fmt: skip
"""Tables that a settings file may have. Each service reads some of them."""


class SettingsError(HorologeError):
    """A setting is unknown or invalid. The message contains its name, the value and what was expected."""


def load_settings(
    kind: type[S], section: str, file: str | Path | None, env: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> S:
    """Read the settings of `section`: table of the TOML `file`, `HOROLOGE_SECTION_FIELD` in `env`, `flags`.

    A field of type dict is a table of the file: `[section.field]`, `HOROLOGE_SECTION_FIELD_KEY`, `section.field.key`.
    """
    tables: dict[str, dict[str, Any]] = {
        field.name: {} for field in msgspec.structs.fields(kind) if get_origin(field.type) is dict
    }
    values = _table(Path(file), section) if file else {}
    prefix = f"HOROLOGE_{section.upper()}_"
    variables = {key[len(prefix) :].lower(): value for key, value in env.items() if key.startswith(prefix)}
    chosen = {key: value for key, value in (flags or {}).items() if value is not None}
    for source, separator in ((variables, "_"), (chosen, ".")):
        for key, value in source.items():
            table, _, name = key.partition(separator)
            if name and table in tables:
                tables[table][name] = value
            else:
                values[key] = value
    for table, fields in tables.items():
        if not isinstance(given := values.get(table, {}), dict):
            raise SettingsError(f"setting {section}.{table}: got {given!r}, wanted a table")
        values[table] = given | fields
    return convert_settings(kind, section, values)


def convert_settings(kind: type[S], section: str, values: Mapping[str, Any], known: str = "the settings are") -> S:
    """Return the table `section` as a struct. Raises `SettingsError` for an unknown name and a wrong value.

    `known`: the words before the list of names in the error of an unknown one.
    """
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key in values:
        if key not in types:
            raise SettingsError(f"setting {section}.{key}: unknown; {known} {', '.join(types)}")
    return kind(**{key: _parse(f"{section}.{key}", key, value, types[key]) for key, value in values.items()})


def _table(path: Path, section: str) -> dict[str, Any]:
    try:
        document = read_toml(path, wait=True)
    except (OSError, ValueError) as error:
        raise SettingsError(f"settings file {path}: {describe_error(error)}") from error
    for name in document:
        if name not in SECTIONS and name != section:
            raise SettingsError(f"settings file {path}: {unknown_section(name)}")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise SettingsError(f"settings file {path}: {section}: got {type(table).__name__}, wanted a table")
    return table


def unknown_section(name: str) -> str:
    """Return the error of a section that no service has."""
    return f"{name}: no such section; the sections are {', '.join(SECTIONS)}"


def _parse(where: str, key: str, value: Any, kind: Any) -> Any:
    """Return the value of a field in its type and range. Raises `SettingsError`."""
    limits, got = range_of(key, kind), value
    if isinstance(value, str):
        if key.endswith("_ns"):
            value = parse_quantity(where, value, DURATIONS)
        elif key.endswith("_bytes"):
            value = parse_quantity(where, value, SIZES)
        elif "tuple" in str(kind):
            value = [part.strip() for part in value.split(",") if part.strip()]
    wanted = describe_range(key, limits) if limits else ""
    if get_origin(kind) is Literal:
        wanted = f"one of {', '.join(map(str, get_args(kind)))}"
    try:
        converted = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        wanted = wanted or str(error).removeprefix("Expected ")
        raise SettingsError(f"setting {where}: got {got!r}, wanted {wanted}") from error
    if limits is not None and not limits.contains(converted):
        raise SettingsError(f"setting {where}: got {got!r}, wanted {wanted}")
    if isinstance(converted, str | tuple) and "\0" in "".join(converted):
        raise SettingsError(f"setting {where}: got {got!r}, wanted text without null characters")
    return converted


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
