"""Converts tables of TOML files to structs: durations and sizes with units, and errors that name what was wanted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import inspect

from horologe_common.service.settings import DURATIONS, SIZES, SettingsError, parse_quantity
from horologe_common.service.user_files import MAX_DOCUMENT_BYTES, read_toml
from horologe_sim.engine.noise import NOISES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

T = TypeVar("T")
PLACE = re.compile(r"^(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
"""Types of msgspec -> words in errors."""
UNKNOWN, MISSING = re.compile("contains unknown field `(.*)`"), re.compile("missing required field `(.*)`")
DURATION_KEYS = re.compile(
    "duration|warmup|settle|patience|slo|at|restart|for|from|think|every|burst|times|clocks|turn|delay|resend|step|"
    "minute|jitter|notice|spike"
)
"""Keys of a scenario file whose fields end in `_ns`."""


def read_table(where: str, path: Path) -> dict[str, Any]:
    """Read a TOML file. A byte order mark is ignored. Raises OSError, and SettingsError for text that is not TOML."""
    try:
        return read_toml(path, MAX_DOCUMENT_BYTES, wait=True)
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{where}: encoding: got the byte 0x{error.object[error.start]:02x}, wanted UTF-8"
        ) from error
    except ValueError as error:
        raise SettingsError(f"{where}: got text that is not TOML, wanted a TOML file: {error}") from error


def convert_table(where: str, table: Mapping[str, Any], kind: type[T]) -> T:
    """Return the table as `kind`, with units (`read_units`). Raises SettingsError for an invalid field."""
    try:
        return msgspec.convert(read_units(where, dict(table)), kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {explain(error, table, kind)}") from error


def explain(error: msgspec.ValidationError, table: Any, kind: Any) -> str:
    """Return an error of msgspec with the name that the user wrote, the value, and what was wanted."""
    match = PLACE.match(str(error))
    assert match is not None
    text, value, wanted, names, name = match["text"], table, inspect.type_info(kind), "", ""
    for name, index in STEP.findall(match["path"] or ""):
        wanted = _step_type(wanted, name)
        if name:
            name = next((key for key in value if field_name(key) == name), name)
            value = value.get(name) if isinstance(value, dict) else None
            names += f".{name}" if names else name
        elif index != "...":
            value, names = value[int(index)], f"{names}[{index}]"
    where = f"{names}: " if names else ""
    if unknown := UNKNOWN.search(text):
        name = next((key for key in value if field_name(key) == unknown[1]), unknown[1])
        fields = wanted.fields if isinstance(wanted, inspect.StructType) else ()
        known = ", ".join(written_name(field.name) for field in fields)
        return f"{where}{name}: got an unknown name, wanted one of {known}"
    if missing := MISSING.search(text):
        return f"{where}{written_name(missing[1])}: got nothing, wanted a value"
    if isinstance(wanted, inspect.LiteralType):
        return f"{where}got {value!r}, wanted one of {', '.join(map(str, wanted.values))}"
    is_duration = isinstance(wanted, inspect.IntType) and field_name(name) != name
    return f"{where}got {value!r}, wanted {_describe_wanted(text, is_duration)}"


def _describe_wanted(text: str, is_duration: bool) -> str:
    """Return what an error of msgspec expects, for a reader who does not know Python's types."""
    wanted = text.removeprefix("Expected ").partition(", got ")[0].replace("`", "")
    for kind, name in NAMES.items():
        wanted = re.sub(rf"\b{kind}\b", name, wanted)
    if is_duration:
        wanted = wanted.replace(NAMES["int"], "a duration").replace(">= 1", "> 0")
        wanted = re.sub(r"<= (\d+)", lambda most: f"<= {int(most[1]) // 10**9}s", wanted)
    return wanted.replace(">=", "of at least").replace("<=", "of at most").replace(">", "above").replace(".0", "")


def _step_type(kind: inspect.Type, name: str) -> inspect.Type:
    """Return the type of a field, or of the items if `name` is empty."""
    kind = _without_none(kind)
    if isinstance(kind, inspect.StructType):
        kind = next((field.type for field in kind.fields if field.encode_name == name), kind)
    elif isinstance(kind, inspect.DictType):
        kind = kind.value_type
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        kind = kind.item_type
    return _without_none(kind)


def _without_none(kind: inspect.Type) -> inspect.Type:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else ()
    return next((each for each in kinds if not isinstance(each, inspect.NoneType)), kind)


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
