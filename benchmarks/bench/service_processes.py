"""Every service as a process of its own on one machine, several of most, which can be stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, NamedTuple

from bench.server_process import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

READY_S, STOP_S, POLL_S = 60.0, 30.0, 0.02


class Process(NamedTuple):
    """A service: its module, its settings, and the port of its metrics."""

    module: str
    settings: Sequence[str]
    port: int


def one_of_each(
    folder: Path, http_port: int, frontends: int = 2, selectors: int = 2, workers: int = 2, middle: bool = True
) -> dict[str, Process]:
    """Return the services by name, in an order to start them. The models are in `folder`/models.

    The frontends share one HTTP port; `clients_of` returns their endpoints. `middle`: with profiler and tuner.
    """

    def socket(name: str) -> str:
        return f"unix://{folder}/{name}"

    def service(module: str, name: str, connect: Sequence[str], *settings: str) -> Process:
        links = (f"links.bind={socket(name)}", f"links.connect={','.join(map(socket, connect))}")
        return Process(module, (*links, *settings), free_port())

    names = [f"selector-{number}" for number in range(selectors)]
    fronts = [f"frontend-{number}" for number in range(frontends)]
    services = {"controller": service("horologe_controller", "controller", (), f"controller.workers={workers}")}
    for number, name in enumerate(names):
        store = (f"selector.name={number}", "selector.store=memory")
        services[name] = service("horologe_selector", name, ("controller",), *store)
    for number, name in enumerate(fronts):
        front = (
            f"frontend.name={number}", f"frontend.clients=ipc://{folder}/clients-{number}", f"http.port={http_port}",
            "grpc.port=0", "frontend.reuse_port=true",
        )  # fmt: skip
        services[name] = service("horologe_frontend", name, (*names, "controller"), *front)
    for number in range(workers):
        worker = (
            f"worker.name={number}", f"worker.repository={folder}/models", f"worker.cache={folder}/cache",
            "worker.pin=false",
        )  # fmt: skip
        services[f"worker-{number}"] = service("horologe_gpu_worker", f"worker-{number}", ("controller",), *worker)
    if middle:
        profiled = (*fronts, *names, "controller")
        state = f"{folder}/profiler.state"
        services["profiler"] = service("horologe_profiler", "profiler", profiled, f"profiler.state={state}")
        services["tuner"] = service("horologe_tuner", "tuner", profiled, f"tuner.state={folder}/tuner.state")
    return services


def clients_of(folder: Path, frontends: int = 2) -> str:
    """Return the endpoints of the frontends for an SDK client."""
    return ",".join(f"ipc://{folder}/clients-{number}" for number in range(frontends))


class ServiceProcesses:
    """Starts the services, and kills them at the end. `prefix` precedes the command of a service, by its name."""

    def __init__(
        self, folder: Path, services: Mapping[str, Process], prefix: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.services = services
        self._folder = folder
        self._prefix = prefix or {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> ServiceProcesses:
        for name in self.services:
            self.start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()

    def start(self, name: str) -> None:
        """Start a service that does not run."""
        service = self.services[name]
        settings = (*service.settings, f"metrics.bind=127.0.0.1:{service.port}" if service.port else "metrics.bind=")
        command = [*self._prefix.get(name, ()), sys.executable, "-m", service.module]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOROLOGE_")}
        with (self._folder / f"{name}.log").open("a") as log:
            self._children[name] = subprocess.Popen(
                [*command, *(f"--set={text}" for text in settings)], stdout=log, stderr=log, env=environment
            )

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> float:
        """Signal a service, and wait for its end. Return the seconds that it took, and raise if it fails."""
        child, begin_s = self._children[name], time.monotonic()
        child.send_signal(number)
        code = child.wait(STOP_S)
        if number == signal.SIGTERM and code:
            raise RuntimeError(f"{name} ended with code {code}: {self.read_log(name)[-2000:]}")
        return time.monotonic() - begin_s

    def is_ready(self, name: str) -> bool:
        """Return whether a service has a link to all that it uses."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.services[name].port}/ready", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def wait_ready(self, *names: str) -> None:
        """Wait until these services, or all, are ready. Raises `RuntimeError` after `READY_S`."""
        end_s = time.monotonic() + READY_S
        for name in names or self.services:
            while not self.is_ready(name):
                if time.monotonic() > end_s or self._children[name].poll() is not None:
                    raise RuntimeError(f"{name} is not ready: {self.read_log(name)[-2000:]}")
                time.sleep(POLL_S)

    def restart(self, name: str) -> tuple[float, float]:
        """Stop a service, start it, and wait until it is ready. Return the seconds that each took."""
        stopped_s, begin_s = self.stop(name), time.monotonic()
        self.start(name)
        self.wait_ready(name)
        return stopped_s, time.monotonic() - begin_s

    def pid(self, name: str) -> int:
        return self._children[name].pid

    def read_log(self, name: str) -> str:
        """Return what all processes of this name have logged."""
        return (self._folder / f"{name}.log").read_text()
