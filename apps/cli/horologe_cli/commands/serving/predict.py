"""`horologe predict`: send one request to a model."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli import output

if TYPE_CHECKING:
    from horologe import Reply

SHOWN_NUMBERS = 8
"""Numbers of an output row that are printed without --json."""


def predict(
    model: Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL")],
    source: output.Input = "-",
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="Deadline in milliseconds.", metavar="MS")] = None,
    version: Annotated[
        str, typer.Option("--version", help="Version of the model. Default: the latest that is ready.", metavar="V")
    ] = "",
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT,
    keys: output.Keys = "",
    json: output.Json = False,
) -> None:
    """Send one input to a model and print its outputs. JSON input is a (nested) list, or an object of lists by name.

    \b
    Examples:
      horologe predict digits-mlp --input image.npy
      horologe predict adder --input '{"a": [[1, 2]], "b": [[3, 4]]}' --slo-ms 20
      python make_input.py | horologe predict digits-linear --json
    """
    inputs = read_input(source)
    reply = output.call_server(
        endpoint, keys, lambda client: client.predict_full(model, inputs, slo_ms=slo_ms, version=version)
    )
    if json:
        output.print_json(_reply_document(reply))
    else:
        _print_reply(reply)


def read_input(source: str) -> Any:
    """Return an array, or arrays by name. End the command if `source` cannot be read."""
    import numpy as np

    from horologe_common.status import describe_error

    if source.endswith((".npy", ".npz")):
        try:
            loaded = np.load(source, allow_pickle=False)
            return dict(loaded) if source.endswith(".npz") else loaded
        except (OSError, ValueError) as error:
            output.fail(f"--input {source}: {describe_error(error)}", output.ExitCode.USAGE)
    if source == "-" and sys.stdin.isatty():
        output.fail(
            "--input: got nothing, wanted a .npy file, JSON, or - with JSON on standard input", output.ExitCode.USAGE
        )
    try:
        if not source.lstrip().startswith(("[", "{", "-")) and Path(source).is_file():
            return jsonlib.loads(Path(source).read_bytes())
        return jsonlib.loads(sys.stdin.buffer.read() if source == "-" else source)
    except ValueError as error:
        output.fail(f"--input: not JSON: {error}", output.ExitCode.USAGE)


def _reply_document(reply: Reply) -> dict[str, Any]:
    return {
        "model": reply.model,
        "version": reply.version,
        "outputs": reply.outputs,
        "queue_ms": reply.queue_ns / 1e6,
        "exec_ms": reply.exec_ns / 1e6,
        "batch_size": reply.batch_size,
        "cached": reply.cached,
    }


def _print_reply(reply: Reply) -> None:
    import numpy as np

    out = output.console()
    with np.printoptions(
        precision=4, suppress=True, threshold=SHOWN_NUMBERS * SHOWN_NUMBERS, edgeitems=SHOWN_NUMBERS // 2
    ):
        for name, value in reply.outputs.items():
            strings = value.dtype.kind == "O"
            out.print(f"{name} {'BYTES' if strings else value.dtype}{list(value.shape)}", markup=False, style="bold")
            shown = np.frompyfunc(output.show_bytes, 1, 1)(value) if strings else value
            out.print(str(shown), markup=False, soft_wrap=True)
    origin = "from the cache" if reply.cached else f"batch of {reply.batch_size}"
    times = f"queue {reply.queue_ns / 1e6:.2f} ms, exec {reply.exec_ns / 1e6:.2f} ms"
    out.print(f"{reply.model}/{reply.version}: {times}, {origin}", markup=False, soft_wrap=True)
