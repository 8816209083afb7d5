"""`horologe up`: run the whole system on this machine until ^C."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.commands.models import model_document
from horologe_cli.output import ExitCode, Scheduler, Sets, Split, Workers, console, fail, print_json, stderr_console
from horologe_sim.report.tables import Cell, Table

if TYPE_CHECKING:
    from horologe_cli.local.local_system import LocalSystem, StopSignal
    from horologe_common.wire import Description, ModelState

SIGNATURE = ("inputs", "outputs", "weights_bytes")
"""Fields of a model that the summary leaves out."""
READY_TIMEOUT_S = 600.0
"""Workers measure every new model before they serve it, which takes minutes for large models."""


def up(
    models: Annotated[str, typer.Option(help="Folder of the model repository.", metavar="DIR")] = "",
    workers: Workers = 0,
    split: Split = False,
    http: Annotated[str, typer.Option(help="HTTP address. Port 0: any free port.", metavar="HOST:PORT")] = "",
    client: Annotated[
        list[str] | None,
        typer.Option(help="ZeroMQ endpoint for clients. Repeat for several endpoints.", metavar="ENDPOINT"),
    ] = None,
    metrics: Annotated[str, typer.Option(help="Address for Prometheus, or off.", metavar="HOST:PORT")] = "",
    scheduler: Scheduler = "",
    profiler: Annotated[
        bool, typer.Option(help="Run the profiler, which measures requests by application and length.")
    ] = True,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Permit addresses beyond this machine without keys.")
    ] = False,
    config: Annotated[str, typer.Option(help="TOML file with settings.", metavar="FILE")] = "",
    set_: Sets = None,
    drain: Annotated[
        float, typer.Option(help="Timeout in seconds for requests in flight, after ^C.", metavar="S")
    ] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON line when the system is ready.")] = False,
) -> None:
    """Start every service on this machine. ^C drains and stops them, a second ^C kills them.

    \b
    Examples:
      horologe up
      horologe up --models /srv/models --workers 4
      horologe up --http 0.0.0.0:8000 --set http.keys_file=keys/http/clients.txt
      horologe up --split --scheduler edf --set log.level=debug
    """
    from horologe_cli.local.local_system import LocalSystem, StopSignal
    from horologe_cli.local.topology import SystemOptions
    from horologe_common.service.service import protect_memory
    from horologe_common.status import HorologeError

    protect_memory()
    options = SystemOptions(
        models, workers, split, http, tuple(client or ()), metrics, scheduler, config, tuple(set_ or ()), profiler,
        insecure,
    )  # fmt: skip
    stop = StopSignal().install_handlers()
    try:
        system = LocalSystem(options, _forward_line)
    except HorologeError as error:
        fail(error.reason, ExitCode.USAGE)
    with system:
        try:
            _serve(system, stop, drain, json)
        except HorologeError as error:
            fail(error.reason)


def _serve(system: LocalSystem, stop: StopSignal, drain_s: float, json: bool) -> None:
    ready = system.wait_ready(READY_TIMEOUT_S, stop)
    if ready:
        (print_json if json else _print_summary)(_summary(system, *ready))
        stop.wait()
    stderr_console().print("horologe: draining; press ^C again to kill all processes")
    if not system.supervisor.drain(drain_s):
        stderr_console().print(f"horologe: killed the processes that did not stop within {drain_s:g} s")


def _summary(system: LocalSystem, description: Description, models: list[ModelState]) -> dict[str, Any]:
    """Return the addresses, processes, devices and models of the system."""
    topology = system.topology
    return {
        "http": topology.http,
        "clients": list(topology.clients),
        "metrics": topology.metrics,
        "scheduler": description.scheduler,
        "processes": system.supervisor.pids(),
        "devices": [
            {"worker": share.worker, "share": share.share, "device": share.device, "pages": share.pages_total}
            for share in description.shares
        ],
        "models": [
            {name: value for name, value in model_document(state).items() if name not in SIGNATURE} for state in models
        ],
    }


def _print_summary(summary: dict[str, Any]) -> None:
    devices = ", ".join(f"{device['worker'].split('#')[0]} {device['device']}" for device in summary["devices"])
    rows = [
        ("HTTP", f"{summary['http']}  (Open Inference Protocol v2)"),
        ("SDK", "  ".join(summary["clients"])),
        ("metrics", "  ".join(summary["metrics"].values()) or "off"),
        ("devices", devices),
        ("scheduler", summary["scheduler"]),
    ]
    for state in summary["models"]:
        note = "" if state["state"] == "READY" else f"  {state['state']}: {state['reason']}"
        rows.append(("model", f"{state['name']}/{state['version']}  {state['runtime']}{note}"))
    table = Table(("", ""), left=2)
    for label, text in rows:
        table.add_row(Cell(label, "bold"), text)
    out = console()
    table.print(out)
    out.print("ready; press ^C to stop", style="green")


def _forward_line(process: str, line: str) -> None:
    """Write a log line of a child process to standard error, after the name of the process."""
    sys.stderr.write(f"{process:<10} | {line}\n")
