"""The contract of every runtime, and the specifics of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnxruntime
import pytest

from gpu_worker.repository_harness import open_model
from harness.model_folders import (
    a_folder,
    a_python_model,
    a_pytorch_model,
    a_torchscript_model,
    an_emulated_model,
    an_onnx_model,
)
from horologe_common.clock import ms
from horologe_common.models import TensorSpec
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.runtimes.emulated import EmulatedRuntime, Sleeper
from horologe_gpu_worker.runtimes.onnx import onnx_runtime as onnx
from horologe_gpu_worker.runtimes.onnx.sessions import open_session
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.runtime import OpenModel

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "onnx": an_onnx_model,
    "pytorch": a_pytorch_model,
    "torchscript": a_torchscript_model,
    "python": a_python_model,
    "emulated": an_emulated_model,
}
"""Runtime -> a folder of a model that answers its input `x` [-1, 4] as `y`, batch sizes 1 and 2."""


def test_every_runtime_is_under_the_contract() -> None:
    assert set(FOLDERS) == set(RUNTIMES)


@pytest.mark.parametrize("name", RUNTIMES)
def test_inspect_tells_the_signature(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path)
    spec = RUNTIMES[name]().inspect(folder)
    assert spec.runtime == name
    assert spec.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert spec.outputs == (TensorSpec("y", "FP32", (-1, 4)),)
    assert (spec.version, spec.batched, spec.batch_sizes) == ("1", True, (1, 2))


@pytest.mark.parametrize("name", RUNTIMES)
def test_answers_belong_to_their_inputs_at_every_batch_size(name: str, tmp_path: Path) -> None:
    with open_model(RUNTIMES[name](), FOLDERS[name](tmp_path)) as model:
        check_echoes(model)


def check_echoes(model: OpenModel) -> None:
    answers = []
    for batch_size in (1, 2, 1):
        x = np.random.default_rng(batch_size).random((batch_size, 4), np.float32)
        x.flags.writeable = False  # as arrays over received frames are
        answers.append((x, model.run(batch_size, {"x": x})["y"]))
    for x, y in answers:  # read only now: a later batch must not have changed an earlier answer
        np.testing.assert_array_equal(x, y)
        assert y.dtype == np.float32


@pytest.mark.parametrize("name", RUNTIMES)
def test_several_models_are_open_at_once_and_closing_one_leaves_the_others(name: str, tmp_path: Path) -> None:
    folders = [FOLDERS[name](tmp_path / part) for part in "ab"]
    runtime = RUNTIMES[name]()
    first, second = [runtime.open(runtime.inspect(folder), folder) for folder in folders]
    first.close()
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(second.run(1, {"x": x})["y"], x)
    second.close()


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_folder_without_its_files_is_invalid_and_says_which(name: str, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "empty")
    if name in ("pytorch", "torchscript"):
        pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    with pytest.raises(InvalidModel, match=r"model\.(onnx|pt2|py|toml)"):
        RUNTIMES[name]().inspect(folder)


@pytest.mark.parametrize(("name", "text"), [("onnx", "model graph/1: .*x"), ("pytorch", "model program/1: .*size")])
def test_a_failure_carries_the_models_text(name: str, text: str, tmp_path: Path) -> None:
    with open_model(RUNTIMES[name](), FOLDERS[name](tmp_path)) as model, pytest.raises(ModelFailed, match=text):
        model.run(1, {"x": np.ones((1, 5), np.float32)})


@pytest.mark.parametrize("name", ["python", "emulated"])
def test_a_missing_signature_is_named(name: str, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "m", "[emulated]\nexec_ms = {1 = 1}\n", model_py="")
    with pytest.raises(InvalidModel, match=r"model\.toml: inputs: got none, wanted"):
        RUNTIMES[name]().inspect(folder)


def test_importing_the_registry_imports_no_runtime() -> None:
    code = (
        "import sys, horologe_gpu_worker.repository.modelstore; "
        "sys.exit(bool({'onnxruntime', 'torch'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# onnx


def test_onnx_batches_only_where_every_tensor_begins_with_a_symbol(tmp_path: Path) -> None:
    runtime = RUNTIMES["onnx"]()
    fixed = runtime.inspect(an_onnx_model(tmp_path, "fixed", "", shape=(2, 4)))
    assert (fixed.batched, fixed.batch_sizes, fixed.inputs[0].shape) == (False, (1,), (2, 4))
    nameless = runtime.inspect(an_onnx_model(tmp_path, "nameless", "", shape=(None, "width")))
    assert (nameless.batched, nameless.batch_sizes, nameless.inputs[0].shape) == (True, (1, 2, 4, 8, 16), (-1, -1))


def test_onnx_garbage_is_invalid_and_names_the_file(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "garbage", model_onnx=b"\x00not a graph")
    with pytest.raises(InvalidModel, match=r"model\.onnx: got .*, wanted a model"):
        RUNTIMES["onnx"]().inspect(folder)


def test_onnx_that_does_not_keep_its_rows_fails_when_warmed(tmp_path: Path) -> None:
    folder = an_onnx_model(tmp_path, output=("other", 4), doubled=True)
    runtime = RUNTIMES["onnx"]()
    with pytest.raises(ModelFailed, match=r"output 'y': shape: got \[2, 4\], wanted \[1, 4\]"):
        runtime.open(runtime.inspect(folder), folder)


# emulated


class OversleepingClock:
    """A clock that a sleep advances, late by `late_ns`."""

    def __init__(self, late_ns: int) -> None:
        self.now_ns, self.late_ns = 1_000, late_ns

    def clock(self) -> int:
        self.now_ns += 10
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + (self.late_ns if seconds else 1_000)


def test_emulated_takes_the_profiled_time_even_if_sleeps_overrun(tmp_path: Path) -> None:
    watch = OversleepingClock(late_ns=150_000)
    runtime = EmulatedRuntime(waiter=Sleeper(watch.clock, watch.sleep))
    folder = an_emulated_model(tmp_path)
    model = runtime.open(runtime.inspect(folder), folder)
    for _ in range(200):  # learn the delay
        model.run(1, {"x": np.zeros((1, 4), np.float32)})
    for batch_size, wanted_ns in ((1, ms(1)), (2, ms(1.5))):
        begin_ns = watch.now_ns
        model.run(batch_size, {"x": np.zeros((batch_size, 4), np.float32)})
        assert wanted_ns <= watch.now_ns - begin_ns < wanted_ns + 10_000


def test_emulated_answers_zeros_where_no_input_fits(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path)
    manifest = (folder / "model.toml").read_text()
    (folder / "model.toml").write_text(manifest.replace('"y"\ndatatype = "FP32"', '"y"\ndatatype = "INT64"'))
    runtime = EmulatedRuntime(waiter=Sleeper(sleep=lambda seconds: None))
    y = runtime.open(runtime.inspect(folder), folder).run(2, {"x": np.ones((2, 4), np.float32)})["y"]
    assert (y.dtype, y.shape, bool(y.any())) == (np.dtype(np.int64), (2, 4), False)


def test_emulated_wants_a_time_for_every_batch_size(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path, batch_sizes=[1, 2, 4])
    with pytest.raises(InvalidModel, match=r"emulated\.exec_ms: got times for \[1, 2\], wanted \[4\] too"):
        EmulatedRuntime().inspect(folder)


def test_onnx_bound_to_buffers_answers_like_the_session(tmp_path: Path) -> None:
    """Test IO binding as on a CUDA device, with buffers on the host."""
    folder = an_onnx_model(tmp_path)
    spec = onnx.OnnxRuntime().inspect(folder)
    assert onnx.bindable(spec)
    model = onnx.BoundModel(spec, open_session(folder / "model.onnx", 1, True), "cpu", 0)
    check_echoes(model)
    with pytest.raises(ModelFailed, match="model graph/1: "):
        model.run(1, {"x": np.ones((1, 5), np.float32)})
    model.close()


def test_onnx_keeps_unloaded_sessions_within_its_limit(tmp_path: Path) -> None:
    runtime = onnx.OnnxRuntime(WorkerSettings(host_bytes=2 * (136 << 10)))  # room for two sessions
    folders = [an_onnx_model(tmp_path, name) for name in "abc"]
    specs = [msgspec.structs.replace(runtime.inspect(folder), content_hash="1") for folder in folders]
    for spec, folder in zip(specs, folders, strict=True):
        assert not runtime.is_open(spec)
        runtime.open(spec, folder).close()
        runtime._idle.check()
    assert [runtime.is_open(spec) for spec in specs] == [False, True, True]
    assert not runtime.is_open(msgspec.structs.replace(specs[1], content_hash="2"))
    models = [runtime.open_kept(specs[1]), runtime.open(specs[1], folders[1])]  # two shares
    assert not runtime.is_open(specs[1])
    for model in models:
        assert model is not None
        assert model.run(1, {"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[1, 1, 1, 1]]
        model.close()
        model.close()
    runtime._idle.check()
    assert [runtime.is_open(spec) for spec in specs] == [False, True, False]


def test_onnx_without_cuda_names_the_package_that_has_it(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    folder = an_onnx_model(tmp_path)
    runtime = RUNTIMES["onnx"](WorkerSettings(device="cuda"))
    with pytest.raises(InvalidModel, match="CUDA and TensorRT need the extra `onnx-cuda`"):
        runtime.open(runtime.inspect(folder), folder)


def test_onnx_keeps_only_sessions_of_the_content_that_was_opened_last(tmp_path: Path) -> None:
    folder = an_onnx_model(tmp_path)
    runtime = onnx.OnnxRuntime()
    old, new = [msgspec.structs.replace(runtime.inspect(folder), content_hash=content) for content in ("old", "new")]
    serving = runtime.open(old, folder)
    runtime.open(old, folder).close()
    assert runtime.is_open(old)
    runtime.open(new, folder).close()
    assert not runtime.is_open(old)
    serving.close()
    assert (runtime.is_open(old), runtime.is_open(new)) == (False, True)
    runtime._idle.check()
