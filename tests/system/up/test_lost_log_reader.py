"""`horologe up` whose output nobody reads: every process serves as before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest

from harness.model_folders import a_python_model
from harness.running_up import HOROLOGE
from horologe_cli.local.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

LOUD = """
class Model:
    def predict_batch(self, inputs):
        print("loud " * 10_000)
        return {"y": inputs["x"]}
"""
REDIRECTIONS = {
    "head takes the first line": "2>&1 | head -n 1",
    "all streams are closed": "<&- >&- 2>&-",
    "the disk is full": ">/dev/full 2>&1",
    "the reader has stopped": "2>&1 | sleep 60",
}


def infer(port: int, model: str) -> Any:
    """Return the outputs of a request, or None if it failed."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except OSError:
        return None
    finally:
        connection.close()
    return content["outputs"][0]["data"] if answer.status == 200 else None


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_up_serves(tmp_path: Path, redirection: str) -> None:
    a_python_model(tmp_path / "models", LOUD, "loud", timeout='"5s"')
    port = free_port("127.0.0.1")
    options = (
        f"up --workers 1 --models models --no-profiler --no-tuner --metrics off --http 127.0.0.1:{port} "
        f"--client ipc://{tmp_path}/c --set log.level=debug"
    )
    command = f"echo $BASHPID > pid; exec '{HOROLOGE[0]}' -m horologe_cli.main {options}"
    shell = subprocess.Popen(
        ["bash", "-c", f"( {command} ) {REDIRECTIONS[redirection]}"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 40
        while infer(port, "loud") is None:
            assert time.monotonic() < end
            time.sleep(0.1)
        for _ in range(20):  # each writes 50 kB
            assert infer(port, "loud") == [1, 2, 3, 4]
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 15
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{pid}")
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
