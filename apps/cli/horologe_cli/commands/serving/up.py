"""`horologe up`: run the whole system on this machine until ^C."""

from __future__ import annotations

import json as jsonlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from horologe_cli.commands.serving.model_commands import model_document
from horologe_cli.option_groups import expand_groups
from horologe_cli.output import ExitCode, console, fail, print_json
from horologe_sim.report.tables import Cell, Table

if TYPE_CHECKING:
    from horologe_cli.local.local_system import LocalSystem, StopSignal
    from horologe_cli.local.topology import SystemOptions
    from horologe_common.wire import Description, ModelState

SIGNATURE = ("inputs", "outputs", "weights_bytes")
"""Fields of a model that the summary leaves out."""
READY_TIMEOUT_S = 600.0
"""Workers measure every new model before they serve it, which takes minutes for large models. Models that are still
loading then are shown as such."""

DrainSeconds = Annotated[float, typer.Option(help="Timeout in seconds for requests in flight, after ^C.", metavar="S")]
JsonLine = Annotated[bool, typer.Option("--json", help="Print one JSON line when the system is ready.")]


class ProcessOptions(NamedTuple):
    """The processes of a system, and their settings. `horologe demo` has them too."""

    workers: Annotated[
        int, typer.Option(min=0, help="Number of worker processes. 0: one for each GPU, else for each core left over.")
    ] = 0
    split: Annotated[
        bool | None,
        typer.Option(
            "--split/--no-split",
            help="Run frontend, selector and controller as separate processes. Default: with several frontends.",
            show_default=False,
        ),
    ] = None
    frontends: Annotated[
        int, typer.Option(min=0, help="Number of frontends, which share their ports. 0: as the cores allow, at most 4.")
    ] = 0
    scheduler: Annotated[
        str, typer.Option(help="horologe, clockwork, orloj, edf, ... See docs/settings.md.", metavar="NAME")
    ] = ""
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting. Repeat for several settings.", metavar="SECTION.FIELD=VALUE"),
    ] = None


class UpOptions(NamedTuple):
    """The models, the addresses and the optional services of `horologe up`."""

    models: Annotated[
        str, typer.Option(help="Folder or URL of the model repository, or of one model.", metavar="[NAME=]PLACE")
    ] = ""
    demo: Annotated[bool, typer.Option("--demo", help="Serve the models of `horologe demo`.")] = False
    http: Annotated[str, typer.Option(help="HTTP address. Port 0: any free port.", metavar="HOST:PORT")] = ""
    grpc: Annotated[str, typer.Option(help="gRPC address, or off. Port 0: any free port.", metavar="HOST:PORT")] = ""
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", help="ZeroMQ endpoint for clients. Repeat for several endpoints.", metavar="ENDPOINT"),
    ] = None
    metrics: Annotated[str, typer.Option(help="Address for Prometheus, or off.", metavar="HOST:PORT")] = ""
    profiler: Annotated[
        bool, typer.Option(help="Run the profiler, which measures requests by application and length.")
    ] = True
    tuner: Annotated[bool, typer.Option(help="Run the tuner, which carries out applied plans of pipelines.")] = True
    insecure: Annotated[bool, typer.Option("--insecure", help="Permit addresses beyond this machine without keys.")] = (
        False
    )
    config: Annotated[str, typer.Option(help="TOML file with settings.", metavar="FILE")] = ""
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the processes and the CPUs of each, and start none of them.")
    ] = False


@expand_groups
def up(options: UpOptions, processes: ProcessOptions, drain: DrainSeconds = 10.0, json: JsonLine = False) -> None:
    """Start every service on this machine. ^C drains and stops them, a second ^C kills them.

    \b
    Examples:
      horologe up --demo
      horologe up --models /srv/models --workers 4
      horologe up --models s3://bucket/models
      horologe up --models digits=/srv/digits
      horologe up --http 0.0.0.0:8000 --set http.keys_file=keys/http/keys.toml
      horologe up --split --scheduler edf --set log.level=debug
      horologe up --dry-run
    """
    from horologe_cli.local.topology import SystemOptions, default_repository
    from horologe_common.service.process_limits import protect_memory
    from horologe_common.service.standard_streams import install_lossy_streams

    install_lossy_streams()
    protect_memory()
    lists = {"clients": tuple(options.clients or ()), "sets": tuple(processes.sets or ())}
    fields = processes._asdict() | options._asdict() | lists
    if fields.pop("demo"):
        if options.models:
            fail(f"--models: got {options.models!r} with --demo, wanted one of them", ExitCode.USAGE)
        fields["models"] = default_repository()
    if fields.pop("dry_run"):
        _print_layout(SystemOptions(**fields), json)
    else:
        _run(SystemOptions(**fields), drain, json)


