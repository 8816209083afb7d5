"""`horologe demo`: start the system, measure it, and stop it; or measure a system that runs."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli.commands.serving.up import ProcessOptions
from horologe_cli.demo.demo_options import DemoLoad, RunningSystem
from horologe_cli.option_groups import expand_groups
from horologe_cli.output import (
    ExitCode,
    Json,
    console,
    fail,
    fail_with,
    is_silent,
    print_json,
    stderr_console,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from horologe_cli.demo.demo_run import DemoResult, DemoRun
    from horologe_cli.local.local_system import LocalSystem
    from horologe_cli.local.topology import SystemOptions, Topology
    from horologe_common.wire import ModelState

    OnProgress = Callable[[str, float], None]

READY_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 5.0
CACHES = ("worker.cache", "profiler.state", "selector.state", "controller.state")
"""Settings of folders in which the services keep what they have measured and learned."""
START_SHARE = 0.1
"""Share of the progress bar for starting the services."""

CompareProfiler = Annotated[
    bool,
    typer.Option(
        "--compare-profiler",
        help="Then compare the throughput of each model with that of the same system without a profiler, for up to "
        "60 s. Not with --endpoint.",
    ),
]


@expand_groups
def demo(
    *,
    models: Annotated[str, typer.Option(help="Model repository with the digits models.", metavar="DIR")] = "",
    processes: ProcessOptions,
    load: DemoLoad,
    running: RunningSystem,
    compare_profiler: CompareProfiler = False,
    json: Json = False,
) -> None:
    """Serve the digits models for about 45 s. Sends mixed traffic, then measures accuracy, capacity and overload.

    \b
    Examples:
      horologe demo
      horologe demo --split --scheduler edf
      horologe demo --json | jq .peak.rate
      horologe demo --learn 20 --compare-profiler
      horologe demo --endpoint tcp://127.0.0.1:8003 --keys ./keys
    The exit code is 0 only if every criterion is met.
    """
    from horologe_cli.local.topology import SystemOptions, default_repository

    if running.endpoint:
        if compare_profiler:
            fail("--compare-profiler: got it with --endpoint, wanted one of them", ExitCode.USAGE)
        _measure_running(running, load, json)
        return
    addresses = "127.0.0.1:0", ("tcp://127.0.0.1:0",), "127.0.0.1:0"
    with tempfile.TemporaryDirectory(prefix="horologe-demo-") as folder:
        sets = (*_cache_settings(folder, os.environ), *(processes.sets or ()))
        models = models or default_repository()
        chosen = {**processes._asdict(), "sets": sets}
        http, clients, metrics = addresses
        options = SystemOptions(models, http=http, clients=clients, metrics=metrics, profiler=True, **chosen)
        _run_demo(options, load, json, compare_profiler)


def _cache_settings(folder: str, env: Mapping[str, str]) -> list[str]:
    """Return settings that keep the caches in `folder`, except those that the environment sets."""
    names = {path: f"HOROLOGE_{path.replace('.', '_').upper()}" for path in CACHES}
    return [f"{path}={folder}" for path, name in names.items() if name not in env]


def _run_demo(options: SystemOptions, load: DemoLoad, json: bool, compare: bool) -> None:
    from horologe_cli.local.local_system import LocalSystem
    from horologe_common.status import HorologeError

    lines: list[str] = []
    try:
        system = LocalSystem(options, lambda process, line: lines.append(f"{process:<10} | {line}"))
    except HorologeError as error:
        fail(error.reason, ExitCode.USAGE)
    start_s = time.monotonic()
    try:
        result = _run(system, options if compare else None, load, is_silent(json))
    except (HorologeError, OSError, ValueError) as error:
        _write_log(lines)
        fail(str(error))
    except ImportError as error:
        fail(f"{error}; the demo needs `pip install horologe[server]`", ExitCode.USAGE)
    _report(result, load.slo_ms, time.monotonic() - start_s, RunningSystem(), json)
    if not result.passed:
        _write_log(lines)
        raise SystemExit(int(ExitCode.FAILED))


def _measure_running(system: RunningSystem, load: DemoLoad, json: bool) -> None:
    """Measure a running system, and print the result. Nothing is started."""
    import uvloop

    from horologe_cli.demo.demo_run import measure_running
    from horologe_common.status import HorologeError

    start_s = time.monotonic()
    try:
        with _progress(is_silent(json)) as on_progress:
            result = uvloop.run(measure_running(system, load, on_progress))
    except HorologeError as error:
        fail_with(error, system.endpoint)
    except (OSError, ValueError) as error:
        fail(str(error))
    _report(result, load.slo_ms, time.monotonic() - start_s, system, json)
    if not result.passed:
        raise SystemExit(int(ExitCode.FAILED))


@contextmanager
def _progress(quiet: bool) -> Iterator[OnProgress]:
    """Show a progress bar unless `quiet`. Yields a function of the phase and the share that is finished."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    texts = TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(BarColumn(), *texts, console=stderr_console(), transient=True, disable=quiet) as progress:
        task = progress.add_task("starting the services", total=1.0)

        def on_progress(phase: str, done: float) -> None:
            progress.update(task, description=phase, completed=START_SHARE + (1 - START_SHARE) * done)

        yield on_progress


