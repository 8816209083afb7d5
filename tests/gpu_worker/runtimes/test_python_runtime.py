"""Python runtime: a model that crashes, hangs, leaks or returns invalid results affects only itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpu_worker.repository_harness import open_model, until_answered
from harness.model_folders import ECHO, a_python_model
from harness.waiting import is_running, until
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.content import ContentHashes
from horologe_gpu_worker.runtime import ProcessFailed
from horologe_gpu_worker.runtimes.python.python_runtime import PythonModel, PythonRuntime

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray


COMMANDED = """
import os, time
import numpy as np

class Model:
    def predict_batch(self, inputs):
        x = inputs["x"]
        match int(x[0, 0]):
            case 1: raise ValueError("this is the model's own text")
            case 2: os._exit(7)
            case 3: time.sleep(3600)
            case 4: return {"z": x}
            case 5: return {"y": x.astype(np.float64)}
            case 6: return {"y": x[:, :2]}
            case 7: return [x]
            case 8: return {"y": np.array([1j])}
            case 9: os.kill(os.getpid(), 11)
            case 10: np.ones(1 << 29)
            case 11: return {"y": np.full((1, 4), os.getpid(), np.float32)}
        return {"y": x}
"""
RAISE, EXIT, HANG, NAME, DATATYPE, SHAPE, LIST, DTYPE, SEGFAULT, LEAK, PID = range(1, 12)
FINE = 0


def row(command: int) -> dict[str, NDArray[Any]]:
    return {"x": np.array([[command, 1, 2, 3]], np.float32)}


def a_commanded_model(tmp_path: Path, **keys: Any) -> AbstractContextManager[PythonModel]:
    return open_model(PythonRuntime(), a_python_model(tmp_path, COMMANDED, **keys))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (RAISE, "model code/1: ValueError: this is the model's own text"),
        (NAME, r"model code/1: outputs: got \['z'\], wanted \['y'\]"),
        (DATATYPE, "model code/1: output 'y': datatype: got FP64, wanted FP32"),
        (SHAPE, r"model code/1: output 'y': shape: got \[1, 2\], wanted \[1, 4\]"),
        (LIST, "model code/1: predict_batch: got list, wanted a dict"),
        (DTYPE, "model code/1: .*'y': dtype: got complex128"),
    ],
)
def test_a_bad_answer_fails_its_batch_and_the_process_goes_on(tmp_path: Path, command: int, text: str) -> None:
    with a_commanded_model(tmp_path) as model:
        pid = model.run(1, row(PID))["y"][0, 0]
        with pytest.raises(ModelFailed, match=text):
            model.run(1, row(command))
        assert model.run(1, row(PID))["y"][0, 0] == pid


@pytest.mark.parametrize(
    ("command", "text"),
    [(EXIT, r"process ended \(exit code 7\)"), (SEGFAULT, r"process ended \(SIGSEGV\)")],
)
def test_a_crash_fails_its_batch_and_the_next_process_answers(tmp_path: Path, command: int, text: str) -> None:
    with a_commanded_model(tmp_path) as model:
        for _ in range(2):
            with pytest.raises(ProcessFailed, match=text) as crash:
                model.run(1, row(command))
            with pytest.raises(ProcessFailed, match=f"restarted after: {text}") as refused:
                model.run(1, row(FINE))
            assert (crash.value.cause, refused.value.cause) == ("crash", "restarting")
            np.testing.assert_array_equal(until_answered(model, row(FINE)), row(FINE)["x"])


FORKING = """
import atexit, os, sys

class Model:
    def __init__(self):
        atexit.register(lambda: open(FILE, "w").close())

    def predict_batch(self, inputs):
        x = inputs["x"]
        if x[0, 0] < 0 and os.fork() == 0:
            END
        return {"y": x}
"""


@pytest.mark.parametrize("end", ["pass", "raise ValueError('the child')", "sys.exit(0)", "os._exit(0)", "os.abort()"])
def test_a_child_that_the_model_forks_answers_nothing(tmp_path: Path, end: str) -> None:
    """It returns into the program of the model's process, and would answer in its place from then on."""
    ended = tmp_path / "ended"
    code = FORKING.replace("FILE", repr(str(ended))).replace("END", end)
    with open_model(PythonRuntime(), a_python_model(tmp_path, code)) as model:
        for number in (1, -1, 2, 3, -2, -3, *range(4, 40)):
            np.testing.assert_array_equal(model.run(1, row(number))["y"], row(number)["x"])
        assert not ended.exists(), "the child has run what is for the end of the model's process"
    assert ended.exists()


