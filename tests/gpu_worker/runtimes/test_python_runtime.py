"""Python runtime: a model that crashes, hangs, leaks or returns invalid results affects only itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu_worker.repository_harness import open_model
from harness.model_folders import ECHO, a_python_model
from harness.waiting import is_running, until
from horologe_common.service.parent_link import PacketSocket
from horologe_common.status import ModelFailed, Refused
from horologe_gpu_worker.repository.manifest import read_manifest
from horologe_gpu_worker.runtime import ProcessFailed
from horologe_gpu_worker.runtimes.python import channel
from horologe_gpu_worker.runtimes.python.model_environment import find_environment
from horologe_gpu_worker.runtimes.python.python_runtime import PythonModel, PythonRuntime
from horologe_gpu_worker.settings import DEFAULTS

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
    runtime, folder = PythonRuntime(), a_python_model(tmp_path, COMMANDED)
    for _ in range(2):
        with open_model(runtime, folder) as model:
            np.testing.assert_array_equal(model.run(1, row(FINE))["y"], row(FINE)["x"])
            with pytest.raises(ProcessFailed, match=text) as crash:
                model.run(1, row(command))
            assert crash.value.cause == "crash"
            with pytest.raises(Refused, match="model code/1: its process has ended"):
                model.run(1, row(FINE))


STARTS = """
import pathlib
starts = pathlib.Path({folder!r}, "starts")
number = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (number + 1))
"""


def a_source_with_starts(tmp_path: Path, source: str) -> str:
    """Return source in which `number` is how many processes have imported it before."""
    return STARTS.format(folder=str(tmp_path)) + source


def test_a_model_that_fails_to_load_again_is_refused_until_it_loads(tmp_path: Path) -> None:
    failing = a_source_with_starts(tmp_path, "if number in (0, 2): raise OSError('no licence')") + ECHO
    runtime, folder = PythonRuntime(), a_python_model(tmp_path, failing)
    spec = runtime.inspect(folder)
    with pytest.raises(ModelFailed, match="no licence"):
        runtime.open(spec, folder)
    runtime.open(spec, folder).close()
    with pytest.raises(Refused, match="model code/1: OSError: no licence"):
        runtime.open(spec, folder)
    runtime.open(spec, folder).close()


def test_a_process_whose_warm_up_fails_after_another_is_followed_by_one_without(tmp_path: Path) -> None:
    """The first process takes zeros, the later ones do not."""
    source = (
        a_source_with_starts(tmp_path, "import os")
        + """
class Model:
    def predict_batch(self, inputs):
        if number and not inputs["x"].any():
            os._exit(5)
        return {"y": inputs["x"]}
"""
    )
    runtime, folder = PythonRuntime(), a_python_model(tmp_path, source)
    spec = runtime.inspect(folder)
    runtime.open(spec, folder).close()
    with pytest.raises(Refused, match="exit code 5"):
        runtime.open(spec, folder)
    for _ in range(2):
        with open_model(runtime, folder) as model:
            np.testing.assert_array_equal(model.run(1, row(FINE))["y"], row(FINE)["x"])


def test_a_process_is_ready_once_both_replies_of_its_start_have_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (sock, peer) = a_python_model(tmp_path, ECHO), socket.socketpair()
    monkeypatch.setattr(channel, "start_isolated", lambda *args, **options: SimpleNamespace(sock=sock))
    environment = find_environment(folder, read_manifest(folder), DEFAULTS)
    spec = PythonRuntime().inspect(folder)
    process = channel.ModelProcess(spec, folder, read_manifest(folder), DEFAULTS, environment)
    with sock, peer:
        process.start()
        assert not process.is_loaded(0)
        for message in (channel.Loaded(), channel.ModelStarted(1)):
            channel.send(PacketSocket(peer), message)
        assert process.is_loaded(0)


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
    answer = pytest.raises(ProcessFailed, match=r"model code/1: no answer within 0\.3 s")
    with a_commanded_model(tmp_path, timeout='"300ms"') as model, answer as hang:
        model.run(1, row(HANG))
    assert hang.value.cause == "hang"
    (record,) = [record for record in caplog.records if record.message == "model process ended"]
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["model"], fields["cause"]) == ("code/1", "hang")
    assert "no answer within" in fields["reason"]


def test_a_leak_meets_the_memory_limit_and_ends_the_process(tmp_path: Path) -> None:
    with a_commanded_model(tmp_path, memory_limit='"1GiB"') as model:
        with pytest.raises(ProcessFailed, match="MemoryError"):
            model.run(1, row(LEAK))
        with pytest.raises(Refused):
            model.run(1, row(FINE))


def test_a_process_killed_while_idle_is_noticed(tmp_path: Path) -> None:
    with a_commanded_model(tmp_path) as model:
        os.kill(int(model.run(1, row(PID))["y"][0, 0]), signal.SIGKILL)
        with pytest.raises(ProcessFailed, match="SIGKILL"):
            model.run(1, row(FINE))


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
