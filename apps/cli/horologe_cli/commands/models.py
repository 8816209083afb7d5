"""`horologe models`, `load`, `unload`, `status`: what is served, and the state of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    Json,
    Keys,
    console,
    fail_with,
    open_client,
    print_json,
)

if TYPE_CHECKING:
    from horologe_common.models import TensorSpec
    from horologe_common.wire import Description, ModelState

Model = Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL")]
Version = Annotated[str, typer.Option("--version", help="One version; default: all.", metavar="V")]


def models(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """List the models, their signatures and whether they can be asked now.

    \b
    Examples:
      horologe models
      horologe models --json | jq '.[].name'
    """
    with open_client(endpoint, keys) as client:
        try:
            states = client.models()
        except Exception as error:
            fail_with(error, endpoint)
    _show(states, json)


def load(
    model: Model, version: Version = "", endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False
) -> None:
    """Read a model from the repository (again) and serve it.

    \b
    Examples:
      horologe load digits-cnn
      horologe load digits-cnn --version 2
    """
    _admit(model, version, True, endpoint, keys, json)


def unload(
    model: Model, version: Version = "", endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False
) -> None:
    """Serve a model no more; requests for it are answered UNKNOWN_MODEL until it is loaded.

    \b
    Example:
      horologe unload digits-mlp
    """
    _admit(model, version, False, endpoint, keys, json)


def status(endpoint: Endpoint = DEFAULT_ENDPOINT, keys: Keys = "", json: Json = False) -> None:
    """The cluster as its controller sees it: devices, memory, resident models, pending work.

    \b
    Examples:
      horologe status
      horologe status --json --endpoint tcp://10.0.0.5:8003 --keys /etc/horologe/keys
    """
    with open_client(endpoint, keys) as client:
        try:
            description = client.describe()
        except Exception as error:
            fail_with(error, endpoint)
    if json:
        print_json(_described(description))
    else:
        _print_status(description)


def _admit(model: str, version: str, admitted: bool, endpoint: str, keys: str, json: bool) -> None:
    with open_client(endpoint, keys) as client:
        try:
            states = client.admit(model, version, admitted)
        except Exception as error:
            fail_with(error, endpoint)
    _show(states, json)


def _show(states: list[ModelState], json: bool) -> None:
    if json:
        print_json([_state(state) for state in states])
        return
    from rich.table import Table

    table = Table("model", "version", "state", "runtime", "inputs", "outputs", "batches", "SLO", box=None)
    for state in states:
        spec = state.spec
        table.add_row(
            spec.name,
            spec.version,
            state.state,
            spec.runtime,
            _signature(spec.inputs),
            _signature(spec.outputs),
            " ".join(map(str, spec.batch_sizes)),
            f"{spec.slo_ns / 1e6:g} ms" if spec.slo_ns else "-",
        )
        if state.reason:
            table.add_row("", "", state.reason)
    console().print(table if states else "no models")


def _signature(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{one.name} {one.datatype}{list(one.shape)}" for one in tensors).replace("[", r"\[")


def _state(state: ModelState) -> dict[str, Any]:
    spec = state.spec
    tensors = [
        [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in side]
        for side in (spec.inputs, spec.outputs)
    ]
    return {
        "name": spec.name,
        "version": spec.version,
        "state": state.state,
        "reason": state.reason,
        "runtime": spec.runtime,
        "inputs": tensors[0],
        "outputs": tensors[1],
        "batch_sizes": list(spec.batch_sizes),
        "slo_ms": spec.slo_ns / 1e6,
        "weights_bytes": spec.weights_bytes,
    }


def _described(description: Description) -> dict[str, Any]:
    shares = [
        {name: getattr(share, name) for name in share.__struct_fields__ if name != "free_at_ns"}
        | {"free_in_ms": share.free_at_ns / 1e6}
        for share in description.shares
    ]
    return {"scheduler": description.scheduler, "requests_pending": description.requests_pending, "shares": shares}


def _print_status(description: Description) -> None:
    from rich.table import Table

    table = Table("worker", "share", "device", "pages free", "pending", "busy for", "resident", box=None)
    for share in description.shares:
        table.add_row(
            share.worker,
            str(share.share),
            share.device,
            f"{share.pages_free}/{share.pages_total}",
            str(share.actions_pending),
            f"{max(0, share.free_at_ns) / 1e6:.1f} ms",
            ", ".join(share.resident) or "-",
        )
    out = console()
    out.print(f"scheduler {description.scheduler}, {description.requests_pending} requests pending")
    out.print(table if description.shares else "no worker is connected")
