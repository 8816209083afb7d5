"""Which processes run on one machine, and the settings each is given.

Fused (the default): `edge` (frontend, selector and controller in one process) and the workers. Split: a process per
service. The profiler, where there is one, is a process of its own. Workers know only the controller's endpoint; the
directory it sends them names the others.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_cli.local.ports import check_free, free_port, split_address
from horologe_cli.local.supervisor import ChildSpec
from horologe_common.service.settings import SettingsError, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FRONT, MIDDLE, WORKERS = 0, 1, 2
"""Stages of stopping: the frontend drains while everything behind it still works."""
WORKER_NICE = 5
"""Where workers leave no core to the edge, it must not wait for them: with two busy on two cores, a question to the
edge took 8 ms (p90) and 12 (p99) at 0, 4 and 8 at 5, and no less at 10. Elsewhere the workers yield to nobody."""
PROFILER_NICE = 10
"""Nobody waits for it."""
WORKER_METRICS_PORT = 8020
MOST_WORKERS = 4
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""An EXEC has one thread unless its model asks for more: libraries must not start a pool per process."""
OWN = ("bind", "connect", "advertise")
"""Fields of [links] that the arrangement decides."""


class SystemOptions(NamedTuple):
    """What was asked for on the command line; empty: whatever file, environment and defaults say."""

    models: str = ""
    workers: int = 0
    split: bool = False
    http: str = ""
    clients: tuple[str, ...] = ()
    metrics: str = ""
    scheduler: str = ""
    config: str = ""
    sets: tuple[str, ...] = ()
    profiler: bool = False


class Topology(NamedTuple):
    """The children to run, and where what they serve is reached."""

    children: tuple[ChildSpec, ...]
    http: str
    """URL."""
    clients: tuple[str, ...]
    """ZeroMQ endpoints; the first is the one to tell people."""
    metrics: dict[str, str]
    """URL by process."""
    models: str
    keys: str
    workers: int


def settings_sections() -> dict[str, type[msgspec.Struct]]:
    """Every table a settings file may have -> the struct that reads it."""
    from horologe_common.recording.recorder import RecorderSettings
    from horologe_common.service.log import LogSettings
    from horologe_common.service.metrics import MetricsSettings
    from horologe_common.transport.sockets import LinkSettings
    from horologe_controller.settings import ControllerSettings
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.settings import FrontendSettings
    from horologe_gpu_worker.settings import WorkerSettings
    from horologe_profiler.settings import ProfilerSettings
    from horologe_selector.settings import SelectorSettings

    return {
        "links": LinkSettings,
        "frontend": FrontendSettings,
        "http": HttpSettings,
        "selector": SelectorSettings,
        "controller": ControllerSettings,
        "worker": WorkerSettings,
        "profiler": ProfilerSettings,
        "metrics": MetricsSettings,
        "log": LogSettings,
        "recorder": RecorderSettings,
    }


def parse_flags(sets: Sequence[str]) -> dict[str, dict[str, str]]:
    """`["worker.pin=false"]` -> `{"worker": {"pin": "false"}}`. Raises `SettingsError`."""
    flags: dict[str, dict[str, str]] = {}
    for text in sets:
        place, equals, value = text.partition("=")
        section, dot, field = place.partition(".")
        if not (equals and dot):
            raise SettingsError(f"--set {text}: wanted SECTION.FIELD=VALUE")
        if section == "links" and field in OWN:
            raise SettingsError(f"--set {text}: `horologe up` decides this; use --client and --http")
        flags.setdefault(section, {})[field] = value
    return flags


def build_topology(options: SystemOptions, folder: Path, env: Mapping[str, str] = os.environ) -> Topology:
    """Read every setting once, so that a wrong one ends here. `folder`: private, for the sockets between processes.

    Raises `SettingsError` for settings that cannot be, a models folder that is not there, a port in use.
    """
    asked = _command_line_flags(options)
    read = _read_settings(options.config, env, asked)
    _check_models(read["worker"].repository)
    http = _resolve_http(read["http"], asked)
    clients = tuple(_resolve_client(endpoint) for endpoint in read["frontend"].clients)
    asked.setdefault("frontend", {})["clients"] = ",".join(clients)
    workers = options.workers or default_workers()
    names = ["frontend", "selector", "controller"] if options.split else ["edge"]
    names += [f"worker-{number}" for number in range(workers)]
    names += ["profiler"] * options.profiler
    metrics = _metrics_addresses(names, read["metrics"].bind)
    builder = _Children(options.config, asked, metrics, folder)
    children = builder.split() if options.split else builder.fused()
    nice = WORKER_NICE if workers >= available_cores() else 0
    children += [builder.worker(number, options.split, nice, env) for number in range(workers)]
    if options.profiler:
        children.append(builder.profiler(options.split))
    urls = {name: f"http://{bind}/metrics" for name, bind in metrics.items() if bind}
    return Topology(tuple(children), http, clients, urls, read["worker"].repository, read["links"].keys, workers)


def default_workers() -> int:
    """One core stays with the edge."""
    return max(1, min(MOST_WORKERS, available_cores() - 1))


def available_cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


