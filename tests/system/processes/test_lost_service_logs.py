"""Services in processes of their own whose log nobody reads: they start, answer probes and stop as usual."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from harness.http_calls import send_http
from harness.model_folders import a_python_model
from harness.waiting import until
from horologe_cli.local.ports import free_port

SERVICES = {
    "horologe_cli.local.edge": (
        "frontend.clients=ipc://{0}/c",
        "http.port=0",
        "grpc.port=0",
        "links.bind=unix://{0}/edge",
    ),
    "horologe_controller": ("links.bind=unix://{0}/controller",),
    "horologe_gpu_worker": ("links.connect=unix://{0}/edge", "worker.repository={0}/models", "worker.cache={0}/cache"),
    "horologe_selector": ("links.connect=unix://{0}/edge", "selector.state="),
    "horologe_tuner": ("links.connect=unix://{0}/edge", "tuner.state=", "tuner.scaler=none"),
}


def handles_sigterm(pid: int) -> bool:
    """Return whether the process has a handler: it has one a moment after its first answer."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("reader", ["ended", "stopped"])
def test_services_run(reader: str, tmp_path: Path) -> None:
    a_python_model(tmp_path / "models")
    read, write = os.pipe()
    if reader == "stopped":
        os.set_blocking(write, False)
        with suppress(BlockingIOError):
            while True:  # fill the pipe
                os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
    processes = {}
    for service, texts in SERVICES.items():
        address = f"127.0.0.1:{free_port('127.0.0.1')}"
        sets = (f"metrics.bind={address}", "log.level=debug", *(text.format(tmp_path) for text in texts))
        command = [sys.executable, "-m", service, *(f"--set={text}" for text in sets)]
        processes[address] = subprocess.Popen(command, stdout=write, stderr=write, cwd=tmp_path)
    os.close(write)
    if reader == "ended":
        os.close(read)
    try:
        for address, process in processes.items():
            until(lambda: send_http("GET", f"http://{address}/health")[0] == 200, retry=(OSError,))  # noqa: B023
            until(lambda: handles_sigterm(process.pid))  # noqa: B023
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        if reader == "stopped":
            os.close(read)
