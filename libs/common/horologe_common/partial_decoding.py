"""Decoding of stored structs of which a part is damaged: one bad item does not lose the others."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

import msgspec

DAMAGE = (ValueError, TypeError, OverflowError, msgspec.MsgspecError, RecursionError, MemoryError)
"""Errors of decoding any bytes."""
S = TypeVar("S", bound=msgspec.Struct)


def decode_parts(body: bytes | msgspec.Raw, kind: type[S]) -> tuple[S, list[str]]:
    """Decode a struct without the fields and items that are not of their types. Return it and what was left out.

    Items are those of lists, tuples of one type, and dictionaries. Raises `DAMAGE` if the rest is no struct.
    """
    content = msgspec.msgpack.decode(body)
    fields = msgspec.structs.fields(kind)
    if isinstance(content, list):
        content = dict(zip((field.encode_name for field in fields), content, strict=False))
    if not isinstance(content, dict):
        raise ValueError(f"state: got {type(content).__name__}, wanted {kind.__name__}")
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for field in fields:
        if field.encode_name in content:
            value = _convert_items(content[field.encode_name], field.type, field.name, dropped)
            if value is not msgspec.UNSET:
                kept[field.name] = value
        elif field.required:
            dropped.append(f"{field.name}: missing")
    return _fill_missing(kind, kept), dropped


def _convert_items(value: Any, kind: Any, place: str, dropped: list[str]) -> Any:
    """Return the value as `kind`, without the items that are not of their type; UNSET if nothing can be used."""
    container, parts = get_origin(kind), get_args(kind)
    if container is dict and isinstance(value, dict):
        pairs = [(_convert(key, parts[0], place, dropped), key, item) for key, item in value.items()]
        items = [
            (key, _convert(item, parts[1], f"{place}[{name!r}]", dropped))
            for key, name, item in pairs
            if key is not msgspec.UNSET
        ]
        return {key: item for key, item in items if item is not msgspec.UNSET}
    if (container is list or (container is tuple and parts[1:] == (...,))) and isinstance(value, list):
        converted = [_convert(item, parts[0], f"{place}[{index}]", dropped) for index, item in enumerate(value)]
        return container(item for item in converted if item is not msgspec.UNSET)
    return _convert(value, kind, place, dropped)


def _convert(value: Any, kind: Any, place: str, dropped: list[str]) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        dropped.append(f"{place}: {error}")
        return msgspec.UNSET


def _fill_missing(kind: type[S], kept: dict[str, Any]) -> S:
    """Build the struct with empty values in place of required fields that are missing."""
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in kept:
            kept[field.name] = (get_origin(field.type) or field.type)()
    return kind(**kept)