class _Children:
    """Builds the specs of the processes."""

    def __init__(
        self, config: str, flags: Mapping[str, Mapping[str, str]], metrics: Mapping[str, str], folder: Path
    ) -> None:
        sets = [f"{section}.{field}={value}" for section, fields in flags.items() for field, value in fields.items()]
        self._config = ("--config", config) if config else ()
        self._sets = sets
        self._metrics = metrics
        self._folder = folder

    def fused(self) -> list[ChildSpec]:
        return [self._child("edge", "horologe_cli.local.edge", FRONT, {"links.bind": self._ipc("edge")})]

    def split(self) -> list[ChildSpec]:
        selector, controller = self._ipc("selector"), self._ipc("controller")
        front = {"links.bind": self._ipc("frontend"), "links.connect": f"{selector},{controller}"}
        middle = {"links.bind": selector, "links.connect": controller}
        return [
            self._child("frontend", "horologe_frontend", FRONT, front),
            self._child("selector", "horologe_selector", MIDDLE, middle),
            self._child("controller", "horologe_controller", MIDDLE, {"links.bind": controller}),
        ]

    def worker(self, number: int, split: bool, nice: int, env: Mapping[str, str]) -> ChildSpec:
        own = {"links.connect": self._ipc("controller" if split else "edge"), "worker.name": str(number)}
        threads = {name: "1" for name in ONE_THREAD if name not in env}
        child = self._child(f"worker-{number}", "horologe_gpu_worker", WORKERS, own)
        return child._replace(nice=nice, env=threads)

    def profiler(self, split: bool) -> ChildSpec:
        needs = ("frontend", "controller") if split else ("edge",)
        own = {"links.bind": self._ipc("profiler"), "links.connect": ",".join(map(self._ipc, needs))}
        return self._child("profiler", "horologe_profiler", MIDDLE, own)._replace(nice=PROFILER_NICE)

    def _child(self, name: str, module: str, stage: int, own: Mapping[str, str]) -> ChildSpec:
        sets = [*self._sets, *(f"{place}={value}" for place, value in own.items())]
        sets.append(f"metrics.bind={self._metrics[name]}")
        return ChildSpec(name, module, (*self._config, *(f"--set={text}" for text in sets)), stage)

    def _ipc(self, name: str) -> str:
        return f"ipc://{self._folder / name}"


def _command_line_flags(options: SystemOptions) -> dict[str, dict[str, str]]:
    """The command line as settings; its own options win over --set."""
    flags = parse_flags(options.sets)
    if options.models:
        flags.setdefault("worker", {})["repository"] = options.models
    if options.http:
        host, port = split_address("--http", options.http)
        flags["http"] = flags.get("http", {}) | {"host": host, "port": str(port)}
    if options.clients:
        flags.setdefault("frontend", {})["clients"] = ",".join(options.clients)
    if options.metrics:
        flags.setdefault("metrics", {})["bind"] = "" if options.metrics == "off" else options.metrics
    if options.scheduler:
        flags.setdefault("controller", {})["scheduler"] = options.scheduler
    return flags


def _read_settings(config: str, env: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    known = settings_sections()
    for section in flags:
        if section not in known:
            raise SettingsError(f"setting {section}: no such section; known are {', '.join(known)}")
    file = config or env.get("HOROLOGE_CONFIG")
    read: dict[str, Any] = {name: load_settings(kind, name, file, env, flags.get(name)) for name, kind in known.items()}
    from horologe_controller.schedulers import SCHEDULERS

    if (scheduler := read["controller"].scheduler) not in SCHEDULERS:
        raise SettingsError(f"controller.scheduler: got {scheduler!r}, wanted one of {', '.join(SCHEDULERS)}")
    return read


def _check_models(folder: str) -> None:
    if not os.path.isdir(folder):
        raise SettingsError(f"models: got {folder!r}, wanted a folder (--models DIR)")


def _resolve_http(settings: Any, asked: dict[str, dict[str, str]]) -> str:
    port = settings.port or free_port(settings.host)
    check_free("HTTP", settings.host, port, "choose another by --http HOST:PORT")
    asked.setdefault("http", {})["port"] = str(port)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "", "::") else settings.host
    return f"http://{host}:{port}"


def _resolve_client(endpoint: str) -> str:
    """A client endpoint with a port that is free; `tcp://host:0` takes any."""
    if not endpoint.startswith("tcp://"):
        return endpoint
    host, port = split_address("--client", endpoint.removeprefix("tcp://"))
    if port == 0:
        return f"tcp://{host}:{free_port(host)}"
    check_free("the client endpoint", host, port, "choose another by --client tcp://HOST:PORT")
    return endpoint


def _metrics_addresses(names: Sequence[str], bind: str) -> dict[str, str]:
    """The first process gets the address asked for, the others ports from 8020 on, or free ones where those are not."""
    if not bind:
        return dict.fromkeys(names, "")
    host, first = split_address("--metrics", bind)
    first = first or free_port(host)
    check_free("metrics", host, first, "choose another by --metrics HOST:PORT")
    found = {names[0]: f"{host}:{first}"}
    for port, name in enumerate(names[1:], WORKER_METRICS_PORT):
        found[name] = f"{host}:{free_port(host, port)}"
    return found
