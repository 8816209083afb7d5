"""Horologe as a child process. No other module of the benchmarks knows its command line and ports."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from bench.server_metrics import PrometheusHistogram, parse_histogram
from bench.server_process import Server, answers, free_port
from bench.workload import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOGS = ROOT / ".cache/bench"
READY_S = 120.0


class RunningHorologe(NamedTuple):
    """A running Horologe: its processes and its addresses."""

    server: Server
    http: str
    sdk: str


@contextlib.contextmanager
def start_horologe(
    repository: str,
    workers: int = 1,
    split: bool = False,
    settings: Sequence[str] = (),
    model: str = "",
    ipc: bool = False,
) -> Iterator[RunningHorologe]:
    """Run `horologe up` on free ports until the context ends. Yields when it is ready, with `model` if one is given.

    `repository` is relative to the root, `settings` are texts `section.field=value`. `ipc` moves the SDK's endpoint
    from TCP to a Unix socket. Raises `RuntimeError` with the end of the log if Horologe does not become ready.
    """
    http, port = f"127.0.0.1:{free_port()}", free_port()
    with tempfile.TemporaryDirectory() as folder:
        sdk = f"ipc://{folder}/clients" if ipc else f"tcp://127.0.0.1:{port}"
        command = [str(Path(sys.executable).with_name("horologe")), "up", "--models", str(ROOT / repository)]
        command += ["--workers", str(workers), "--http", http, "--client", sdk, *(["--split"] if split else [])]
        command += ["--metrics", f"127.0.0.1:{free_port()}"]
        for setting in settings:
            command += ["--set", setting]
        with Server(command, LOGS / f"horologe{'-split' if split else ''}.log") as server:
            ready = f"/v2/models/{model}/ready" if model else "/v2/health/ready"
            server.wait(answers(f"http://{http}{ready}"), READY_S)
            yield RunningHorologe(server, f"http://{http}", sdk)


def metric_pages(server: Server) -> list[str]:
    """Return the text of /metrics of every process that has one. Tries every port that a process listens on."""
    ports = set()
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(connection.laddr.port)
    pages = []
    for port in sorted(ports):
        url = f"http://127.0.0.1:{port}/metrics"
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=2) as response:
            pages.append(response.read().decode())
    return pages


def start_errors(server: Server) -> PrometheusHistogram:
    """Return the histogram of start errors, in seconds.

    A start error is the begin of an EXEC minus the latest of window start, end of the EXEC before it and arrival of
    its inputs.
    """
    return parse_histogram(metric_pages(server), "horologe_start_error_seconds")
