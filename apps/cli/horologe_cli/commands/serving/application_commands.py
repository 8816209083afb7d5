"""`horologe application ...`: create, show, use and delete applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from horologe_cli.option_groups import expand_groups
from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    ExitCode,
    Input,
    Json,
    Keys,
    call_server,
    command_group,
    fail,
    print_json,
    print_result,
    stderr_console,
)

if TYPE_CHECKING:
    from horologe import ApplicationState

Name = Annotated[str, typer.Argument(help="Name of the application.", metavar="NAME")]
Context = Annotated[
    str, typer.Option("--context", "-c", help="User or session with a selection state of its own.", metavar="TEXT")
]

app = command_group(
    "Applications: several models behind one name, selected and combined by a policy that learns from feedback."
)


class ApplicationOptions(NamedTuple):
    """The fields of an application, each empty or None if it is not given."""

    name: Annotated[str, typer.Argument(help="Name. Default: the name in the file.", metavar="[NAME]")] = ""
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="NAME or NAME/VERSION of a model. Repeat for several.")
    ] = None
    shadows: Annotated[
        list[str] | None,
        typer.Option("--shadow", help="A model that is queried but never used in answers. Repeat for several."),
    ] = None
    file: Annotated[
        str, typer.Option("--file", "-f", help="TOML or JSON file. Options override its fields.", metavar="FILE")
    ] = ""
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="Deadline in milliseconds.", metavar="MS")] = None
    task: Annotated[str, typer.Option(help="classes, regression or any.")] = ""
    output: Annotated[str, typer.Option(help="Output tensor to combine. Default: the first of each model.")] = ""
    policy: Annotated[str, typer.Option(help="Selection policy. Default: static for one model, else exp4.")] = ""
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting of the policy. Repeat for several.", metavar="NAME[.MODEL]=NUMBER"),
    ] = None
    loss: Annotated[
        str, typer.Option(help="Loss function. Default: zero_one for classes, absolute for regression.")
    ] = ""
    default: Annotated[float | None, typer.Option(help="Value to return if no model answers by the deadline.")] = None
    confidence: Annotated[
        float | None, typer.Option(help="Return the default if the models agree less than this, from 0 to 1.")
    ] = None
    cache: Annotated[bool | None, typer.Option(help="Answer equal inputs from the prediction cache.")] = None
    contexts: Annotated[int | None, typer.Option(help="Maximum number of contexts kept in memory.")] = None


class FeedbackOptions(NamedTuple):
    """The true values, and the predictions or the input that they belong to."""

    truth: Annotated[list[str], typer.Option("--truth", "-t", help="True value of each row.", metavar="N[,N...]")]
    prediction: Annotated[
        list[str] | None,
        typer.Option("--prediction", "-p", help="prediction_id of an answer. Repeat, once for each --truth."),
    ] = None
    source: Annotated[
        str, typer.Option("--input", "-i", help="The input, without a prediction_id: .npy or .npz file, or JSON.")
    ] = ""
    context: Context = ""


@app.command("list")
def list_(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """List all applications.

    \b
    Examples:
      horologe application list
      horologe application list --json | jq '.[].application.name'
    """
    from horologe_cli.commands.serving.application_text import print_applications

    states: list[ApplicationState] = call_server(endpoint, keys, lambda client: client.applications())
    if json:
        print_json([_document(state) for state in states])
    else:
        print_applications(states)


@app.command()
def show(
    name: Name, context: Context = "", endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False
) -> None:
    """Show an application and the weights, agreement and losses of its models.

    \b
    Examples:
      horologe application show digits
      horologe application show digits --context user-1 --json
    """
    _print_state(call_server(endpoint, keys, lambda client: client.application(name, context)), json)


@app.command()
@expand_groups
def create(
    options: ApplicationOptions, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False
) -> None:
    """Create an application, or replace the application of this name.

    \b
    Examples:
      horologe application create digits -m digits-cnn -m digits-mlp --slo-ms 50 --default 0
      horologe application create canary -m digits-cnn/1 -m digits-cnn/2 --policy static \\
        --set weights.digits-cnn/1=95 --set weights.digits-cnn/2=5
      horologe application create --file digits.toml
    """
    from horologe_cli.commands.serving.application_text import missing_models, parse_policy_settings, read_application
    from horologe_common.status import InvalidInput

    try:
        fields = options._asdict() | {"settings": parse_policy_settings(options.settings or ())}
        application = read_application(fields.pop("file"), fields)
    except InvalidInput as error:
        fail(error.reason, ExitCode.USAGE)
    state, missing = call_server(
        endpoint, keys, lambda client: (client.declare(application), missing_models(client.models(), application))
    )
    _print_state(state, json)
    if missing:
        hint = f"not ready, and missing from answers until they are: {', '.join(missing)}"
        stderr_console().print(hint, markup=False, soft_wrap=True)


@app.command()
def delete(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Delete an application and everything learned from its feedback.

    \b
    Example:
      horologe application delete digits
    """
    call_server(endpoint, keys, lambda client: client.withdraw(name))
    print_result({"deleted": name}, f"deleted {name}", json)


