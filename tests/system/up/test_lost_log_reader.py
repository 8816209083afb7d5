"""`horologe up` whose output nobody reads: every process serves as before."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from harness.http_calls import infer
from harness.model_folders import a_python_model
from harness.running_up import HOROLOGE
from harness.waiting import until
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


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_up_serves(tmp_path: Path, redirection: str) -> None:
    a_python_model(tmp_path / "models", LOUD, "loud", timeout='"5s"')
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    options = (
        f"up --workers 1 --models models --no-profiler --no-tuner --metrics off --http {address} "
        f"--grpc 127.0.0.1:0 --client ipc://{tmp_path}/c --set log.level=debug"
    )
    command = f"echo $BASHPID > pid; exec '{HOROLOGE[0]}' -m horologe_cli.main {options}"
    shell = subprocess.Popen(
        ["bash", "-c", f"( {command} ) {REDIRECTIONS[redirection]}"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: infer(f"http://{address}", "loud")[0] == 200, retry=(OSError,))
        for _ in range(20):  # each writes 50 kB
            assert infer(f"http://{address}", "loud") == (200, [1, 2, 3, 4])
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        until(lambda: not os.path.exists(f"/proc/{pid}"), 15)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