def _print_layout(options: SystemOptions, json: bool) -> None:
    """Print each process with its CPUs, those of its EXEC lanes, and its GPU."""
    from horologe_cli.local.layout import describe_cpus
    from horologe_cli.local.topology import read_layout
    from horologe_common.status import HorologeError

    try:
        layout = read_layout(options)
    except HorologeError as error:
        fail(error.reason, ExitCode.USAGE)
    if json:
        print_json({"processes": [placement._asdict() for placement in (*layout.services, *layout.workers)]})
        return
    table = Table(("process", "CPUs", "EXEC lanes", "GPU"), left=3)
    for placement in (*layout.services, *layout.workers):
        lanes, gpu = describe_cpus(placement.exec_cpus), placement.gpu
        table.add_row(placement.name, describe_cpus(placement.cpus) or "any", lanes, "" if gpu is None else str(gpu))
    table.print(console())


def _run(options: SystemOptions, drain_s: float, json: bool) -> None:
    """Run the system until a signal stops it."""
    from horologe_cli.local.local_system import LocalSystem, StopSignal
    from horologe_common.status import HorologeError

    stop, log = StopSignal().install_handlers(), LogLines()
    try:
        system = LocalSystem(options, log.forward)
    except HorologeError as error:
        fail(error.reason, ExitCode.USAGE)
    log.json = system.topology.log_json
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # services that do not record inherit it
    with system:
        if system.topology.records:
            signal.signal(signal.SIGUSR1, lambda *_: system.supervisor.forward_signal(signal.SIGUSR1))
        try:
            _serve(system, stop, drain_s, json, log)
        except HorologeError as error:
            log.write(error.reason)
            raise SystemExit(int(ExitCode.FAILED)) from None


def _serve(system: LocalSystem, stop: StopSignal, drain_s: float, json: bool, log: LogLines) -> None:
    ready = system.wait_ready(READY_TIMEOUT_S, stop, accept_loading=True)
    if ready:
        (print_json if json else _print_summary)(_summary(system, *ready))
        stop.wait()
    log.write("draining; press ^C again to kill all processes")
    if not system.supervisor.drain(drain_s):
        log.write(f"killed the processes that did not stop within {drain_s:g} s")


def _summary(system: LocalSystem, description: Description, models: list[ModelState]) -> dict[str, Any]:
    """Return the addresses, processes, devices and models of the system."""
    topology = system.topology
    return {
        "http": topology.http,
        "grpc": topology.grpc,
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
        ("gRPC", f"{summary['grpc']}  (Open Inference Protocol v2)" if summary["grpc"] else "off"),
        ("SDK", "  ".join(summary["clients"])),
        ("console", f"{summary['http']}/console"),
    ]
    rows += [("metrics", f"{url}  {process}") for process, url in summary["metrics"].items()] or [("metrics", "off")]
    rows += [("devices", devices), ("scheduler", summary["scheduler"])]
    for state in summary["models"]:
        note = "" if state["state"] == "READY" else f"  {state['state']}: {state['reason']}"
        rows.append(("model", f"{state['name']}/{state['version']}  {state['runtime']}{note}"))
        rows += [("", f"  note: {text}") for text in state["notes"]]
    table = Table(("", ""), left=2)
    for label, text in rows:
        table.add_row(Cell(label, "bold"), text)
    out = console()
    table.print(out)
    out.print("ready; press ^C to stop", style="green")


class LogLines:
    """Writes log lines to standard error: text after the name of the process, or one JSON object per line."""

    def __init__(self) -> None:
        self.json = False

    def forward(self, process: str, line: str) -> None:
        """Write a line of a child process. In JSON, a line that is no object (a model's `print`) becomes an event."""
        if not self.json:
            sys.stderr.write(f"{process:<10} | {line}\n")
            return
        try:
            fields = jsonlib.loads(line)
        except ValueError:
            fields = None
        document = fields if isinstance(fields, dict) else {"event": line}
        sys.stderr.write(jsonlib.dumps({"process": process, **document}) + "\n")

    def write(self, text: str) -> None:
        """Write a line of this command."""
        if self.json:
            self.forward("horologe", text)
        else:
            sys.stderr.write(f"horologe: {text}\n")
