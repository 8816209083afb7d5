"""Horologe as a child process. No other module of the benchmarks knows its command line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from bench.server_metrics import PrometheusHistogram, parse_histogram
from bench.server_process import Server, answers, free_port
from bench.workload import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOGS = ROOT / ".cache/bench"
PROFILES = LOGS / "profiles"
READY_S = 180.0


class Launch(NamedTuple):
    """System to start. `settings` are texts `section.field=value`.

    `checkout`: another checkout with an environment `.venv` of its own; None: the code that runs this program.
    """

    repository: Path
    workers: int = 1
    split: bool = False
    profiler: bool = True
    settings: tuple[str, ...] = ()
    checkout: Path | None = None


class ProcessTimes(NamedTuple):
    """CPU time of a process since its start, in seconds."""

    user_s: float
    kernel_s: float

    @property
    def total_s(self) -> float:
        """Return the time in user and kernel mode."""
        return self.user_s + self.kernel_s


class RunningHorologe(NamedTuple):
    """A running Horologe: its processes and its addresses. `ipc`: the Unix socket for clients."""

    server: Server
    http: str
    sdk: str
    ipc: str
    metrics: dict[str, str]
    """URL of /metrics by process."""
    pids: dict[str, int]
    """Process id by process: `edge`, `worker-0`, `profiler`."""
    grpc: str = ""
    """host:port."""

    def metric_pages(self) -> list[str]:
        """Return the text of /metrics of every process."""
        return [self.metric_page(name) for name in self.metrics]

    def metric_page(self, process: str) -> str:
        """Return the text of /metrics of a process; an empty text if it has none, or does not answer within 2 s."""
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            urllib.request.urlopen(self.metrics[process], timeout=2) as response,
        ):
            text: str = response.read().decode()
            return text
        return ""

    def start_errors(self) -> PrometheusHistogram:
        """Return the histogram of start errors, in seconds.

        A start error is the begin of an EXEC minus the latest of window start, end of the EXEC before it and arrival
        of its inputs.
        """
        return parse_histogram(self.metric_pages(), "horologe_start_error_seconds")

    def cpu_times(self) -> dict[str, ProcessTimes]:
        """Return the CPU time of each process."""
        times = {}
        for name, pid in self.pids.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid).cpu_times()
                times[name] = ProcessTimes(process.user, process.system)
        return times


def remove_profiles() -> None:
    """Remove the measured profiles of models, so that the next start measures them again."""
    shutil.rmtree(PROFILES, ignore_errors=True)


@contextlib.contextmanager
def start_horologe(launch: Launch, model: str = "") -> Iterator[RunningHorologe]:
    """Run `horologe up` on free ports until the context ends. Yields when it is ready, with `model` if one is given.

    The profiler starts without data. Profiles of models are kept for later starts, by checkout. Raises `RuntimeError`
    with the end of the log if Horologe does not become ready.
    """
    http, sdk, grpc = f"127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        ipc = f"ipc://{folder}/clients"
        command = [_python(launch.checkout), "-m", "horologe_cli.main", "up", "--json"]
        command += ["--models", str(launch.repository), "--workers", str(launch.workers), "--http", http]
        command += ["--client", sdk, "--client", ipc, "--metrics", "127.0.0.1:0"]
        command += [] if launch.checkout else ["--grpc", grpc]  # an older one has no such option
        command += ["--split"] * launch.split + ["--no-profiler"] * (not launch.profiler)
        for setting in launch.settings:
            command += ["--set", setting]
        server = Server(command, LOGS / f"{Path(folder).name}.log", _environment(launch.checkout, Path(folder)))
        with server:
            server.wait(lambda: bool(_ready_line(server.log)), READY_S)
            if model:
                server.wait(answers(f"http://{http}/v2/models/{model}/ready"), READY_S)
            ready = _ready_line(server.log)
            yield RunningHorologe(server, f"http://{http}", sdk, ipc, ready["metrics"], ready["processes"], grpc)
    server.log.unlink()


def _python(checkout: Path | None) -> str:
    return str(checkout / ".venv/bin/python") if checkout else sys.executable


def _environment(checkout: Path | None, folder: Path) -> dict[str, str]:
    """Return the environment of the child: caches of its own, and only the packages of its own checkout."""
    profiles = PROFILES / str(checkout or ROOT).replace(os.sep, "_")
    states = dict.fromkeys(("HOROLOGE_PROFILER_STATE", "HOROLOGE_SELECTOR_STATE"), str(folder / "state"))
    changes = {**states, "HOROLOGE_WORKER_CACHE": str(profiles)}
    return changes | ({"PYTHONPATH": ""} if checkout else {})


def _ready_line(log: Path) -> dict[str, Any]:
    """Return the line of --json, or an empty dict while it is missing."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"http"'):
            with contextlib.suppress(ValueError):
                document: dict[str, Any] = json.loads(line)
                return document
    return {}


def make_repository(folder: Path, sources: Sequence[Path]) -> Path:
    """Copy the models in the folders `sources` into a new repository. Return `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in sources:
        shutil.copytree(source, folder / source.name)
    return folder
