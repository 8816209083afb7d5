"""`horologe application ...`: applications over models, made, shown and deleted; and used (client.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.commands.asking import Context, Name, feedback, predict
from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    ExitCode,
    Json,
    Keys,
    call_server,
    console,
    fail,
    print_json,
    print_result,
    stderr_console,
)

if TYPE_CHECKING:
    from horologe import ApplicationState

app = typer.Typer(
    help="Applications: many models behind one name, chosen and combined by what feedback has taught.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("list")
def list_(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """List the applications that are declared.

    \b
    Examples:
      horologe application list
      horologe application list --json | jq '.[].application.name'
    """
    states: list[ApplicationState] = call_server(endpoint, keys, lambda client: client.applications())
    if json:
        print_json([_document(state) for state in states])
        return
    from rich.table import Table

    table = Table("application", "revision", "task", "policy", "SLO", "models", "shadows", box=None)
    for state in states:
        one = state.application
        table.add_row(
            one.name,
            str(state.revision),
            one.task,
            one.policy or "-",
            f"{one.slo_ms:g} ms",
            ", ".join(one.models),
            ", ".join(one.shadows) or "-",
        )
    console().print(table if states else "no applications")


@app.command()
def show(
    name: Name, context: Context = "", endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False
) -> None:
    """Show an application and how its models have done.

    \b
    Examples:
      horologe application show digits
      horologe application show digits --context user-1 --json
    """
    _show(call_server(endpoint, keys, lambda client: client.application(name, context)), json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Its name; default: that in the file.", metavar="[NAME]")] = "",
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help="Name or NAME/VERSION; repeated.")] = None,
    shadow: Annotated[list[str] | None, typer.Option(help="A model asked, but never answered from; repeated.")] = None,
    file: Annotated[str, typer.Option("--file", "-f", help="TOML or JSON; flags go before it.", metavar="FILE")] = "",
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="Deadline in milliseconds.", metavar="MS")] = None,
    task: Annotated[str, typer.Option(help="classes, regression or any.")] = "",
    output: Annotated[str, typer.Option(help="The models' output that counts; default: their first.")] = "",
    policy: Annotated[str, typer.Option(help="Default: static for one model, exp4 for several.")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Of the policy; repeated.", metavar="NAME[.MODEL]=NUMBER")
    ] = None,
    loss: Annotated[str, typer.Option(help="Default: zero_one for classes, absolute for regression.")] = "",
    default: Annotated[float | None, typer.Option(help="Answered where nothing better is known in time.")] = None,
    confidence: Annotated[float | None, typer.Option(help="Below this agreement the default is answered.")] = None,
    cache: Annotated[bool | None, typer.Option(help="Whether equal inputs are answered from the cache.")] = None,
    contexts: Annotated[int | None, typer.Option(help="States kept, one for each context.")] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Create an application, or replace the one of this name.

    \b
    Examples:
      horologe application create digits -m digits-cnn -m digits-mlp --slo-ms 50 --default 0
      horologe application create canary -m digits-cnn/1 -m digits-cnn/2 --policy static \\
        --set weights.digits-cnn/1=95 --set weights.digits-cnn/2=5
      horologe application create --file digits.toml
    """
    from horologe_cli.commands.declaration import missing_models, parse_policy_settings, read_application
    from horologe_common.status import InvalidInput

    try:
        application = read_application(
            name,
            file,
            {
                "models": model,
                "shadows": shadow,
                "slo_ms": slo_ms,
                "task": task,
                "output": output,
                "policy": policy,
                "settings": parse_policy_settings(set_ or ()),
                "loss": loss,
                "default": default,
                "confidence": confidence,
                "cache": cache,
                "contexts": contexts,
            },
        )
    except InvalidInput as error:
        fail(error.reason, ExitCode.USAGE)
    state, absent = call_server(
        endpoint, keys, lambda client: (client.declare(application), missing_models(client.models(), application))
    )
    _show(state, json)
    if absent:
        stderr_console().print(
            f"not served now, and missing until they are: {', '.join(absent)}", markup=False, soft_wrap=True
        )


@app.command()
def delete(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Delete an application and what it has learned.

    \b
    Example:
      horologe application delete digits
    """
    call_server(endpoint, keys, lambda client: client.withdraw(name))
    print_result({"deleted": name}, f"deleted {name}", json)


@app.command()
def rollback(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Make an application what it was before it was last changed; again, what it was before that.

    \b
    Example:
      horologe application rollback digits
    """
    _show(call_server(endpoint, keys, lambda client: client.rollback(name)), json)


for command in (predict, feedback):
    app.command()(command)


def _show(state: ApplicationState, json: bool) -> None:
    from horologe_cli.commands.application_output import print_application

    if json:
        print_json(_document(state))
    else:
        print_application(state)


def _document(state: ApplicationState) -> dict[str, Any]:
    """The same as over HTTP."""
    from horologe_frontend.oip.applications_http import application_json

    return application_json(state)
