"""Services in processes of their own whose log nobody reads: they start, answer probes and stop as usual."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from harness.model_folders import a_python_model
from harness.waiting import until
from horologe_cli.local.ports import free_port

SERVICES = {
    "horologe_cli.local.edge": ("frontend.clients=ipc://{0}/c", "http.port=0", "links.bind=unix://{0}/edge"),
    "horologe_controller": ("links.bind=unix://{0}/controller",),
    "horologe_gpu_worker": ("links.connect=unix://{0}/edge", "worker.repository={0}/models", "worker.cache={0}/cache"),
    "horologe_selector": ("links.connect=unix://{0}/edge", "selector.state="),
    "horologe_tuner": ("links.connect=unix://{0}/edge", "tuner.state=", "tuner.scaler=none"),
}


def is_healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def handles_sigterm(pid: int) -> bool:
    """Return whether the process has a handler: it has one a moment after its first answer."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("reader", ["ended", "stopped"])
def test_a_service_runs(service: str, reader: str, tmp_path: Path) -> None:
    a_python_model(tmp_path / "models")
    port, (read, write) = free_port("127.0.0.1"), os.pipe()
    if reader == "stopped":
        os.set_blocking(write, False)
        while True:  # fill the pipe
            try:
                os.write(write, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
    sets = (f"metrics.bind=127.0.0.1:{port}", "log.level=debug", *SERVICES[service])
    options = [word for text in sets for word in ("--set", text.format(tmp_path))]
    process = subprocess.Popen([sys.executable, "-m", service, *options], stdout=write, stderr=write, cwd=tmp_path)
    os.close(write)
    if reader == "ended":
        os.close(read)
    try:
        until(lambda: is_healthy(port) or process.poll() is not None)
        assert is_healthy(port)
        until(lambda: handles_sigterm(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        if reader == "stopped":
            os.close(read)
