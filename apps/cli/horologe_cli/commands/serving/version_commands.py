"""`horologe models ...`: the models, and which version answers requests without a version."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from horologe_cli.commands.serving.model_commands import Model, models, print_models
from horologe_cli.output import DEFAULT_ENDPOINT, Endpoint, Json, Keys, call_server

Timeout = Annotated[float, typer.Option(min=0.1, help="Timeout in seconds.", metavar="S")]
LIST = "list"


class ModelsGroup(TyperGroup):
    """Commands of `horologe models`. Without one of them, the arguments are those of `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=ModelsGroup, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
app.command(LIST)(models)


@app.callback()
def group() -> None:
    """List the models, or change which version of a model answers.

    \b
    Examples:
      horologe models
      horologe models digits-cnn --json
      horologe models promote digits-cnn 2
      horologe models canary digits-cnn 3 --weight 0.1
      horologe models rollback digits-cnn
    """


@app.command()
def promote(
    model: Model,
    version: Annotated[
        str, typer.Argument(help="Default: the newest, and newer ones when they are ready.", metavar="VERSION")
    ] = "",
    timeout: Timeout = 600.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Let a version answer the requests that name none. It is loaded before, and the version before is unloaded.

    \b
    Examples:
      horologe models promote digits-cnn 2
      horologe models promote digits-cnn
    """
    print_models(
        call_server(endpoint, keys, lambda client: client.rollout(model, "promote", version, timeout=timeout)), json
    )


@app.command()
def rollback(
    model: Model,
    timeout: Timeout = 600.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """End the canary of a model. Without a canary, return to the version before the last change.

    \b
    Example:
      horologe models rollback digits-cnn
    """
    print_models(call_server(endpoint, keys, lambda client: client.rollout(model, "rollback", timeout=timeout)), json)


@app.command()
def canary(
    model: Model,
    version: Annotated[str, typer.Argument(help="Version that gets a part of the requests.", metavar="VERSION")],
    weight: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Part of the requests, below 1. 0 ends the canary.", metavar="W"),
    ],
    timeout: Timeout = 600.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Give a version a part of the requests that name none.

    \b
    Examples:
      horologe models canary digits-cnn 3 --weight 0.1
      horologe models canary digits-cnn 3 --weight 0.5
    """
    states = call_server(
        endpoint, keys, lambda client: client.rollout(model, "canary", version, weight, timeout=timeout)
    )
    print_models(states, json)
