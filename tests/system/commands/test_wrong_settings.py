"""Wrong settings of each service's own entry point, and of `horologe up`: one line, status 2, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICES = {
    "frontend": "horologe_frontend", "selector": "horologe_selector", "controller": "horologe_controller",
    "worker": "horologe_gpu_worker", "profiler": "horologe_profiler", "tuner": "horologe_tuner",
    "edge": "horologe_cli.local.edge", "up": "horologe_cli.main",
}  # fmt: skip
CASES = [
    ("frontend", "http.host=0.0.0.0", "http.host: 0.0.0.0 is not loopback and no keys are set"),
    ("frontend", "http.keys_file=/no/where", "http.keys_file: /no/where: No such file or directory"),
    ("frontend", "http.port={port}", "http.host, http.port: 127.0.0.1:"),
    ("frontend", "frontend.clients=foo", "frontend.clients: got 'foo', wanted tcp://HOST:PORT or ipc://PATH"),
    ("frontend", "grpc.port={port}", "grpc.host, grpc.port: 127.0.0.1:"),
    ("frontend", "grpc.host=0.0.0.0", "grpc.host: 0.0.0.0 is not loopback and no keys are set"),
    ("frontend", "tls.certificate_file=/no/where", "tls.certificate_file: /no/where: No such file or directory"),
    ("edge", "controller.scheduler=magic", "controller.scheduler: got 'magic', wanted one of clockwork"),
    ("controller", "controler.workers=1", "controler: no such section; the sections are links"),
    ("controller", "links.bind=foo://x", "links.bind: got 'foo://x', wanted tcp://HOST:PORT"),
    ("controller", "links.bind=ipc:///no/where/x", "links.bind"),
    ("controller", "metrics.bind=127.0.0.1:{port}", "metrics.bind: got 127.0.0.1:{port}, wanted a free address"),
    ("controller", "metrics.bind=nonsense", "metrics.bind: got 'nonsense', wanted HOST:PORT"),
    ("controller", "recorder.directory={file}", "recorder.directory: got '{file}', wanted a folder"),
    (
        "controller",
        "controller.state={file}",
        "controller.state: got '{file}', wanted a folder that this user can write",
    ),
    ("selector", "selector.state={file}", "selector.state: got '{file}', wanted a folder that this user can write"),
    ("selector", "links.connect=tcp://far:1", "links: tcp://far:1 needs keys"),
    ("worker", "worker.cache={file}", "worker.cache: got '{file}', wanted a folder that this user can write"),
    ("profiler", "profiler.state={file}", "profiler.state: got '{file}', wanted a folder that this user can write"),
    ("tuner", "tuner.state={file}", "tuner.state: got '{file}', wanted a folder that this user can write"),
    ("tuner", "tracing.endpoint=collector:4318", "tracing.endpoint: got 'collector:4318', wanted http://"),
    ("up", "frontend.max_pending=-1", "frontend.max_pending: got '-1', wanted 1 to"),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def start(service: str, folder: Path, *sets: str, **variables: str) -> tuple[int, str]:
    """Return exit status and output of a service."""
    (folder / "models").mkdir(exist_ok=True)
    own = [
        "metrics.bind=",
        "frontend.clients=ipc://c",
        "http.port=0",
        "grpc.port=0",
        "selector.store=sqlite",
        "worker.repository=models",
    ]
    up = ["up", "--models", "models", "--metrics", "off"] if service == "up" else []
    arguments = [*up, *(f"--set={text}" for text in ([] if up else own)), *(f"--set={text}" for text in sets)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROLOGE_")}
    result = subprocess.run(
        [sys.executable, "-m", SERVICES[service], *arguments], capture_output=True, text=True, timeout=60, cwd=folder,
        env=inherited | variables,
    )  # fmt: skip
    return result.returncode, result.stderr


@pytest.mark.parametrize(("service", "setting", "reason"), CASES)
def test_a_wrong_setting_ends_the_process_with_one_line(
    service: str, setting: str, reason: str, tmp_path: Path, port: int
) -> None:
    file = tmp_path / "file"
    file.touch()
    status, output = start(service, tmp_path, setting.format(port=port, file=file))
    lines = [line for line in output.splitlines() if " [info " not in line]
    assert status == 2, output
    assert len(lines) == 1, output
    assert reason.format(port=port, file=file) in lines[0]


def test_a_wrong_variable_and_a_wrong_file_are_named(tmp_path: Path) -> None:
    status, output = start("controller", tmp_path, HOROLOGE_CONTROLLER_IN_FLIGHT="0")
    assert (status, output) == (2, "horologe-controller: setting controller.in_flight: got '0', wanted 1 to 1000\n")
    (tmp_path / "horologe.toml").write_text("[controler]\nworkers = 1\n")
    status, output = start("controller", tmp_path, HOROLOGE_CONFIG="horologe.toml")
    assert status == 2
    assert output.startswith("horologe-controller: settings file horologe.toml: controler: no such section")
    assert output.count("\n") == 1