def test_a_hang_is_ended_at_its_time_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with a_commanded_model(tmp_path, timeout='"300ms"') as model:
        with pytest.raises(ProcessFailed, match=r"model code/1: no answer within 0\.3 s") as hang:
            model.run(1, row(HANG))
        until_answered(model, row(FINE))
    assert hang.value.cause == "hang"
    (record,) = [record for record in caplog.records if record.message == "model process restarts"]
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["model"], fields["cause"]) == ("code/1", "hang")
    assert "no answer within" in fields["reason"]


def test_a_leak_meets_the_memory_limit_and_starts_anew(tmp_path: Path) -> None:
    with a_commanded_model(tmp_path, memory_limit='"1GiB"') as model:
        with pytest.raises(ModelFailed, match="MemoryError"):
            model.run(1, row(LEAK))
        until_answered(model, row(FINE))


def test_a_process_killed_while_idle_is_noticed_and_replaced(tmp_path: Path) -> None:
    with a_commanded_model(tmp_path) as model:
        os.kill(int(model.run(1, row(PID))["y"][0, 0]), signal.SIGKILL)
        with pytest.raises(ModelFailed, match="SIGKILL"):
            model.run(1, row(FINE))
        until_answered(model, row(FINE))


def test_a_process_that_died_is_not_restarted_with_other_files(tmp_path: Path) -> None:
    folder = a_python_model(tmp_path, COMMANDED)
    runtime = PythonRuntime()
    spec = msgspec.structs.replace(runtime.inspect(folder), content_hash=ContentHashes().read(folder).hash)
    model = runtime.open(spec, folder)
    try:
        (folder / "model.py").write_text(ECHO)
        with pytest.raises(ModelFailed, match="exit code 7"):
            model.run(1, row(EXIT))
        end, reason = time.monotonic() + 15, ""
        while "got other files" not in reason and time.monotonic() < end:
            with pytest.raises(ModelFailed) as failure:
                model.run(1, row(FINE))
            reason = failure.value.reason
            time.sleep(0.02)
        assert "run `horologe load code` to serve the new content" in reason
    finally:
        model.close()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def Model(:", "SyntaxError"),
        ("x = 1", "got no class Model"),
        ("class Model: pass", "got no method predict_batch"),
        ("import sys; sys.exit(3)", r"process ended \(exit code 3\)"),
        ("class Model:\n    def predict_batch(self, inputs): return {}", r"outputs: got \[\], wanted \['y'\]"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path, source: str, text: str) -> None:
    folder, runtime = a_python_model(tmp_path, source), PythonRuntime()
    with pytest.raises(ModelFailed, match=text) as failed:
        runtime.open(runtime.inspect(folder), folder)
    assert failed.value.reason.count("model code/1:") == 1


def test_large_tensors_and_neighbours_in_the_folder(tmp_path: Path) -> None:
    folder = a_python_model(
        tmp_path, "from neighbour import twice\n" + ECHO.replace('inputs["x"]', 'twice(inputs["x"])')
    )
    (folder / "neighbour.py").write_text("def twice(x): return x * 2")
    manifest = (folder / "model.toml").read_text().replace("[-1, 4]", "[-1, 1000000]")
    (folder / "model.toml").write_text(manifest)
    with open_model(PythonRuntime(), folder) as model:
        x = np.arange(2_000_000, dtype=np.float32).reshape(2, -1)
        np.testing.assert_array_equal(model.run(2, {"x": x})["y"], x * 2)
    assert not (folder / "__pycache__").exists()


def test_a_hanging_process_dies_with_its_worker(tmp_path: Path) -> None:
    """Kill the worker while the model is in a call that never returns to the interpreter."""
    folder = a_python_model(tmp_path, COMMANDED, timeout='"60s"')
    worker = f"""
import pathlib, threading, numpy as np
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime
runtime, folder = PythonRuntime(), pathlib.Path({str(folder)!r})
opened = []
loading = threading.Thread(target=lambda: opened.append(runtime.open(runtime.inspect(folder), folder)))
loading.start(); loading.join()
print(int(opened[0].run(1, {{"x": np.full((1, 4), {PID}, np.float32)}})["y"][0, 0]), flush=True)
opened[0].run(1, {{"x": np.full((1, 4), {HANG}, np.float32)}})
"""
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert is_running(child)
        process.kill()
    until(lambda: not is_running(child))
