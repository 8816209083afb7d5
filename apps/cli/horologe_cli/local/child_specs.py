"""Arguments and environment of the processes of one machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from horologe_cli.local.ports import free_port
from horologe_cli.local.supervisor import ChildSpec
from horologe_common.wanted_shares import worker_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from horologe_cli.local.layout import Layout, Placement
    from horologe_common.wanted_shares import WantedShare

FRONT, MIDDLE, WORKERS = 0, 1, 2
"""Stop stages: the frontend drains while the services behind it still run."""
BACKGROUND_NICE = 10
"""No request waits for profiler or tuner."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables set to 1: an EXEC uses one thread, unless its model is configured for more."""
SECTIONS = {
    "horologe_cli.local.edge": ("frontend", "http", "grpc", "tls", "selector", "controller"),
    "horologe_frontend": ("frontend", "http", "grpc", "tls"),
    "horologe_selector": ("selector",),
    "horologe_controller": ("controller",),
    "horologe_gpu_worker": ("worker",),
    "horologe_profiler": ("profiler",),
    "horologe_tuner": ("tuner",),
}
"""Sections of the settings that a module reads, besides links, metrics, log and recorder. It gets no others: settings
of a selector may hold a password, and workers run the code of models."""


class ChildSpecs:
    """Builds the specifications of the child processes.

    `layout`: the processes, and the CPUs of each. `worker_nice`: nice value of workers.
    """

    def __init__(
        self,
        config: str,
        flags: Mapping[str, Mapping[str, str]],
        metrics: Mapping[str, str],
        folder: Path,
        env: Mapping[str, str],
        *,
        layout: Layout,
        worker_nice: int,
    ) -> None:
        self._flags = flags
        self._env = env
        self._config = ("--config", config) if config else ()
        self._metrics = dict(metrics)
        self._folder = folder
        self._frontends = layout.frontends
        self._cpus = {placement.name: placement.cpus for placement in (*layout.services, *layout.workers)}
        self._background_cpus = layout.background_cpus
        self._worker_nice = worker_nice

    def services(self) -> list[ChildSpec]:
        """Return frontends, selector and controller."""
        if not self._frontends:
            return [self._child("edge", "horologe_cli.local.edge", FRONT, {"links.bind": self._ipc("edge")})]
        selector, controller = self._ipc("selector"), self._ipc("controller")
        middle = {"links.bind": selector, "links.connect": controller}
        return [
            *map(self._frontend, self._frontends),
            self._child("selector", "horologe_selector", MIDDLE, middle),
            self._child("controller", "horologe_controller", MIDDLE, {"links.bind": controller}),
        ]

    def _frontend(self, name: str) -> ChildSpec:
        """Return a frontend. Several share their ports; Unix sockets for clients are those of the first."""
        connected = f"{self._ipc('selector')},{self._ipc('controller')}"
        settings = {"links.bind": self._ipc(name), "links.connect": connected}
        if len(self._frontends) > 1:
            settings |= {"frontend.name": name.removeprefix("frontend-"), "frontend.reuse_port": "true"}
        if name != self._frontends[0]:
            endpoints = self._flags.get("frontend", {}).get("clients", "").split(",")
            settings["frontend.clients"] = ",".join(text for text in endpoints if text.startswith("tcp://"))
        return self._child(name, "horologe_frontend", FRONT, settings)

    def placed_worker(self, placement: Placement) -> ChildSpec:
        """Return a worker of the layout."""
        settings: dict[str, str] = {}
        if placement.exec_cpus:
            settings["worker.exec_cpus"] = ",".join(map(str, placement.exec_cpus))
        if placement.gpu is not None:
            hardware = self._flags.get("worker", {}).get("hardware", "cuda")
            settings |= {"worker.device": f"cuda:{placement.gpu}", "worker.hardware": hardware}
        return _with_settings(self.worker(placement.name.removeprefix("worker-")), settings)

    def worker(self, name: str) -> ChildSpec:
        settings = {"links.connect": self._ipc("controller" if self._frontends else "edge"), "worker.name": name}
        threads = {name: "1" for name in ONE_THREAD if name not in self._env}
        child = self._child(f"worker-{name}", "horologe_gpu_worker", WORKERS, settings)
        return child._replace(nice=self._worker_nice, env=threads)

    def further_worker(self, number: int, hardware: str) -> ChildSpec:
        """Return a worker that starts while the system runs."""
        return self._added_worker(str(number), {"worker.hardware": hardware})

    def share_worker(self, share: WantedShare) -> ChildSpec:
        """Return the worker that owns a share of a device. Emulated shares of a device slow each other by a file."""
        emulated = self._folder / f"emulated-{re.sub(r'[^A-Za-z0-9.]', '-', share.device_id)}"
        settings = worker_settings(share) | {"worker.emulated_device": str(emulated)}
        return self._added_worker(share.worker, settings)

    def _added_worker(self, name: str, settings: Mapping[str, str]) -> ChildSpec:
        """Return a worker with further settings. Its metrics get any free port."""
        first = next(iter(self._metrics.values()))
        host = first.rpartition(":")[0]
        self._metrics[f"worker-{name}"] = f"{host}:{free_port(host)}" if first else ""
        child = self.worker(name)
        self._metrics.pop(f"worker-{name}")
        return _with_settings(child, settings)

    def tuner(self, control: str) -> ChildSpec:
        settings = {"tuner.scaler": "process", "tuner.scaler_target": control} if control else {}
        return self._background("tuner", (*self._frontends, "selector", "controller"), settings)

    def profiler(self) -> ChildSpec:
        return self._background("profiler", (*self._frontends, "controller"), {})

    def _background(self, name: str, peers: Sequence[str], settings: Mapping[str, str]) -> ChildSpec:
        """Return a process that no request waits for. It connects to `peers`, which the edge may stand for."""
        connected = ",".join(map(self._ipc, peers if self._frontends else ("edge",)))
        links = {"links.bind": self._ipc(name), "links.connect": connected}
        child = self._child(name, f"horologe_{name}", MIDDLE, {**links, **settings})
        return child._replace(nice=BACKGROUND_NICE, cpus=self._background_cpus)

    def _child(self, name: str, module: str, stage: int, settings: Mapping[str, str]) -> ChildSpec:
        unread = {section for sections in SECTIONS.values() for section in sections}.difference(SECTIONS[module])
        flags = {section: fields for section, fields in self._flags.items() if section not in unread}
        sets = [f"{section}.{field}={value}" for section in flags for field, value in flags[section].items()]
        sets += [f"{path}={value}" for path, value in settings.items()]
        sets.append(f"metrics.bind={self._metrics[name]}")
        prefixes = tuple(f"HOROLOGE_{section.upper()}_" for section in unread)
        hidden = tuple(variable for variable in self._env if variable.startswith(prefixes))
        arguments = (*self._config, *(f"--set={text}" for text in sets))
        return ChildSpec(name, module, arguments, stage, hidden=hidden, cpus=self._cpus.get(name, ()))

    def _ipc(self, name: str) -> str:
        return f"unix://{self._folder / name}"


def _with_settings(child: ChildSpec, settings: Mapping[str, str]) -> ChildSpec:
    """Return the child with further settings, which override the earlier ones."""
    return child._replace(arguments=(*child.arguments, *(f"--set={path}={text}" for path, text in settings.items())))
