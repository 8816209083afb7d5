"""An application from a file or from flags."""

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
    """`fields` go before those of the file, `name` before both. Raises `InvalidInput`, naming what is wrong."""
    found = _read(file) if file else {}
    found |= {field: value for field, value in fields.items() if value not in (None, (), {}, "")}
    if name:
        found["name"] = name
    try:
        application = msgspec.convert(found, Application)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"application: {error}") from error
    check_application(application)
    return application


def _read(file: str) -> dict[str, Any]:
    path = Path(file)
    try:
        text = path.read_text()
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidInput(f"--file {file}: {error.strerror}") from error
    except ValueError as error:  # also of what is not UTF-8
        raise InvalidInput(f"--file {file}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"--file {file}: got {type(content).__name__}, wanted the fields of an application")
    return content


def parse_policy_settings(sets: Sequence[str]) -> dict[str, float | dict[str, float]]:
    """`["eta=0.1", "weights.m=2"]` -> `{"eta": 0.1, "weights": {"m": 2.0}}`. Raises `InvalidInput`."""
    settings: dict[str, Any] = {}
    for text in sets:
        place, _, value = text.partition("=")
        name, dot, key = place.partition(".")
        try:
            number = float(value)
        except ValueError:
            raise InvalidInput(f"--set {text}: wanted NAME=NUMBER or NAME.MODEL=NUMBER") from None
        inner = settings.setdefault(name, {}) if dot else settings
        if not isinstance(inner, dict):
            raise InvalidInput(f"--set {text}: {name} is a number already")
        inner[key if dot else name] = number
    return settings


def missing_models(models: Iterable[ModelState], application: Application) -> list[str]:
    """Those of the application that are not ready. They may come later, so to declare them is no error."""
    ready = [state.spec for state in models if state.state == "READY"]
    known = {name for spec in ready for name in (spec.name, spec.key)}
    return [model for model in (*application.models, *application.shadows) if model not in known]


def parse_truth(truth: str) -> list[float]:
    """`"3,5"`, a number for each row. Raises `InvalidInput`."""
    try:
        return [float(part) for part in truth.split(",")]
    except ValueError:
        raise InvalidInput(f"--truth: got {truth!r}, wanted numbers, one for each row, as 3 or 3,5") from None
