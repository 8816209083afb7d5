"""What there is to say of an application and its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from horologe_cli.output import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe import Application, ApplicationState, ModelStatistics, Reply


def print_application(state: ApplicationState) -> None:
    """For people, as all that prints."""
    out, one = console(), state.application
    contexts = f", contexts in memory: {state.contexts}" if state.statistics else ""
    out.print(f"{one.name}  revision {state.revision}{contexts}", markup=False, style="bold")
    for line in _lines(one):
        out.print(f"  {line}", markup=False, soft_wrap=True)
    table = Table(
        "model", "weight", "answered", "missing", "agreed", "feedback", "mean loss", box=None, title_justify="left"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for standing in state.statistics:
        table.add_row(*_row(standing))
    if state.statistics:
        out.print(table)


def _lines(one: Application) -> list[str]:
    """What is declared, without what is as by default."""
    lines = [f"models {', '.join(one.models)}"]
    lines += [f"shadows {', '.join(one.shadows)}"] if one.shadows else []
    settings = "".join(f", {name} {_setting(value)}" for name, value in one.settings.items())
    loss = f", loss {one.loss}" if one.loss else ""
    lines.append(f"task {one.task}, policy {one.policy or 'by default'}{settings}{loss}, SLO {one.slo_ms:g} ms")
    if one.default is not None:
        below = f", also below an agreement of {one.confidence:g}" if one.confidence else ""
        lines.append(f"default {one.default:g}{below}")
    return lines


def _setting(value: float | Mapping[str, float]) -> str:
    """A number, or one for each model."""
    if isinstance(value, (float, int)):
        return f"{value:g}"
    return " ".join(f"{model}={number:g}" for model, number in value.items())


def _row(standing: ModelStatistics) -> list[str]:
    name = f"{standing.model} (shadow)" if standing.shadow else standing.model
    agreed = f"{standing.agreed / standing.answered:.1%}" if standing.answered else "-"
    loss = f"{standing.loss / standing.observations:.3f}" if standing.observations else "-"
    weight = "-" if standing.shadow else f"{standing.weight:.3f}"
    return [name, weight, str(standing.answered), str(standing.missing), agreed, str(standing.observations), loss]


def answer_document(reply: Reply) -> dict[str, Any]:
    """For programs."""
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
    missing = f"; missing: {', '.join(reply.missing)}" if reply.missing else ""
    how = ", from the cache" if reply.cached else ""
    out.print(f"by {', '.join(reply.models) or 'nobody'}{how}{missing}", markup=False)
    out.print(f"prediction_id {reply.prediction_id.hex()}", markup=False, soft_wrap=True)
