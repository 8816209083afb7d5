"""`horologe demo`: starts the system, shows what it does, ends it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import ExitCode, Json, console, fail, print_json, stderr_console

if TYPE_CHECKING:
    from horologe_cli.demo.demo_run import DemoOptions, DemoResult
    from horologe_cli.local.local_system import LocalSystem

READY_S = 120.0
DRAIN_S = 5.0
LOG = "demo.log"
START_SHARE = 0.1
"""Of the progress bar."""


def demo(
    models: Annotated[str, typer.Option(help="Model repository with the digits models.", metavar="DIR")] = "",
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: one core less than there are.")] = 0,
    split: Annotated[bool, typer.Option("--split", help="Frontend, selector, controller: a process each.")] = False,
    scheduler: Annotated[
        str, typer.Option(help="horologe, clockwork, orloj, edf, ...; see docs/settings.md.", metavar="NAME")
    ] = "",
    slo_ms: Annotated[float, typer.Option("--slo-ms", min=1.0, help="Deadline of each request.", metavar="MS")] = 100.0,
    step: Annotated[float, typer.Option(min=0.2, help="Seconds at each rate.", metavar="S")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrival times.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting; may be repeated.", metavar="SECTION.FIELD=VALUE")
    ] = None,
    json: Json = False,
) -> None:
    """Serve the digits models for about a minute: accuracy, capacity under a deadline, twice that capacity.

    \b
    Examples:
      horologe demo
      horologe demo --split --scheduler edf
      horologe demo --json | jq .peak.rate
    Exit code 0 only if everything it promises held.
    """
    from horologe_cli.demo.demo_run import DemoOptions
    from horologe_cli.local.local_services import default_repository
    from horologe_cli.local.local_system import LocalSystem
    from horologe_cli.local.topology import SystemOptions
    from horologe_common.status import HorologeError

    folder = models or default_repository()
    options = SystemOptions(
        folder, workers, split, "127.0.0.1:0", ("tcp://127.0.0.1:0",), "127.0.0.1:0", scheduler, sets=tuple(set_ or ())
    )
    lines: list[str] = []
    try:
        house = LocalSystem(options, lambda process, line: lines.append(f"{process:<10} | {line}"))
    except HorologeError as error:
        fail(error.reason, ExitCode.USAGE)
    started = time.monotonic()
    try:
        found = _held(house, DemoOptions(slo_ms, step, seed), json)
    except (HorologeError, OSError, ValueError) as error:
        _keep_log(lines)
        fail(str(error))
    except ImportError as error:
        fail(f"{error}; the demo needs `pip install horologe[demo]`", ExitCode.USAGE)
    _report(found, slo_ms, time.monotonic() - started, json)
    if not found.passed:
        _keep_log(lines)
        raise SystemExit(int(ExitCode.FAILED))


def _held(house: LocalSystem, wishes: DemoOptions, quiet: bool) -> DemoResult:
    """Run the demo inside `house`, with a progress bar unless `quiet`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=stderr_console(), transient=True, disable=quiet) as progress, house:
        task = progress.add_task("starting the services", total=1.0)

        def told(phase: str, done: float) -> None:
            progress.update(task, description=phase, completed=START_SHARE + (1 - START_SHARE) * done)

        ready = house.wait_ready(READY_S)
        assert ready is not None
        found = _measure(house, wishes, ready[1], told)
        told("draining", 1.0)
        house.supervisor.drain(DRAIN_S)
    return found


def _measure(house: LocalSystem, wishes: DemoOptions, states: Any, told: Any) -> DemoResult:
    import uvloop

    from horologe import AsyncClient
    from horologe_cli.demo.demo_run import DemoRun

    async def run() -> DemoResult:
        async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
            return await DemoRun(wishes, house.topology.http, told).run(client, states)

    return uvloop.run(run())


def _report(found: DemoResult, slo_ms: float, seconds: float, json: bool) -> None:
    if json:
        import msgspec

        print_json({**msgspec.to_builtins(found), "passed": found.passed, "seconds": round(seconds, 1)})
        return
    from horologe_cli.demo.demo_tables import show

    out = console()
    show(out, found, slo_ms)
    verdict = "[green]everything promised held" if found.passed else "[red]a promise was broken"
    out.print(f"{verdict}[/], in {seconds:.0f} s")


def _keep_log(lines: list[str]) -> None:
    """What the services said, for whoever wants to know why."""
    folder = Path(".cache")
    folder.mkdir(exist_ok=True)
    (folder / LOG).write_text("\n".join(lines) + "\n")
    stderr_console().print(f"what the services said is in {folder / LOG}", style="dim")
