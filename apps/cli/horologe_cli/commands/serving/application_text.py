"""Reads applications from files and options, and prints applications, the state of their models, and answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_cli.output import console
from horologe_common.applications import Application, check_application
from horologe_common.service.user_files import MAX_DOCUMENT_BYTES, read_json, read_toml
from horologe_common.status import InvalidInput
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe import ApplicationState, ModelStatistics, Reply
    from horologe_common.wire import ModelState


def read_application(file: str, fields: Mapping[str, Any]) -> Application:
    """Return an application. `fields` that are not empty override the fields of `file`.

    Raises InvalidInput, naming the field that is invalid.
    """
    values = _read_file(file) if file else {}
    values |= {field: value for field, value in fields.items() if value not in (None, (), {}, "")}
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
        is_json = path.suffix == ".json"
        content = read_json(path, object) if is_json else read_toml(path, MAX_DOCUMENT_BYTES, wait=True)
    except OSError as error:
        raise InvalidInput(f"--file {file}: {error.strerror}") from error
    except ValueError as error:  # syntax errors, and text that is not UTF-8
        raise InvalidInput(f"--file {file}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"--file {file}: got {type(content).__name__}, wanted the fields of an application")
    return content


def print_applications(states: Sequence[ApplicationState]) -> None:
    if not states:
        console().print("no applications")
        return
    table = Table(("application", "revision", "task", "policy", "SLO", "models", "shadows"), left=7)
    for state in states:
        application = state.application
        table.add_row(
            application.name,
            state.revision,
            application.task,
            application.policy or "-",
            f"{application.slo_ms:g} ms",
            state.unavailable or ", ".join(application.models),
            ", ".join(application.shadows) or "-",
        )
    table.print(console())


def print_application(state: ApplicationState) -> None:
    """Print the definition of an application and the state of its models."""
    out, application = console(), state.application
    contexts = f", contexts in memory: {state.contexts}" if state.statistics else ""
    out.print(f"{application.name}  revision {state.revision}{contexts}", markup=False, style="bold", soft_wrap=True)
    for line in [state.unavailable] if state.unavailable else _definition_lines(application):
        out.print(f"  {line}", markup=False, soft_wrap=True)
    if not state.statistics:
        return
    table = Table(("model", "weight", "answered", "missing", "agreed", "feedback", "mean loss"))
    for statistics in state.statistics:
        table.add_row(*_model_cells(statistics))
    table.print(out)


def _definition_lines(application: Application) -> list[str]:
    """Return the fields of the definition that differ from their defaults."""
    lines = [f"models {', '.join(application.models)}"]
    lines += [f"shadows {', '.join(application.shadows)}"] if application.shadows else []
    policy = application.policy or "by default"
    settings = "".join(f", {name} {_format_setting(value)}" for name, value in application.settings.items())
    loss = f", loss {application.loss}" if application.loss else ""
    lines.append(f"task {application.task}, policy {policy}{settings}{loss}, SLO {application.slo_ms:g} ms")
    if application.default is not None:
        threshold = f", also below an agreement of {application.confidence:g}" if application.confidence else ""
        lines.append(f"default {application.default:g}{threshold}")
    return lines


def _format_setting(value: float | Mapping[str, float]) -> str:
    """Format a number, or a number for each model."""
    if isinstance(value, (float, int)):
        return f"{value:g}"
    return " ".join(f"{model}={number:g}" for model, number in value.items())


def _model_cells(statistics: ModelStatistics) -> list[str]:
    name = f"{statistics.model} (shadow)" if statistics.shadow else statistics.model
    agreed = f"{statistics.agreed / statistics.answered:.1%}" if statistics.answered else "-"
    loss = f"{statistics.loss / statistics.observations:.3f}" if statistics.observations else "-"
    weight = "-" if statistics.shadow else f"{statistics.weight:.3f}"
    return [name, weight, str(statistics.answered), str(statistics.missing), agreed, str(statistics.observations), loss]


def answer_document(reply: Reply) -> dict[str, Any]:
    """Return the answer of an application for --json."""
    return {
        **reply.outputs,
        "models": reply.models,
        "missing": reply.missing,
        "cached": reply.cached,
        "prediction_id": reply.prediction_id.hex(),
    }


def print_answer(reply: Reply) -> None:
    out = console()
    for name, value in reply.outputs.items():
        out.print(f"{name} {value.tolist() if value.ndim == 1 else value}", markup=False)
    models = ", ".join(reply.models) or "none"
    cache = ", from the cache" if reply.cached else ""
    missing = f"; missing: {', '.join(reply.missing)}" if reply.missing else ""
    out.print(f"models: {models}{cache}{missing}", markup=False, soft_wrap=True)
    out.print(f"prediction_id {reply.prediction_id.hex()}", markup=False, soft_wrap=True)
