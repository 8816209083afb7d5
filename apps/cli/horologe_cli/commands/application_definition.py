"""Reads the definition of an application from a file and from command line options."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import Application, check_application
from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_common.wire import ModelState


def read_application(name: str, file: str, fields: Mapping[str, Any]) -> Application:
    """Return an application. `name` overrides `fields`, which override the fields of `file`.

    Raises InvalidInput, naming the field that is invalid.
    """
    values = _read_file(file) if file else {}
    values |= {field: value for field, value in fields.items() if value not in (None, (), {}, "")}
    if name:
        values["name"] = name
    try:
        application = msgspec.convert(values, Application)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"application: {error}") from error
    check_application(application)
    return application


def parse_policy_settings(texts: Sequence[str]) -> dict[str, float | dict[str, float]]:
    """Convert `["eta=0.1", "weights.m=2"]` to `{"eta": 0.1, "weights": {"m": 2.0}}`. Raises InvalidInput."""
    settings: dict[str, Any] = {}
    for text in texts:
        path, _, value = text.partition("=")
        name, dot, key = path.partition(".")
        try:
            number = float(value)
        except ValueError:
            raise InvalidInput(f"--set {text}: wanted NAME=NUMBER or NAME.MODEL=NUMBER") from None
        group = settings.setdefault(name, {}) if dot else settings
        if not isinstance(group, dict):
            raise InvalidInput(f"--set {text}: {name} is a number already")
        group[key if dot else name] = number
    return settings


def parse_truth(text: str) -> list[float]:
    """Convert `"3,5"` to a number for each row. Raises InvalidInput."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"--truth: got {text!r}, wanted numbers, one for each row, as 3 or 3,5") from None


def missing_models(states: Iterable[ModelState], application: Application) -> list[str]:
    """Return the models of the application that are not ready. An application may name models that come later."""
    ready = [state.spec for state in states if state.state == "READY"]
    names = {name for spec in ready for name in (spec.name, spec.key)}
    return [model for model in (*application.models, *application.shadows) if model not in names]


def _read_file(file: str) -> dict[str, Any]:
    path = Path(file)
    try:
        text = path.read_text()
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidInput(f"--file {file}: {error.strerror}") from error
    except ValueError as error:  # syntax errors, and text that is not UTF-8
        raise InvalidInput(f"--file {file}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"--file {file}: got {type(content).__name__}, wanted the fields of an application")
    return content
