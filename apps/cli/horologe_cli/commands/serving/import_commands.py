"""`horologe import ...`: model repositories of other servers in our form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import ExitCode, Json, command_group, fail, fail_with, print_result

if TYPE_CHECKING:
    from horologe_gpu_worker.repository.triton.repository_import import ImportedModel

app = command_group("Model repositories of other servers in the form of Horologe.")


@app.callback()
def group() -> None:
    """Keep `triton` a subcommand."""


@app.command()
def triton(
    repository: Annotated[Path, typer.Argument(help="Model repository of Triton.", metavar="DIR")],
    target: Annotated[
        Path | None, typer.Argument(help="New folder for the models. Without it, only report.", metavar="TARGET")
    ] = None,
    json: Json = False,
) -> None:
    """Report what becomes of each field of the models of a Triton repository, and write them with model.toml.

    Models that would answer differently are not written. The exit code is 1 if there is such a model.

    \b
    Examples:
      horologe import triton model_repository
      horologe import triton model_repository models && horologe up --models models
      horologe import triton model_repository --json | jq '.models[] | select(.served | not)'
    """
    from horologe_common.status import InvalidInput
    from horologe_gpu_worker.repository.triton.repository_import import read_repository, write_repository

    try:
        models = read_repository(repository)
        if target is not None:
            write_repository(models, repository, target)
    except InvalidInput as error:
        fail(error.reason, ExitCode.USAGE)
    except OSError as error:
        fail_with(error, "")
    document = {"models": [_document(model) for model in models], "target": str(target) if target else None}
    print_result(document, "\n".join(_lines(models)), json)
    if not all(model.is_served for model in models):
        raise SystemExit(int(ExitCode.FAILED))


def _document(model: ImportedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "kind": model.kind,
        "served": model.is_served,
        "versions": list(model.versions),
        "findings": [finding._asdict() for finding in model.findings],
    }


def _lines(models: list[ImportedModel]) -> list[str]:
    lines = []
    for model in models:
        versions = "" if model.kind == "pipeline" else f", versions {', '.join(model.versions)}"
        lines.append(f"{model.name}: {f'{model.kind}{versions}' if model.is_served else 'NOT SERVED'}")
        width = max((len(finding.field) for finding in model.findings), default=0)
        lines += [f"  {finding.field:{width}}  {finding.effect:10}  {finding.text}" for finding in model.findings]
    served = sum(model.is_served for model in models)
    return [*lines, f"{served} of {len(models)} models can be served"]
