"""`horologe application ...`: applications over models, what they answer, and what turned out to be true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    Exit,
    Json,
    Keys,
    client,
    console,
    exit_for,
    fail,
    notes,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe import ApplicationState, Client

app = typer.Typer(
    help="Applications: many models behind one name, chosen and combined by what feedback has taught.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Name = Annotated[str, typer.Argument(help="Name of the application.", metavar="NAME")]
Context = Annotated[
    str, typer.Option("--context", "-c", help="User, session or whatever it learns for separately.", metavar="TEXT")
]


@app.command("list")
def list_(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """List the applications that are declared.

    \b
    Examples:
      horologe application list
      horologe application list --json | jq '.[].application.name'
    """
    states: list[ApplicationState] = _asked(endpoint, keys, lambda asking: asking.applications())
    if json:
        print_json([_document(state) for state in states])
        return
    from rich.table import Table

    table = Table("application", "revision", "task", "policy", "SLO", "models", "shadows", box=None)
    for state in states:
        one = state.application
        table.add_row(
            one.name, str(state.revision), one.task, one.policy or "-", f"{one.slo_ms:g} ms", ", ".join(one.models),
            ", ".join(one.shadows) or "-",
        )  # fmt: skip
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
    _show(_asked(endpoint, keys, lambda asking: asking.application(name, context)), json)


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
    from horologe_cli.declaration import absent_models, declaration, settings_of
    from horologe_common.status import InvalidInput

    try:
        application = declaration(name, file, {
            "models": model, "shadows": shadow, "slo_ms": slo_ms, "task": task, "output": output, "policy": policy,
            "settings": settings_of(set_ or ()), "loss": loss, "default": default, "confidence": confidence,
            "cache": cache, "contexts": contexts,
        })  # fmt: skip
    except InvalidInput as error:
        fail(error.reason, Exit.USAGE)
    state, absent = _asked(
        endpoint, keys, lambda asking: (asking.declare(application), absent_models(asking.models(), application))
    )
    _show(state, json)
    if absent:
        notes().print(f"not served now, and missing until they are: {', '.join(absent)}", markup=False, soft_wrap=True)


@app.command()
def delete(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Delete an application and what it has learned.

    \b
    Example:
      horologe application delete digits
    """
    _asked(endpoint, keys, lambda asking: asking.withdraw(name))
    _done({"deleted": name}, f"deleted {name}", json)


@app.command()
def rollback(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Make an application what it was before it was last changed; again, what it was before that.

    \b
    Example:
      horologe application rollback digits
    """
    _show(_asked(endpoint, keys, lambda asking: asking.rollback(name)), json)


@app.command()
def predict(
    name: Name,
    source: Annotated[
        str, typer.Option("--input", "-i", help="A .npy or .npz file, JSON text, or - for JSON on standard input.")
    ] = "-",
    context: Context = "",
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="Deadline; default: its own.", metavar="MS")] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Send one input to an application and print what it answers.

    \b
    Examples:
      horologe application predict digits --input image.npy
      horologe application predict digits --input image.npy --context user-1 --json
    """
    from horologe_cli.application_output import answer_document, print_answer
    from horologe_cli.commands.predict import read_input

    inputs = read_input(source)
    reply = _asked(endpoint, keys, lambda asking: asking.ask(name, inputs, context=context, slo_ms=slo_ms))
    if json:
        print_json(answer_document(reply))
    else:
        print_answer(reply)


@app.command()
def feedback(
    name: Name,
    truth: Annotated[
        list[str], typer.Option("--truth", "-t", help="What is true, a number for each row.", metavar="N[,N...]")
    ],
    prediction: Annotated[
        list[str] | None, typer.Option("--prediction", "-p", help="prediction_id of an answer; one for each truth.")
    ] = None,
    source: Annotated[
        str, typer.Option("--input", "-i", help="The input instead: a .npy or .npz file, or JSON text.")
    ] = "",
    context: Context = "",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Tell an application what turned out to be true. When the command ends well, that is kept.

    \b
    Examples:
      horologe application feedback digits --prediction 1f0c... --truth 3
      horologe application feedback digits --input image.npy --truth 3 --context user-1
    """
    from horologe_cli.commands.predict import read_input
    from horologe_cli.declaration import rows_of
    from horologe_common.status import InvalidInput

    if bool(prediction) == bool(source) or (source and len(truth) != 1):
        fail("feedback: wanted --prediction for each --truth, or --input and one --truth", Exit.USAGE)
    try:
        truths = [rows_of(one) for one in truth]
        ids = [bytes.fromhex(one) for one in prediction or ()]
    except (InvalidInput, ValueError) as error:
        fail(f"feedback: {error}", Exit.USAGE)
    inputs = [read_input(source)] if source else None
    _asked(endpoint, keys, lambda asking: asking.feedback(name, ids or None, truths, context=context, inputs=inputs))
    _done({"learned": len(truths)}, f"{name} has learned from {len(truths)}", json)


def _asked(endpoint: str, keys: str, question: Callable[[Client], Any]) -> Any:
    """What the server answers; ends the command if that is an error."""
    with client(endpoint, keys) as asking:
        try:
            return question(asking)
        except Exception as error:
            exit_for(error, endpoint)


def _done(document: dict[str, Any], words: str, json: bool) -> None:
    if json:
        print_json(document)
    else:
        console().print(words, markup=False)


def _show(state: ApplicationState, json: bool) -> None:
    from horologe_cli.application_output import print_application

    if json:
        print_json(_document(state))
    else:
        print_application(state)


def _document(state: ApplicationState) -> dict[str, Any]:
    """The same as over HTTP."""
    from horologe_frontend.application_json import application_json

    return application_json(state)
