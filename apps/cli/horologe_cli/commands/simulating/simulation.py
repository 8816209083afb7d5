"""`horologe sim` and `horologe replay`: run the cores under a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli.commands.simulating.simulation_options import SimulationOptions, check_options
from horologe_cli.option_groups import expand_groups
from horologe_cli.output import (
    ExitCode,
    Json,
    console,
    fail,
    fail_with,
    print_json,
    print_result,
    progress_bar,
    stderr_console,
)

if TYPE_CHECKING:
    from horologe_sim.report.report import Report
    from horologe_sim.scenario.scenario import Scenario


@expand_groups
def sim(options: SimulationOptions, json: Json = False) -> None:
    """Simulate a scenario with the real cores and a virtual clock. The same seed gives the same report.

    \b
    Examples:
      horologe sim
      horologe sim two-models --seed 7
      horologe sim ./overload.toml --json
      horologe sim --model resnet50_v1*12 --slo 50ms --rate 1500 --devices 3
      horologe sim --model resnet50_v1 --slo 25ms --trace arrivals.csv --find-devices 99.9
      horologe sim --models ./models --counts per-second.csv --devices 2
      horologe sim two-models --trace-out timeline.json
      horologe sim --requests mine.csv --devices 4
      horologe sim ./mine.toml --scheduler horologe,clockwork --json
    """
    try:
        if not options.list_models and check_options(options):
            return _simulate(_build(options), options, json)
        _list_names(options.list_models, json)
    except Exception as error:
        fail_with(error, "")


def _build(options: SimulationOptions) -> Scenario:
    """Return the scenario of the file, or of the options by name. Print where the times of a trace begin."""
    from horologe_sim.scenario.command_line_scenario import ScenarioOptions, build_scenario, replace_load
    from horologe_sim.scenario.scenario import read_scenario

    given = {name: value for name, value in options._asdict().items() if value and name in ScenarioOptions._fields}
    chosen = ScenarioOptions(**given)
    scenario = replace_load(read_scenario(options.file), chosen) if options.file else build_scenario(chosen)
    if (chosen.trace or chosen.counts) and scenario.description:
        stderr_console().print(scenario.description, markup=False)
    return _override(scenario, seed=options.seed, workers=options.devices)


def _list_names(models: bool, json: bool) -> None:
    """Print the names of the catalogue models, or of the examples."""
    from horologe_sim.scenario.scenario import example_names, read_catalogue

    names = list(read_catalogue()) if models else example_names()
    print_result({"models" if models else "examples": names}, "\n".join(names), json)


def _simulate(scenario: Scenario, options: SimulationOptions, json: bool) -> None:
    """Compare schedulers, find the number of devices, or run the scenario. Print the result."""
    from horologe_sim.scenario.scenario_checks import check_scenario

    find_devices, trace_out = options.find_devices, options.trace_out
    check_scenario(scenario)
    if options.scheduler or scenario.requests:
        if find_devices is not None or trace_out:
            fail("--find-devices, --trace-out: got one with a comparison of schedulers, wanted none", ExitCode.USAGE)
        _compare(scenario, options.scheduler, json)
        return
    if find_devices is not None:
        _find_size(scenario, find_devices / 100, trace_out, json)
        return
    report = _run(scenario, trace_out, quiet=json)
    console().print(report.to_json() if json else report.table(), markup=False, soft_wrap=True)


def _compare(scenario: Scenario, schedulers: str, json: bool) -> None:
    """Play the scenario under each scheduler, and print the results side by side."""
    from horologe_sim.comparison.scheduler_comparison import compare_schedulers

    names = [name.strip() for name in schedulers.split(",") if name.strip()]
    with progress_bar(scenario.name, json) as on_progress:
        comparison = compare_schedulers(scenario, names, on_progress)
    console().print(comparison.to_json() if json else comparison.table(), markup=False, soft_wrap=True)


def replay(
    file: Annotated[Path, typer.Argument(help="Recording of a service.", metavar="FILE")],
    core: Annotated[str, typer.Option(help="Replay one core only, by role or address.", metavar="NAME")] = "",
    until: Annotated[float, typer.Option(min=0.0, help="Stop after this many seconds. 0: at the end.")] = 0.0,
    loss: Annotated[
        list[str] | None,
        typer.Option(
            help="A loss function, as in selector.losses. Repeat for several.", metavar="NAME=MODULE:FUNCTION"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Replay a recording with the same cores, and report the first difference to the recorded messages.

    \b
    Examples:
      horologe replay incident.rec
      horologe replay incident.rec --core controller --until 12.3
    Services record with `--set recorder.directory=DIR`. The exit code is 1 if a core sends other messages.
    """
    if not file.is_file():
        fail(f"{file}: no such file", ExitCode.USAGE)
    from horologe_selector.bootstrap import load_losses
    from horologe_sim.replay import replay_recording

    try:
        report = replay_recording(file, core, until or None, losses=[*load_losses(loss or ()).values()])
    except Exception as error:
        fail_with(error, "")
    console().print(report.to_json() if json else report.table(), markup=False, soft_wrap=True)
    if not report.cores:
        fail(f"{file}: no core called {core!r} in this recording", ExitCode.USAGE)
    if not report.identical:
        raise SystemExit(int(ExitCode.FAILED))


def _override(scenario: Scenario, **fields: int | None) -> Scenario:
    """Return the scenario with the fields that are not None."""
    import msgspec

    return msgspec.structs.replace(scenario, **{name: value for name, value in fields.items() if value is not None})


def _run(scenario: Scenario, trace_out: Path | None, quiet: bool) -> Report:
    from horologe_sim.engine.world import START_NS
    from horologe_sim.report.timeline import Timeline
    from horologe_sim.scenario.scenario import run_scenario

    timeline = Timeline(START_NS + scenario.settle_ns) if trace_out else None
    with progress_bar(scenario.name, quiet) as on_progress:
        report = run_scenario(scenario, on_progress, timeline)
    if trace_out and timeline:
        written = timeline.write(trace_out)
        omitted = f", {timeline.left_out} more left out" if timeline.left_out else ""
        stderr_console().print(f"{trace_out}: {written} actions{omitted}", markup=False)
    return report


def _find_size(scenario: Scenario, target: float, trace_out: Path | None, json: bool) -> None:
    from horologe_sim.scenario.cluster_sizing import find_cluster_size

    with progress_bar(scenario.name, json) as on_progress:
        size = find_cluster_size(scenario, target, lambda done, phase: on_progress(done, f"{scenario.name}: {phase}"))
    if trace_out:
        _run(_override(scenario, workers=size.devices), trace_out, quiet=json)
    if json:
        print_json(size)
        return
    out = console()
    out.print(size.report.table(), markup=False, soft_wrap=True)
    for run in size.probes:
        line = f"{run.devices:5} device(s): {run.attainment:.3%} in time, {run.utilisation:.1%} utilisation"
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"{size.devices} device(s) reach {target:.3%}", markup=False)
