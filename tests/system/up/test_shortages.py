"""A running system that can start no process for a while: what runs serves, states are true, and all comes back."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from harness.model_folders import a_python_model, an_emulated_model
from harness.pipeline_folders import write_pipelines
from harness.running_up import Up
from harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRIVER = "async def run(call, inputs):\n    return {'y': inputs['x']}\n"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
SHORTAGE_S = 1.5


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process open no descriptor, so that it can start no process."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def infer(up: Up, model: str, slo_ms: int = 500) -> Any:
    """Return the outputs of a request, or its error."""
    body = json.dumps({**REQUEST, "parameters": {"slo_ms": slo_ms}}).encode()
    status, content = up.http("POST", f"{up.ready['http']}/v2/models/{model}/infer", body)
    answer = json.loads(content)
    return answer["outputs"][0]["data"] if status == 200 else answer["error"]


def child_of(pid: int, module: str) -> int:
    """Return the process that runs a module for the process `pid`."""
    (found,) = [child for child in psutil.Process(pid).children() if module in child.cmdline()]
    return int(found.pid)


def test_processes_come_back_after_a_shortage(tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "models")
    a_python_model(tmp_path / "models", name="code")
    (tmp_path / "models" / "pipelines").mkdir()
    write_pipelines(tmp_path / "models" / "pipelines", {"drive": DRIVER}, datatype="FP32", width=4)
    up = Up(tmp_path, "--models", "models", "--no-profiler", "--no-tuner", "--metrics", "off")
    models, worker, edge = ("pretend", "code"), up.ready["processes"]["worker-0"], up.ready["processes"]["edge"]
    try:
        for model in (*models, "drive"):
            until(lambda model=model: infer(up, model) == [1, 2, 3, 4])  # type: ignore[misc]

        with no_descriptors(worker):  # the process of a Python model
            os.kill(child_of(worker, "horologe_gpu_worker.runtimes.python.model_process"), signal.SIGKILL)
            until(lambda: infer(up, "code") and "process not started: trying again" in up.read_log())
            assert infer(up, "pretend") == [1, 2, 3, 4]
        until(lambda: infer(up, "code") == [1, 2, 3, 4])

        driver = child_of(edge, "horologe_selector.drivers.driver_process")
        soft, hard = resource.prlimit(edge, resource.RLIMIT_NOFILE)
        resource.prlimit(edge, resource.RLIMIT_NOFILE, (psutil.Process(edge).num_fds() + 2, hard))  # for the request
        os.kill(driver, signal.SIGKILL)
        until(lambda: infer(up, "drive") != [1, 2, 3, 4])
        assert infer(up, "pretend") == [1, 2, 3, 4]
        resource.prlimit(edge, resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: infer(up, "drive") == [1, 2, 3, 4])

        with no_descriptors(up.process.pid):  # a worker
            os.kill(worker, signal.SIGKILL)
            until(lambda: "trying again" in up.read_log())
            time.sleep(SHORTAGE_S)
            for model in models:
                assert up.get(f"{up.ready['http']}/v2/models/{model}/ready")[0] == 503
            assert infer(up, "drive") == [1, 2, 3, 4]
        until(lambda: [infer(up, model) for model in models] == [[1, 2, 3, 4]] * 2)
        assert all(up.get(f"{up.ready['http']}/v2/models/{model}/ready")[0] == 200 for model in models)
    finally:
        assert up.stop(signal.SIGTERM) == 0
