"""`horologe application predict` and `feedback`: an application asked, and told what turned out to be true."""

from __future__ import annotations

from typing import Annotated

import typer

from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    ExitCode,
    Json,
    Keys,
    call_server,
    fail,
    print_json,
    print_result,
)

Name = Annotated[str, typer.Argument(help="Name of the application.", metavar="NAME")]
Context = Annotated[
    str, typer.Option("--context", "-c", help="User, session or whatever it learns for separately.", metavar="TEXT")
]


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
    from horologe_cli.commands.application_output import answer_document, print_answer
    from horologe_cli.commands.predict import read_input

    inputs = read_input(source)
    reply = call_server(endpoint, keys, lambda client: client.ask(name, inputs, context=context, slo_ms=slo_ms))
    if json:
        print_json(answer_document(reply))
    else:
        print_answer(reply)


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
    from horologe_cli.commands.declaration import parse_truth
    from horologe_cli.commands.predict import read_input
    from horologe_common.status import InvalidInput

    if bool(prediction) == bool(source) or (source and len(truth) != 1):
        fail("feedback: wanted --prediction for each --truth, or --input and one --truth", ExitCode.USAGE)
    try:
        truths = [parse_truth(one) for one in truth]
        ids = [bytes.fromhex(one) for one in prediction or ()]
    except (InvalidInput, ValueError) as error:
        fail(f"feedback: {error}", ExitCode.USAGE)
    inputs = [read_input(source)] if source else None
    call_server(
        endpoint, keys, lambda client: client.feedback(name, ids or None, truths, context=context, inputs=inputs)
    )
    print_result({"learned": len(truths)}, f"{name} has learned from {len(truths)}", json)
