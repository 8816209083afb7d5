"""Decides which processes run on one machine (layout.py), and the settings of each.

Fused: the process `edge` (frontend, selector and controller) and the workers. Split: one process for each service, and
perhaps several frontends. Profiler and tuner are always processes of their own. Workers are given the controller's
endpoint only; the controller sends them the endpoints of the other services.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_cli.local.child_specs import ChildSpecs
from horologe_cli.local.layout import Wanted, plan_layout
from horologe_cli.local.machine import read_machine
from horologe_cli.local.ports import check_free, free_port, split_address
from horologe_common.service.settings import SettingsError, load_settings, unknown_section
from horologe_gpu_worker.fetching.source import parse_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_cli.local.layout import Layout
    from horologe_cli.local.supervisor import ChildSpec
    from horologe_common.wanted_shares import WantedShare
    from horologe_gpu_worker.settings import WorkerSettings

WORKER_NICE = 5
"""Nice value of workers if they occupy all cores, so that the edge need not wait for a core. Measured with two busy
workers on two cores, a request to the edge took 8 ms (p90) and 12 ms (p99) at nice 0, 4 and 8 ms at 5, and the same at
10. With more cores than workers, their nice value is 0."""
WORKER_METRICS_PORT = 8020
RESERVED_LINK_FIELDS = ("bind", "connect", "advertise")
"""Fields of [links] that `horologe up` sets itself."""


class SystemOptions(NamedTuple):
    """Options of the command line. Empty values leave the setting to the file, the environment and the defaults."""

    models: str = ""
    workers: int = 0
    split: bool | None = None
    http: str = ""
    clients: tuple[str, ...] = ()
    metrics: str = ""
    scheduler: str = ""
    config: str = ""
    sets: tuple[str, ...] = ()
    profiler: bool = False
    insecure: bool = False
    tuner: bool = False
    grpc: str = ""
    frontends: int = 0


class Topology(NamedTuple):
    """The child processes and the addresses that they serve."""

    children: tuple[ChildSpec, ...]
    http: str
    """URL."""
    grpc: str
    """host:port. Empty: gRPC is off, or its packages are not installed."""
    clients: tuple[str, ...]
    """ZeroMQ endpoints. The first one is printed."""
    metrics: dict[str, str]
    """URL by process."""
    keys: str
    layout: Layout
    create_worker: Callable[[int, str], ChildSpec]
    """Returns the specification of a further worker by its number and hardware type."""
    create_share: Callable[[WantedShare], ChildSpec]
    """Returns the specification of the worker that owns a share of a device."""
    hardware: str
    """Hardware type of the workers that are started first."""
    log_json: bool = False
    """True if log lines are JSON objects."""
    control: str = ""
    """Path of the control socket for the tuner; empty without one."""
    records: bool = False
    """True if the services record their messages, which they write on SIGUSR1."""


def settings_sections() -> dict[str, type[msgspec.Struct]]:
    """Return the struct of every table that a settings file may have."""
    from horologe_common.metrics.endpoint import MetricsSettings
    from horologe_common.recording.recorder import RecorderSettings
    from horologe_common.service.log import LogSettings
    from horologe_common.service.trace_export import TracingSettings
    from horologe_common.transport.sockets import LinkSettings
    from horologe_controller.settings import ControllerSettings
    from horologe_frontend.grpc.settings import GrpcSettings
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.settings import FrontendSettings
    from horologe_frontend.tls import TlsSettings
    from horologe_gpu_worker.settings import WorkerSettings
    from horologe_planning.hardware import HardwareSettings
    from horologe_profiler.settings import ProfilerSettings
    from horologe_selector.settings import SelectorSettings
    from horologe_tuner.settings import TunerSettings

    return {
        "links": LinkSettings,
        "frontend": FrontendSettings,
        "http": HttpSettings,
        "grpc": GrpcSettings,
        "tls": TlsSettings,
        "selector": SelectorSettings,
        "controller": ControllerSettings,
        "worker": WorkerSettings,
        "profiler": ProfilerSettings,
        "tuner": TunerSettings,
        "hardware": HardwareSettings,
        "metrics": MetricsSettings,
        "tracing": TracingSettings,
        "log": LogSettings,
        "recorder": RecorderSettings,
    }


def parse_flags(sets: Sequence[str]) -> dict[str, dict[str, str]]:
    """Convert `["worker.pin=false"]` to `{"worker": {"pin": "false"}}`. Raises SettingsError."""
    flags: dict[str, dict[str, str]] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        section, dot, field = path.partition(".")
        if not (equals and dot):
            raise SettingsError(f"--set {text}: wanted SECTION.FIELD=VALUE")
        if section == "links" and field in RESERVED_LINK_FIELDS:
            raise SettingsError(f"--set {text}: `horologe up` sets this itself; use --client and --http")
        flags.setdefault(section, {})[field] = value
    return flags


def build_topology(options: SystemOptions, folder: Path, env: Mapping[str, str] = os.environ) -> Topology:
    """Return the processes of this machine. `folder`: private folder for the sockets between them.

    Reads every setting, so that errors are found before a process starts. Raises SettingsError for an invalid setting,
    a missing models folder, and a state folder or a port in use.
    """
    from horologe_frontend.auth import check_open

    flags = _command_line_flags(options)
    settings = _read_settings(options.config, env, flags)
    _find_models(settings, flags)
    _check_state(settings["selector"])
    check_open(settings["http"], settings["tls"])
    http = _resolve_http(settings["http"], settings["tls"], flags)
    grpc = _resolve_grpc(settings["grpc"], settings["http"], settings["tls"], flags)
    clients = tuple(_resolve_client(endpoint) for endpoint in settings["frontend"].clients)
    flags.setdefault("frontend", {})["clients"] = ",".join(clients)
    layout = choose_layout(options, settings["worker"])
    if not settings["controller"].workers:
        flags.setdefault("controller", {})["workers"] = str(len(layout.workers))
    metrics = _metrics_addresses(_process_names(options, layout), settings["metrics"].bind)
    nice = WORKER_NICE if len(layout.workers) >= available_cores() else 0
    builder = ChildSpecs(options.config, flags, metrics, folder, env, layout=layout, worker_nice=nice)
    children = [*builder.services(), *map(builder.placed_worker, layout.workers)]
    if options.profiler:
        children.append(builder.profiler())
    control = ""
    if options.tuner:
        control = str(folder / "control") if settings["tuner"].scaler in ("none", "process") else ""
        children.append(builder.tuner(control))
    urls = {name: f"http://{bind}/metrics" for name, bind in metrics.items() if bind}
    return Topology(
        tuple(children),
        http,
        grpc,
        clients,
        urls,
        settings["links"].keys,
        layout,
        builder.further_worker,
        builder.share_worker,
        settings["worker"].hardware or ("cuda" if layout.workers[0].gpu is not None else settings["worker"].device),
        settings["log"].json,
        control,
        bool(settings["recorder"].directory),
    )


def _find_models(settings: Mapping[str, Any], flags: dict[str, dict[str, str]]) -> None:
    """Check the models folder. Add it for uploads, and its pipelines, to the flags, unless settings name others."""
    source = parse_source(settings["worker"].repository)
    if not (source.is_remote or os.path.isdir(source.place)):
        raise SettingsError(f"models: got {source.place!r}, wanted a folder: --models DIR, or `horologe up --demo`")
    if not (settings["selector"].pipelines or source.name or source.is_remote):  # the folder may be created later
        flags.setdefault("selector", {})["pipelines"] = os.path.join(source.place, "pipelines")
    if not (settings["http"].uploads or source.name or source.is_remote):
        flags.setdefault("http", {})["uploads"] = source.place


def _check_state(selector: Any) -> None:
    """Raise SettingsError if another system uses the state folder."""
    from horologe_selector.stores.sqlite import is_in_use, store_path

    if selector.store == "sqlite" and is_in_use(path := store_path(selector)):
        others = "and likewise for controller, profiler and tuner"
        hint = f"run `horologe up` in another folder, or choose one by --set selector.state=FOLDER, {others}"
        raise SettingsError(f"state: {path} is in use by another system; {hint}")


def read_layout(options: SystemOptions, env: Mapping[str, str] = os.environ) -> Layout:
    """Return the layout that `build_topology` would use. Raises SettingsError."""
    return choose_layout(options, _read_settings(options.config, env, _command_line_flags(options))["worker"])


def choose_layout(options: SystemOptions, worker: WorkerSettings) -> Layout:
    """Return the processes of this machine and their CPUs. A `worker.device` that is set is the device of all workers.

    Raises SettingsError for options that contradict each other.
    """
    machine = read_machine(gpus=worker.device == type(worker)().device)
    return plan_layout(machine, Wanted(options.workers, options.frontends, options.split, worker.pin))


def _process_names(options: SystemOptions, layout: Layout) -> list[str]:
    placed = [placement.name for placement in (*layout.services, *layout.workers)]
    return [*placed, *["profiler"] * options.profiler, *["tuner"] * options.tuner]


def default_repository() -> str:
    """Return the folder of the demo's models: in the installed package, else in the checkout that has this file."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "demo" / "models"
    return str(installed if installed.is_dir() else package.parents[2] / "models")


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _command_line_flags(options: SystemOptions) -> dict[str, dict[str, str]]:
    """Return the options as settings. Options like --http override --set."""
    flags = parse_flags(options.sets)
    if options.models:
        flags.setdefault("worker", {})["repository"] = options.models
    if options.http:
        host, port = split_address("--http", options.http)
        flags["http"] = flags.get("http", {}) | {"host": host, "port": str(port)}
    if options.grpc == "off":
        flags.setdefault("grpc", {})["enabled"] = "false"
    elif options.grpc:
        host, port = split_address("--grpc", options.grpc)
        flags["grpc"] = flags.get("grpc", {}) | {"host": host, "port": str(port)}
    if options.clients:
        flags.setdefault("frontend", {})["clients"] = ",".join(options.clients)
    if options.metrics:
        flags.setdefault("metrics", {})["bind"] = "" if options.metrics == "off" else options.metrics
    if options.insecure:
        for section in ("http", "links"):
            flags.setdefault(section, {})["allow_open"] = "true"
    if options.scheduler:
        flags.setdefault("controller", {})["scheduler"] = options.scheduler
    return flags


