"""Reads `config.pbtxt`, and converts it to the JSON document that Triton gives to Python models.

An upload writes the file as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.service.user_files import read_file
from horologe_gpu_worker.repository.manifest import InvalidModel

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_FILE = "config.pbtxt"
SHOWN_MAX = 300


def read_config(path: Path) -> Any:
    """Return the `inference.ModelConfig` of a file; an empty one if there is no file.

    Raises `InvalidModel` naming line, column and field, if the file is not one or has a field that the schema lacks.
    """
    try:
        from google.protobuf import json_format, text_format
    except ImportError as error:
        raise InvalidModel(f"{path}: the package protobuf is not installed (the extra `worker`)") from error
    from horologe_gpu_worker.repository.triton.schema import config_class

    config = config_class()()
    try:
        text = read_file(path).decode("utf-8-sig")
        if text.lstrip().startswith("{"):  # no text format begins so
            json_format.Parse(text, config)
        else:
            text_format.Parse(text, config)
    except FileNotFoundError:
        return config
    except OSError as error:
        raise InvalidModel(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise InvalidModel(f"{path}: got messages nested too deeply") from error
    except (json_format.ParseError, text_format.ParseError, ValueError) as error:  # ValueError: not UTF-8, or too large
        raise InvalidModel(f"{path}: {_shortened(str(error))}") from error
    return config


def _shortened(text: str) -> str:
    """Return an error without the middle of the line that it quotes."""
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX // 2]}…{text[-SHOWN_MAX // 2 :]}"


def config_document(message: Any) -> dict[str, Any]:
    """Return a message as Triton writes it as JSON: all fields but messages that are not set, enumerations by name."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            document[field.name] = _repeated_value(field, value)
        elif field.message_type is None:
            if field.containing_oneof is None or message.HasField(field.name):
                document[field.name] = _value(field, value)
        elif message.HasField(field.name):
            document[field.name] = _value(field, value)
    return document


def _repeated_value(field: Any, values: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        content = field.message_type.fields_by_name["value"]
        return {str(key): _value(content, values[key]) for key in sorted(values)}
    return [_value(field, value) for value in values]


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return config_document(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value