@app.command()
def rollback(name: Name, endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Restore the previous revision of an application. Repeat the command to go back further.

    \b
    Example:
      horologe application rollback digits
    """
    _print_state(call_server(endpoint, keys, lambda client: client.rollback(name)), json)


@app.command()
def predict(
    name: Name,
    source: Input = "-",
    context: Context = "",
    slo_ms: Annotated[
        float | None,
        typer.Option("--slo-ms", help="Deadline in milliseconds. Default: the application's.", metavar="MS"),
    ] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Send one input to an application and print its answer.

    \b
    Examples:
      horologe application predict digits --input image.npy
      horologe application predict digits --input image.npy --context user-1 --json
    """
    from horologe_cli.commands.serving.application_text import answer_document, print_answer
    from horologe_cli.commands.serving.predict import read_input

    inputs = read_input(source)
    reply = call_server(endpoint, keys, lambda client: client.ask(name, inputs, context=context, slo_ms=slo_ms))
    if json:
        print_json(answer_document(reply))
    else:
        print_answer(reply)


@app.command()
@expand_groups
def feedback(
    name: Name,
    options: FeedbackOptions,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Send the true values for earlier predictions. They are stored when the command ends with exit code 0.

    \b
    Examples:
      horologe application feedback digits --prediction 1f0c... --truth 3
      horologe application feedback digits --input image.npy --truth 3 --context user-1
    """
    from horologe_cli.commands.serving.application_text import parse_truth
    from horologe_cli.commands.serving.predict import read_input
    from horologe_common.status import InvalidInput

    truth, prediction, source, context = options
    if bool(prediction) == bool(source) or (source and len(truth) != 1):
        fail("feedback: wanted --prediction for each --truth, or --input and one --truth", ExitCode.USAGE)
    try:
        truths = [parse_truth(text) for text in truth]
        ids = [bytes.fromhex(text) for text in prediction or ()]
    except (InvalidInput, ValueError) as error:
        fail(f"feedback: {error}", ExitCode.USAGE)
    inputs = [read_input(source)] if source else None
    call_server(
        endpoint, keys, lambda client: client.feedback(name, ids or None, truths, context=context, inputs=inputs)
    )
    print_result({"learned": len(truths)}, f"{name}: stored feedback on {len(truths)} prediction(s)", json)


def _print_state(state: ApplicationState, json: bool) -> None:
    from horologe_cli.commands.serving.application_text import print_application

    if json:
        print_json(_document(state))
    else:
        print_application(state)


def _document(state: ApplicationState) -> dict[str, Any]:
    """Return the same document as the HTTP API."""
    import msgspec

    from horologe_frontend.oip.applications_http import application_json

    document: dict[str, Any] = msgspec.to_builtins(application_json(state))
    return document