def _run(system: LocalSystem, compared: SystemOptions | None, load: DemoLoad, quiet: bool) -> DemoResult:
    """Run the demo, with a progress bar unless `quiet`. `compared`: options of the system to compare with, if any."""
    with _progress(quiet) as on_progress, system:
        ready = system.wait_ready(READY_TIMEOUT_S)
        assert ready is not None
        result = _measure(system, compared, load, ready[1], on_progress)
        on_progress("draining", 1.0)
        system.supervisor.drain(DRAIN_TIMEOUT_S)
    return result


def _measure(
    system: LocalSystem,
    compared: SystemOptions | None,
    load: DemoLoad,
    states: list[ModelState],
    on_progress: OnProgress,
) -> DemoResult:
    """Measure the system. Then compare it with one of the options `compared`, if there are any."""
    import uvloop

    from horologe import AsyncClient
    from horologe_cli.demo.demo_run import DemoRun, check_criteria

    topology = system.topology
    demo_run = DemoRun(topology.http, load, on_progress)

    async def measure() -> None:
        async with AsyncClient(topology.clients[0], keys=topology.keys or None) as client:
            await demo_run.run(client, states)

    uvloop.run(measure())
    if compared:
        on_progress("starting the services without a profiler", 0.9)
        _compare_profiler(topology, compared, demo_run, states)
    demo_run.result.criteria = check_criteria(demo_run.result)
    return demo_run.result


def _compare_profiler(topology: Topology, options: SystemOptions, demo_run: DemoRun, states: list[ModelState]) -> None:
    """Start a second system, without a profiler, and compare both."""
    import uvloop

    from horologe import AsyncClient
    from horologe_cli.local.local_system import LocalSystem

    async def compare(without: Topology) -> None:
        endpoints = topology.clients[0], without.clients[0]
        first, second = (AsyncClient(endpoint, keys=topology.keys or None) for endpoint in endpoints)
        async with first, second:
            await demo_run.compare_profiler(first, second, states, topology.metrics.values())

    with tempfile.TemporaryDirectory() as folder:
        sets = (*options.sets, f"selector.state={folder}")
        with LocalSystem(options._replace(profiler=False, sets=sets), lambda process, line: None) as without:
            without.wait_ready(READY_TIMEOUT_S)
            uvloop.run(compare(without.topology))


def _report(result: DemoResult, slo_ms: float, seconds: float, running: RunningSystem, json: bool) -> None:
    if json:
        import msgspec

        print_json({**msgspec.to_builtins(result), "passed": result.passed, "seconds": round(seconds, 1)})
        return
    from horologe_cli.demo.demo_tables import print_result

    out = console()
    print_result(out, result, slo_ms, running)
    verdict = "[green]all criteria are met" if result.passed else "[red]a criterion is not met"
    out.print(f"{verdict}[/], in {seconds:.0f} s")
    if not result.passed:
        out.print(
            "if other programs use these cores, requests are late: `horologe doctor` shows the load", markup=False
        )


def _write_log(lines: list[str]) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="horologe-demo-", suffix=".log", delete=False) as file:
        file.write("\n".join(lines) + "\n")
    stderr_console().print(f"the log of the services is in {file.name}", style="dim")
