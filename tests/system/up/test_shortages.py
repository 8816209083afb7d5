"""A running system that can start no process for a while: what runs serves, states are true, and all comes back."""

from __future__ import annotations

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
SERVED = 200, [1, 2, 3, 4]
SHORTAGE_S = 1.5


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process open no descriptor, so that it can start no process."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


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

    def answer(model: str) -> Any:
        return up.infer(model, slo_ms=500)

    try:
        until(lambda: all(answer(model) == SERVED for model in (*models, "drive")))

        with no_descriptors(worker):  # the process of a Python model
            os.kill(child_of(worker, "horologe_gpu_worker.runtimes.python.model_process"), signal.SIGKILL)
            until(lambda: answer("code") and "operation refused" in up.read_log())
            assert answer("pretend") == SERVED
        until(lambda: answer("code") == SERVED)

        driver = child_of(edge, "horologe_selector.drivers.driver_process")
        soft, hard = resource.prlimit(edge, resource.RLIMIT_NOFILE)
        resource.prlimit(edge, resource.RLIMIT_NOFILE, (psutil.Process(edge).num_fds() + 2, hard))  # for the request
        os.kill(driver, signal.SIGKILL)
        until(lambda: answer("drive") != SERVED)
        assert answer("pretend") == SERVED
        resource.prlimit(edge, resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: answer("drive") == SERVED)

        with no_descriptors(up.process.pid):  # a worker
            os.kill(worker, signal.SIGKILL)
            until(lambda: "trying again" in up.read_log())
            time.sleep(SHORTAGE_S)
            for model in models:
                assert up.get(f"{up.ready['http']}/v2/models/{model}/ready")[0] == 503
            assert answer("drive") == SERVED
        until(lambda: [answer(model) for model in models] == [SERVED] * 2)
        assert all(up.get(f"{up.ready['http']}/v2/models/{model}/ready")[0] == 200 for model in models)
    finally:
        assert up.stop(signal.SIGTERM) == 0