def _read_settings(config: str, env: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    from horologe_controller.schedulers import check_scheduler

    sections = settings_sections()
    for section in flags:
        if section not in sections:
            raise SettingsError(f"setting {unknown_section(section)}")
    file = config or env.get("HOROLOGE_CONFIG")
    settings: dict[str, Any] = {
        name: load_settings(kind, name, file, env, flags.get(name)) for name, kind in sections.items()
    }
    check_scheduler(settings["controller"])
    return settings


def _resolve_http(settings: Any, tls: Any, flags: dict[str, dict[str, str]]) -> str:
    port = settings.port or free_port(settings.host)
    check_free("HTTP", settings.host, port, "choose another by --http HOST:PORT")
    flags.setdefault("http", {})["port"] = str(port)
    host = settings.host or "0.0.0.0"
    scheme = "https" if tls.certificate_file else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _resolve_grpc(settings: Any, http: Any, tls: Any, flags: dict[str, dict[str, str]]) -> str:
    """Return the address of gRPC, or nothing if it is off or its packages are not installed.

    With any free port for HTTP, the default port of gRPC becomes any free port too.
    """
    from horologe_frontend.auth import check_open
    from horologe_frontend.endpoints import has_grpc

    if not has_grpc(settings):
        return ""
    check_open(http, tls, settings.host, "grpc.host")
    is_any = settings.port == 0 or (http.port == 0 and settings.port == type(settings)().port)
    port = free_port(settings.host) if is_any else settings.port
    check_free("gRPC", settings.host, port, "choose another by --grpc HOST:PORT, or --grpc off")
    flags.setdefault("grpc", {})["port"] = str(port)
    host = settings.host or "0.0.0.0"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve_client(endpoint: str) -> str:
    """Return the endpoint with a free port. `tcp://host:0` and `tcp://host:*` stand for any free port."""
    if endpoint.startswith("ipc://"):
        return endpoint
    if not endpoint.startswith("tcp://"):
        raise SettingsError(f"--client: got {endpoint!r}, wanted tcp://HOST:PORT or ipc://PATH")
    address = endpoint.removeprefix("tcp://")
    host, port = split_address("--client", address[:-1] + "0" if address.endswith(":*") else address)
    if port == 0:
        return f"tcp://{host}:{free_port(host)}"
    check_free("the client endpoint", host, port, "choose another by --client tcp://HOST:PORT")
    return endpoint


def _metrics_addresses(names: Sequence[str], bind: str) -> dict[str, str]:
    """Return the metrics address of each process: `bind` for the first, ports from 8020 on for the others.

    A port in use is replaced by any free port. With port 0, every process gets any free port.
    """
    if not bind:
        return dict.fromkeys(names, "")
    host, first = split_address("--metrics", bind)
    if first:
        check_free("metrics", host, first, "choose another by --metrics HOST:PORT")
    addresses = {names[0]: f"{host}:{first or free_port(host)}"}
    for port, name in enumerate(names[1:], WORKER_METRICS_PORT):
        addresses[name] = f"{host}:{free_port(host, port if first else 0)}"
    return addresses
