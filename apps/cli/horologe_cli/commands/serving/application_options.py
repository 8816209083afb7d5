"""Options of `horologe application`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

Context = Annotated[
    str, typer.Option("--context", "-c", help="User or session with a selection state of its own.", metavar="TEXT")
]


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
