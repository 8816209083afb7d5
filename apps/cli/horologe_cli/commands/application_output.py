"""Prints applications, the state of their models, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_cli.output import console
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe import Application, ApplicationState, ModelStatistics, Reply


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
            ", ".join(application.models),
            ", ".join(application.shadows) or "-",
        )
    table.print(console())


def print_application(state: ApplicationState) -> None:
    """Print the definition of an application and the state of its models."""
    out, application = console(), state.application
    contexts = f", contexts in memory: {state.contexts}" if state.statistics else ""
    out.print(f"{application.name}  revision {state.revision}{contexts}", markup=False, style="bold", soft_wrap=True)
    for line in _definition_lines(application):
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
