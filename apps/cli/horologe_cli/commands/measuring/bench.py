"""`horologe bench`: offer load to a model on any server of the Open Inference Protocol, and measure it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from horologe_cli import output
from horologe_cli.commands.serving.predict import read_input
from horologe_cli.option_groups import expand_groups

if TYPE_CHECKING:
    from horologe_cli.measuring.bench_run import BenchLoad, BenchResult
    from horologe_load.model_server import LoadedModel

POISSON, CONSTANT = "poisson", "constant"
MIN_SLO_MS = 0.1
"""A closed loop whose deadlines pass before it sends would never read an answer."""


class ServerOptions(NamedTuple):
    """The server, and the requests."""

    model: Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL", show_default=False)]
    endpoint: Annotated[
        str,
        typer.Option(
            "--endpoint",
            "-e",
            envvar="HOROLOGE_ENDPOINT",
            help="http(s)://HOST:PORT, grpc(s)://HOST:PORT, or Horologe's SDK: tcp://HOST:PORT, ipc://PATH.",
            metavar="URL",
        ),
    ] = output.DEFAULT_ENDPOINT
    version: Annotated[str, typer.Option("--version", help="Version of the model.", metavar="V")] = ""
    source: Annotated[
        str, typer.Option("--input", "-i", help="A .npy or .npz file or JSON to send. Default: drawn at random.")
    ] = ""
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of an input with variable dimensions. Repeat for several.", metavar="NAME=N,N"),
    ] = None
    header: Annotated[
        list[str] | None, typer.Option(help="Header over HTTP, metadata over gRPC.", metavar="NAME:VALUE")
    ] = None
    keys: output.Keys = ""


class LoadOptions(NamedTuple):
    """The load, and what is wanted."""

    clients: Annotated[int, typer.Option(min=0, help="Closed loop: requests in flight. The default, with 1.")] = 0
    rate: Annotated[float, typer.Option(min=0.0, help="Open loop: requests per second.")] = 0.0
    trace: Annotated[Path | None, typer.Option(help="Open loop: CSV file of lines seconds[,model].")] = None
    capacity: Annotated[bool, typer.Option("--capacity", help="Search the highest rate that meets the SLO.")] = False
    arrivals: Annotated[str, typer.Option(help="Of an open loop: poisson or constant.")] = POISSON
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of a run, or of a trial of the search.")] = 10.0
    slo_ms: Annotated[float, typer.Option("--slo-ms", min=0.0, help="Deadline of each request.", metavar="MS")] = 0.0
    no_deadline: Annotated[
        bool, typer.Option("--no-deadline", help="Only count with the SLO, and do not send it to the server.")
    ] = False
    attainment: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Exit code 1 if a smaller share is in time. Of a search: 0.99."),
    ] = None
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes that generate the load.")] = 1
    seed: Annotated[int, typer.Option(min=0, help="Random seed of inputs and arrival times.")] = 1


@expand_groups
def bench(server: ServerOptions, *, load: LoadOptions, json: output.Json = False) -> None:
    """Offer load to a model on any server of the Open Inference Protocol v2, and print how it answers.

    In an open loop, latency counts from the planned time of sending. Percentiles have 95% confidence intervals. The
    last line says whether the generator was the limit.

    \b
    Examples:
      horologe bench noop --clients 16
      horologe bench noop --endpoint http://127.0.0.1:8000 --rate 200 --slo-ms 50 --attainment 0.99
      horologe bench bert -e grpc://triton:8001 --shape tokens=1,128 --trace arrivals.csv --json
      horologe bench digits-cnn --capacity --slo-ms 100 --seconds 5
    """
    from horologe_cli.measuring.bench_report import bench_document, bench_text
    from horologe_common.status import HorologeError

    wanted = _check_options(load)
    try:
        bench_load = _bench_load(server, load, wanted)
        model = _load_model(server, load)
        result = _measure(model, bench_load, load, json)
    except (HorologeError, OSError) as error:
        output.fail_with(error, server.endpoint)
    met = is_met(result, load.attainment, load.capacity)
    document = bench_document(result, model.server, bench_load, met)
    output.print_result(document, bench_text(result, model.server, bench_load), json)
    if not met:
        raise SystemExit(int(output.ExitCode.FAILED))


def is_met(result: BenchResult, attainment: float | None, capacity: bool) -> bool:
    """Return whether the wanted share of the requests was answered in time, and at least one was."""
    if capacity:
        return result.capacity is not None
    return result.run is not None and result.run.summary.ok > 0 and result.run.summary.attained >= (attainment or 0.0)


def _check_options(load: LoadOptions) -> float:
    """Return the wanted attainment. End the command if options contradict each other."""
    chosen = {"--clients": load.clients, "--rate": load.rate, "--trace": load.trace, "--capacity": load.capacity}
    given = [name for name, value in chosen.items() if value]
    if len(given) > 1:
        output.fail(f"{', '.join(given)}: got {len(given)} loads, wanted one", output.ExitCode.USAGE)
    if load.arrivals not in (POISSON, CONSTANT):
        output.fail(f"--arrivals: got {load.arrivals!r}, wanted {POISSON} or {CONSTANT}", output.ExitCode.USAGE)
    if 0 < load.slo_ms < MIN_SLO_MS:
        output.fail(f"--slo-ms: got {load.slo_ms:g}, wanted at least {MIN_SLO_MS:g}", output.ExitCode.USAGE)
    if load.capacity and not load.slo_ms:
        output.fail("--slo-ms: got none, wanted the SLO of --capacity", output.ExitCode.USAGE)
    return 0.99 if load.attainment is None else load.attainment


def _bench_load(server: ServerOptions, load: LoadOptions, wanted: float) -> BenchLoad:
    from horologe_cli.measuring.bench_run import BenchLoad

    return BenchLoad(
        seconds=load.seconds,
        slo_ms=load.slo_ms,
        rate=load.rate,
        even=load.arrivals == CONSTANT,
        arrivals=tuple(_read_trace(load.trace, server.model)) if load.trace else (),
        clients=load.clients or (0 if load.rate or load.trace or load.capacity else 1),
        seed=load.seed,
        wanted=wanted,
    )


def _read_trace(path: Path, model: str) -> list[int]:
    """Return the arrivals of the model, and of lines without a model, from the first on."""
    from horologe_load.arrivals import read_arrivals

    try:
        by_model = read_arrivals(path)
    except ValueError as error:
        output.fail(f"--trace {path}: {error}", output.ExitCode.USAGE)
    times = sorted([*by_model.get(model, ()), *by_model.get("", ())])
    if not times:
        models = ", ".join(sorted(by_model)[:5]) or "no lines"
        output.fail(f"--trace {path}: got {models}, wanted lines of {model!r}", output.ExitCode.USAGE)
    return [at_ns - times[0] for at_ns in times]


def _load_model(options: ServerOptions, load: LoadOptions) -> LoadedModel:
    """Read the metadata of the model and encode the requests. Raises HorologeError."""
    import numpy as np

    from horologe_load.model_server import ModelServer, choose_inputs, load_model, read_metadata

    headers = tuple(_split("--header", text, ":") for text in options.header or ())
    shapes = {
        name: _sizes(name, sizes) for name, sizes in (_split("--shape", text, "=") for text in options.shape or ())
    }
    given = read_input(options.source) if options.source else None
    server = ModelServer(options.endpoint, options.model, options.version, options.keys, headers)
    metadata = read_metadata(server)
    inputs = choose_inputs(metadata.spec, shapes, given, np.random.default_rng(load.seed))
    return load_model(server, metadata, inputs, 0 if load.no_deadline else round(load.slo_ms * 1e6))


def _split(option: str, text: str, separator: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not (name and found):
        output.fail(f"{option}: got {text!r}, wanted NAME{separator}VALUE", output.ExitCode.USAGE)
    return name.strip(), value.strip()


def _sizes(name: str, text: str) -> tuple[int, ...]:
    if not all(size.isascii() and size.isdecimal() for size in text.split(",")):
        output.fail(f"--shape {name}: got {text!r}, wanted sizes such as 1,128", output.ExitCode.USAGE)
    return tuple(int(size) for size in text.split(","))


def _measure(model: LoadedModel, bench_load: BenchLoad, load: LoadOptions, json: bool) -> BenchResult:
    from horologe_cli.measuring.bench_run import Bench
    from horologe_load.load_processes import LoadProcesses

    with LoadProcesses(model, load.processes) as processes, output.progress_bar("starting", json) as report:
        measurement = Bench(processes, bench_load, lambda text, share: report(share, text))
        return measurement.search() if load.capacity else measurement.run()
