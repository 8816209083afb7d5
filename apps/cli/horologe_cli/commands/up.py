"""`horologe up`: the whole system on this machine, until ^C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import ExitCode, console, fail, print_json, stderr_console

if TYPE_CHECKING:
    from horologe_cli.local.local_system import LocalSystem
    from horologe_cli.local.stop_signal import StopSignal
    from horologe_common.wire import Description, ModelState

READY_S = 600.0
"""New models are measured before they are served."""


def up(
    models: Annotated[str, typer.Option(help="Model repository.", metavar="DIR")] = "",
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: one core less than there are.")] = 0,
    split: Annotated[bool, typer.Option("--split", help="Frontend, selector, controller: a process each.")] = False,
    http: Annotated[str, typer.Option(help="Where HTTP is served; port 0: a free one.", metavar="HOST:PORT")] = "",
    client: Annotated[
        list[str] | None, typer.Option(help="Where ZeroMQ clients connect; may be repeated.", metavar="ENDPOINT")
    ] = None,
    metrics: Annotated[str, typer.Option(help="Where Prometheus scrapes, or off.", metavar="HOST:PORT")] = "",
    scheduler: Annotated[
        str, typer.Option(help="horologe, clockwork, orloj, edf, ...; see docs/settings.md.", metavar="NAME")
    ] = "",
    profiler: Annotated[bool, typer.Option(help="Learn how long requests take, by application and length.")] = True,
    config: Annotated[str, typer.Option(help="Settings, one table per section.", metavar="FILE")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting; may be repeated.", metavar="SECTION.FIELD=VALUE")
    ] = None,
    drain: Annotated[float, typer.Option(help="Seconds that ^C gives requests to finish.", metavar="S")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="When ready, one JSON line on standard output.")] = False,
) -> None:
    """Start every service on this machine and stay up; ^C drains and ends them, a second ^C kills.

    \b
    Examples:
      horologe up
      horologe up --models /srv/models --workers 4
      horologe up --http 0.0.0.0:8000 --set http.keys_file=keys.txt
      horologe up --split --scheduler edf --set log.level=debug
    """
    from horologe_cli.local.local_system import LocalSystem
    from horologe_cli.local.stop_signal import StopSignal
    from horologe_cli.local.topology import SystemOptions
    from horologe_common.status import HorologeError

    options = SystemOptions(
        models, workers, split, http, tuple(client or ()), metrics, scheduler, config, tuple(set_ or ()), profiler
    )
    stop = StopSignal().install_handlers()
    try:
        house = LocalSystem(options, log_line)
    except HorologeError as error:
        fail(error.reason, ExitCode.USAGE)
    with house:
        try:
            _serve(house, stop, drain, json)
        except HorologeError as error:
            fail(error.reason)


def _serve(house: LocalSystem, stop: StopSignal, drain_s: float, json: bool) -> None:
    ready = house.wait_ready(READY_S, stop)
    if ready:
        (print_json if json else _print_table)(facts(house, *ready))
        stop.wait()
    stderr_console().print("horologe: draining; ^C again to end at once")
    if not house.supervisor.drain(drain_s):
        stderr_console().print(f"horologe: not everything had ended after {drain_s:g} s")


def facts(house: LocalSystem, description: Description, models: list[ModelState]) -> dict[str, Any]:
    """What someone who wants to use the system must know."""
    arrangement = house.topology
    return {
        "http": arrangement.http,
        "clients": list(arrangement.clients),
        "metrics": arrangement.metrics,
        "scheduler": description.scheduler,
        "processes": house.supervisor.pids(),
        "devices": [
            {"worker": share.worker, "share": share.share, "device": share.device, "pages": share.pages_total}
            for share in description.shares
        ],
        "models": [
            {
                "name": state.spec.name,
                "version": state.spec.version,
                "state": state.state,
                "reason": state.reason,
                "runtime": state.spec.runtime,
                "batch_sizes": list(state.spec.batch_sizes),
                "slo_ms": state.spec.slo_ns / 1e6,
            }
            for state in models
        ],
    }


def _print_table(found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("HTTP", f"{found['http']}  (Open Inference Protocol v2)")
    table.add_row("SDK", "  ".join(found["clients"]))
    table.add_row("metrics", "  ".join(found["metrics"].values()) or "off")
    table.add_row("devices", ", ".join(f"{one['worker'].split('#')[0]} {one['device']}" for one in found["devices"]))
    table.add_row("scheduler", found["scheduler"])
    for state in found["models"]:
        note = "" if state["state"] == "READY" else f"  {state['state']}: {state['reason']}"
        table.add_row("model", f"{state['name']}/{state['version']}  {state['runtime']}{note}")
    out = console()
    out.print(table)
    out.print("ready; ^C ends it", style="green")


def log_line(process: str, line: str) -> None:
    """Forward a line of a child, saying whose it is."""
    import sys

    sys.stderr.write(f"{process:<10} | {line}\n")
