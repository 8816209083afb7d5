"""`horologe predict`: one request from the command line."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    ExitCode,
    Json,
    Keys,
    console,
    fail,
    fail_with,
    open_client,
    print_json,
)

if TYPE_CHECKING:
    from horologe import Reply

SHOWN = 8
"""Numbers of an output that are printed for people."""


def predict(
    model: Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL")],
    source: Annotated[
        str, typer.Option("--input", "-i", help="A .npy or .npz file, JSON text, or - for JSON on standard input.")
    ] = "-",
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="Deadline in milliseconds.", metavar="MS")] = None,
    version: Annotated[str, typer.Option("--version", help="Default: the latest that is ready.", metavar="V")] = "",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Send one input to a model and print what it answers. JSON is a (nested) list, or lists by input name.

    \b
    Examples:
      horologe predict digits-mlp --input image.npy
      horologe predict adder --input '{"a": [[1, 2]], "b": [[3, 4]]}' --slo-ms 20
      python make_input.py | horologe predict digits-linear --json
    """
    inputs = read_input(source)
    with open_client(endpoint, keys) as client:
        try:
            reply = client.predict_full(model, inputs, slo_ms=slo_ms, version=version)
        except Exception as error:
            fail_with(error, endpoint)
    if json:
        print_json(_document(reply))
    else:
        _print(reply)


def read_input(source: str) -> Any:
    """An array, or arrays by name. Ends the command when there is none in `source`."""
    import numpy as np

    if source.endswith((".npy", ".npz")):
        try:
            loaded = np.load(source, allow_pickle=False)
            return dict(loaded) if source.endswith(".npz") else loaded
        except (OSError, ValueError) as error:
            fail(f"--input {source}: {error}", ExitCode.USAGE)
    if source == "-" and sys.stdin.isatty():
        fail("--input: got nothing, wanted a .npy file, JSON, or - with JSON on standard input", ExitCode.USAGE)
    if not source.lstrip().startswith(("[", "{", "-")) and Path(source).is_file():
        source = Path(source).read_text(errors="replace")
    try:
        return jsonlib.loads(sys.stdin.read() if source == "-" else source)
    except ValueError as error:
        fail(f"--input: not JSON: {error}", ExitCode.USAGE)


def _document(reply: Reply) -> dict[str, Any]:
    return {
        "model": reply.model,
        "version": reply.version,
        "outputs": reply.outputs,
        "queue_ms": reply.queue_ns / 1e6,
        "exec_ms": reply.exec_ns / 1e6,
        "batch_size": reply.batch_size,
        "cached": reply.cached,
    }


def _print(reply: Reply) -> None:
    import numpy as np

    out = console()
    with np.printoptions(precision=4, suppress=True, threshold=SHOWN * SHOWN, edgeitems=SHOWN // 2):
        for name, value in reply.outputs.items():
            out.print(f"{name} {value.dtype}{list(value.shape)}", markup=False, style="bold")
            out.print(str(value), markup=False)
    how = "from the cache" if reply.cached else f"batch of {reply.batch_size}"
    out.print(
        f"{reply.model}/{reply.version}: queue {reply.queue_ns / 1e6:.2f} ms, exec {reply.exec_ns / 1e6:.2f} ms, {how}"
    )
