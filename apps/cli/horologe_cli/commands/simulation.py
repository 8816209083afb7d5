"""`horologe sim` and `horologe replay`: the same cores under a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli.output import ExitCode, Json, console, fail, fail_with, print_json, stderr_console

if TYPE_CHECKING:
    from horologe_sim.report.report import Report
    from horologe_sim.scenario.scenario import Scenario


def sim(
    file: Annotated[
        str, typer.Argument(help="Scenario (TOML), or the name of an example; none: list them.", metavar="[FILE]")
    ] = "",
    model: Annotated[
        list[str] | None, typer.Option(help="Instead of a file: a model of the catalogue.", metavar="NAME[*COPIES]")
    ] = None,
    slo: Annotated[str, typer.Option(help="Deadline of every request.")] = "100ms",
    rate: Annotated[float, typer.Option(min=0.0, help="Poisson arrivals a second, over all models.")] = 0.0,
    trace: Annotated[Path | None, typer.Option(help="Arrivals from a CSV file: seconds[,model].")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Instead of the scenario's.")] = None,
    duration: Annotated[str, typer.Option(help="Of the load.")] = "",
    pages: Annotated[int, typer.Option(min=1, help="Of 16 MiB, for the weights on a device.")] = 1407,
    noise: Annotated[str, typer.Option(help="Of execution times: none or clockwork.")] = "clockwork",
    find_devices: Annotated[
        float | None, typer.Option(min=0.0, max=100.0, help="The fewest devices that reach this attainment, in %.")
    ] = None,
    trace_out: Annotated[Path | None, typer.Option(help="Write a Chrome/Perfetto timeline of all actions.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the scenario's.")] = None,
    json: Json = False,
) -> None:
    """Play a scenario with the real cores and a virtual clock: same seed, same report.

    \b
    Examples:
      horologe sim
      horologe sim two-models --seed 7
      horologe sim ./overload.toml --json
      horologe sim --model resnet50_v1*12 --slo 50ms --rate 1500 --devices 3
      horologe sim --model resnet50_v1 --slo 25ms --trace arrivals.csv --find-devices 99.9
      horologe sim two-models --trace-out timeline.json
    """
    from horologe_sim.scenario import scenario
    from horologe_sim.scenario.command_line_scenario import ScenarioOptions
    from horologe_sim.scenario.command_line_scenario import build_scenario as from_words

    if not file and not model:
        for name in scenario.example_names():
            console().print(name)
        return
    if file and model:
        fail("FILE, --model: got both, wanted one of them", ExitCode.USAGE)
    try:
        if model:
            scene = from_words(ScenarioOptions(tuple(model), slo, rate, trace, devices or 1, duration, pages, noise))
        else:
            scene = scenario.read_scenario(file)
        scene = _changed(scene, seed, devices)
        if find_devices is not None:
            _find(scene, find_devices / 100, trace_out, json)
        else:
            report = _play(scene, trace_out, quiet=json)
            console().print(report.to_json() if json else report.table(), markup=False, soft_wrap=True)
    except Exception as error:
        fail_with(error, "")


def replay(
    file: Annotated[Path, typer.Argument(help="What a service's recorder wrote.", metavar="FILE")],
    core: Annotated[str, typer.Option(help="One core of it, by role or address.", metavar="NAME")] = "",
    until: Annotated[float, typer.Option(min=0.0, help="Stop after so many seconds; 0: at the end.")] = 0.0,
    loss: Annotated[
        list[str] | None, typer.Option(help="As in selector.losses; repeated.", metavar="NAME=MODULE:FUNCTION")
    ] = None,
    json: Json = False,
) -> None:
    """Feed a recording to the same cores again, and say where they do something else than they did.

    \b
    Examples:
      horologe replay incident.rec
      horologe replay incident.rec --core controller --until 12.3
    Services record with `--set recorder.directory=DIR`. Exit code 1 if a core does something else now.
    """
    if not file.is_file():
        fail(f"{file}: no such file", ExitCode.USAGE)
    from horologe_selector.bootstrap import load_losses
    from horologe_sim.replay import replay_recording as play

    try:
        found = play(file, core, until or None, losses=[*load_losses(loss or ()).values()])
    except Exception as error:
        fail_with(error, "")
    console().print(found.to_json() if json else found.table(), markup=False, soft_wrap=True)
    if not found.cores:
        fail(f"{file}: no core called {core!r} in it", ExitCode.USAGE)
    if not found.identical:
        raise SystemExit(int(ExitCode.FAILED))


def _changed(scene: Scenario, seed: int | None, devices: int | None) -> Scenario:
    import msgspec

    scene = scene if seed is None else msgspec.structs.replace(scene, seed=seed)
    return msgspec.structs.replace(scene, workers=devices) if devices else scene


def _play(scene: Scenario, trace_out: Path | None, quiet: bool) -> Report:
    from rich.progress import Progress

    from horologe_sim.report.timeline import Timeline
    from horologe_sim.scenario.scenario import run_scenario

    taps: list[Timeline] = []

    def tap(begin_ns: int) -> Timeline:
        taps.append(Timeline(begin_ns))
        return taps[-1]

    with Progress(console=stderr_console(), transient=True, disable=quiet) as progress:
        task = progress.add_task(scene.name, total=1.0)
        report = run_scenario(
            scene, None, lambda done: progress.update(task, completed=done), tap if trace_out else None
        )
    if trace_out:
        written = taps[0].write(trace_out)
        more = f", {taps[0].left_out} more left out" if taps[0].left_out else ""
        stderr_console().print(f"{trace_out}: {written} actions{more}", markup=False)
    return report


def _find(scene: Scenario, target: float, trace_out: Path | None, json: bool) -> None:
    from rich.progress import Progress

    from horologe_sim.scenario.cluster_sizing import find_cluster_size

    with Progress(console=stderr_console(), transient=True, disable=json) as progress:
        task = progress.add_task(scene.name, total=1.0)
        size = find_cluster_size(
            scene, target, lambda done, what: progress.update(task, completed=done, description=f"{scene.name}: {what}")
        )
    if trace_out:
        _play(_changed(scene, None, size.devices), trace_out, quiet=json)
    if json:
        print_json(size)
        return
    console().print(size.report.table(), markup=False, soft_wrap=True)
    for probe in size.probes:
        console().print(
            f"{probe.devices:5} device(s): {probe.attainment:.3%}, {probe.utilisation:.1%} busy", markup=False
        )
    console().print(f"{size.devices} device(s) reach {target:.3%}", markup=False)
