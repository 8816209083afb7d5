"""Runtimes on a real CUDA device. They need msgspec (carry its wheel); ONNX also needs onnx and onnxruntime-gpu."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
pytest.importorskip("msgspec", reason="msgspec is not installed: carry its wheel to run whole runtimes")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import numpy as np

from horologe_common.models import PAGE_BYTES
from horologe_gpu_worker.runtime import StagedModel
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu
CUDA = WorkerSettings(device="cuda:0", pages_bytes=8 * PAGE_BYTES, io_cache_bytes=16 << 20)
PYTHON = """
import torch

class Model:
    def predict_batch(self, inputs):
        x = torch.tensor(inputs["x"], device="cuda:0")
        if x[0, 0] < 0:
            torch.ones(3 << 28, device="cuda:0")
        return {"y": (2 * x).cpu().numpy()}
"""


@pytest.mark.parametrize("kind", ["echo", "convnet", "wide"])
def test_pytorch_serves_a_folder(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the builders of test models need onnx")
    from harness.model_folders import a_pytorch_export, pytorch_exports

    folder = a_pytorch_export(tmp_path, kind)
    runtime = RUNTIMES["pytorch"](CUDA)
    spec = runtime.inspect(folder)
    build, row = pytorch_exports().MODELS[kind]
    torch.manual_seed(0)
    module = build().eval()
    for rows in (16, 1, 2):
        model = runtime.open(spec, folder)  # the second time: no capture, the same addresses
        assert isinstance(model, StagedModel)
        x = np.random.default_rng(rows).random((rows, *row), np.float32)
        outputs = model.run(rows, {spec.inputs[0].name: x})
        for name, wanted in module(torch.from_numpy(x)).items():
            np.testing.assert_allclose(outputs[name], wanted.detach().numpy(), rtol=2e-2, atol=2e-3)
        model.close()


def test_a_python_model_computes_on_the_device_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="the builders of test models need onnx")
    from harness.model_folders import a_python_model
    from horologe_common.status import ModelFailed

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of the model's process
    folder = a_python_model(tmp_path, PYTHON, gpu_memory='"1GiB"')
    runtime = RUNTIMES["python"](msgspec.structs.replace(CUDA, pages_bytes=128 * PAGE_BYTES))
    spec = runtime.place(runtime.inspect(folder), folder)
    model = runtime.open(spec, folder)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(model.run(2, {"x": x})["y"], 2 * x)
    with pytest.raises(ModelFailed, match="out of memory"):
        model.run(2, {"x": -x})
    model.close()


def test_onnx_keeps_weights_and_buffers_on_the_device(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the builders of test models need onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime-gpu is not installed (the extra `onnx-cuda`)")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA (the extra `onnx-cuda`)")
    from harness.model_folders import an_onnx_model
    from horologe_gpu_worker.runtimes.onnx.onnx_runtime import BoundModel

    folder = an_onnx_model(tmp_path)
    runtime = RUNTIMES["onnx"](CUDA)
    spec = runtime.place(runtime.inspect(folder), folder)
    model = runtime.open(spec, folder)
    assert isinstance(model, BoundModel)
    assert model._session.get_providers()[0] == "CUDAExecutionProvider"
    answers = []
    for rows in (1, 2, 1):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        answers.append((x, model.run(rows, {"x": x})["y"]))
    for x, y in answers:
        np.testing.assert_array_equal(x, y)
    model.close()
