"""`horologe models`, `load`, `unload` and `status`: the models and the state of the cluster."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from horologe_cli.output import DEFAULT_ENDPOINT, Endpoint, Json, Keys, call_server, console, fail, print_json
from horologe_common.wanted_shares import WHOLE_PERCENT
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from horologe import Client
    from horologe_common.models import TensorSpec
    from horologe_common.wire import Description, ModelState

Model = Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL")]
Version = Annotated[str, typer.Option("--version", help="Version of the model. Default: all versions.", metavar="V")]
SENT_S = 1.0
"""Without waiting: seconds in which the server may still report an error, such as an unknown model."""
REPORT_S = 5.0
"""Interval between two lines of progress."""


def models(
    name: Annotated[str, typer.Argument(help="Show only this model.", metavar="[MODEL]")] = "",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """List the models with their signatures, states, and the part of the requests that each version gets.

    \b
    Examples:
      horologe models
      horologe models digits-cnn
      horologe models --json | jq '.[].name'
    """
    states = call_server(endpoint, keys, lambda client: client.models(name or None))
    if name and not states:
        fail(f"UNKNOWN_MODEL: model: got {name!r}, which is not in the repository")
    print_models(states, json)


def load(
    model: Model,
    version: Version = "",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until every worker has loaded and measured the model.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0.1, help="With --wait: timeout in seconds.", metavar="S")] = 600.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Read a model from the repository and serve it. Read it again if it is served already.

    \b
    Examples:
      horologe load digits-cnn
      horologe load digits-cnn --version 2
      horologe load large-model --timeout 1800
      horologe load large-model --no-wait
    """
    limit_s = timeout if wait else 0.0
    print_models(call_server(endpoint, keys, lambda client: _load_model(client, model, version, limit_s)), json)


def _load_model(client: Client, model: str, version: str, timeout_s: float) -> list[ModelState]:
    """Load the model and return its states. Write progress to standard error.

    With a `timeout_s` of 0, return the present states while the model is loading. Raises `HorologeError`. Ends the
    command if the model is still loading after `timeout_s` seconds.
    """
    from horologe_common.status import Lost

    before = client.models(model)  # raises if no server answers
    begin_s, finished = time.monotonic(), threading.Event()
    progress = threading.Thread(target=_report_loading, args=(client, model, finished), daemon=True)
    progress.start()
    try:
        return client.admit(model, version, True, timeout=timeout_s or SENT_S)
    except Lost:
        if time.monotonic() - begin_s < (timeout_s or SENT_S):
            raise
        hint = f"`horologe models {model}` shows its state"
        if timeout_s:
            fail(f"{model} is still loading after {timeout_s:g} s; {hint}")
        sys.stderr.write(f"horologe: {model} is loading; {hint}\n")
        return before
    finally:
        finished.set()


def _report_loading(client: Client, model: str, finished: threading.Event) -> None:
    """Write a line every `REPORT_S` seconds until `finished` is set."""
    from horologe_common.status import HorologeError

    begin_s = time.monotonic()
    while not finished.wait(REPORT_S):
        try:
            states = ", ".join(f"{state.spec.version} {state.state}" for state in client.models(model))
        except HorologeError as error:
            states = str(error)
        elapsed_s = time.monotonic() - begin_s
        sys.stderr.write(f"horologe: loading {model} for {elapsed_s:.0f} s; versions: {states or 'none yet'}\n")
        sys.stderr.flush()


def unload(
    model: Model, version: Version = "", endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False
) -> None:
    """Stop serving a model. Requests for it fail with UNKNOWN_MODEL until it is loaded again.

    \b
    Example:
      horologe unload digits-mlp
    """
    print_models(call_server(endpoint, keys, lambda client: client.admit(model, version, False)), json)


def status(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """Show the state of the cluster: devices, free memory, resident models and pending actions.

    \b
    Examples:
      horologe status
      horologe status --json --endpoint tcp://10.0.0.5:8003 --keys /etc/horologe/keys
    """
    description = call_server(endpoint, keys, lambda client: client.describe())
    if json:
        print_json(_status_document(description))
    else:
        _print_status(description)


def print_models(states: list[ModelState], json: bool) -> None:
    """Print the states of models, with the part of the requests by name that each version gets."""
    if json:
        print_json([model_document(state) for state in states])
        return
    if not states:
        console().print("no models")
        return
    table = Table(("model", "version", "traffic", "state", "runtime", "inputs", "outputs", "batches", "SLO"), left=9)
    for state in states:
        spec = state.spec
        table.add_row(
            spec.name,
            spec.version,
            f"{state.traffic:.4g}" if state.traffic else "-",
            state.state,
            spec.runtime,
            _signature(spec.inputs),
            _signature(spec.outputs),
            "stream" if spec.streams else " ".join(map(str, spec.batch_sizes)),
            f"{spec.slo_ns / 1e6:g} ms" if spec.slo_ns else "-",
        )
    out = console()
    table.print(out)
    for state in states:
        if state.reason:
            out.print(f"{state.spec.key}: {state.state}: {state.reason}", markup=False, soft_wrap=True)
        for note in state.spec.notes:
            out.print(f"{state.spec.key}: note: {note}", markup=False, soft_wrap=True)


def _signature(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{tensor.name} {tensor.datatype}{list(tensor.shape)}" for tensor in tensors)


def model_document(state: ModelState) -> dict[str, Any]:
    """Return the document of a model for --json."""
    spec = state.spec
    inputs, outputs = (
        [{"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)} for tensor in tensors]
        for tensors in (spec.inputs, spec.outputs)
    )
    return {
        "name": spec.name,
        "version": spec.version,
        "state": state.state,
        "reason": state.reason,
        "traffic": state.traffic,
        "runtime": spec.runtime,
        "inputs": inputs,
        "outputs": outputs,
        "batch_sizes": list(spec.batch_sizes),
        "slo_ms": spec.slo_ns / 1e6,
        "weights_bytes": spec.weights_bytes,
        "content_hash": spec.content_hash,
        "batched": spec.batched,
        "notes": list(spec.notes),
    }


def _status_document(description: Description) -> dict[str, Any]:
    shares = [
        {name: getattr(share, name) for name in share.__struct_fields__ if name != "free_at_ns"}
        | {"free_in_ms": share.free_at_ns / 1e6, "device_info": msgspec.structs.asdict(share.device_info)}
        for share in description.shares
    ]
    return {
        "scheduler": description.scheduler,
        "worst_served": description.worst_served,
        "requests_pending": description.requests_pending,
        "shares": shares,
    }


def _print_status(description: Description) -> None:
    out = console()
    out.print(f"scheduler {description.scheduler}, {description.requests_pending} requests pending")
    if description.worst_served:
        out.print(f"worst served: {description.worst_served}", markup=False, soft_wrap=True)
    if not description.shares:
        out.print("no worker is connected")
        return
    table = Table(("worker", "share", "device", "pages free", "pending", "busy for", "resident", "planned"), left=8)
    for share in description.shares:
        table.add_row(
            share.worker,
            share.share,
            share.device if share.percent == WHOLE_PERCENT else f"{share.percent:g}% of {share.device_info.id}",
            f"{share.pages_free:g}/{share.pages_total}",
            share.actions_pending,
            f"{max(0, share.free_at_ns) / 1e6:.1f} ms",
            ", ".join(share.resident) or "-",
            f"{share.hardware}: {', '.join(share.kept)}" if share.kept else "-",
        )
    table.print(out)
