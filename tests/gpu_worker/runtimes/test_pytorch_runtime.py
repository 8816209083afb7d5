"""PyTorch runtime on the CPU: weights in pages, LOAD after UNLOAD, and refused programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from gpu_worker.repository_harness import a_module, a_program, a_store
from harness.model_folders import SIGNATURE, a_folder, a_pytorch_export, a_pytorch_model, pytorch_exports
from horologe_common.models import PAGE_BYTES
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.pytorch import pytorch_runtime
from horologe_gpu_worker.runtimes.pytorch.host_engine import HostEngine
from horologe_gpu_worker.runtimes.pytorch.pytorch_runtime import PytorchRuntime
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def runtime() -> Iterator[PytorchRuntime]:
    runtime = PytorchRuntime(WorkerSettings(pages_bytes=4 * PAGE_BYTES))
    yield runtime
    pool_of(runtime).check()


def pool_of(runtime: PytorchRuntime) -> Any:
    assert isinstance(runtime._engine, HostEngine)
    return runtime._engine.pool


X = (torch.zeros(2, 4),)
ROWS = ({0: torch.export.Dim("rows", min=1, max=16)},)


@pytest.mark.parametrize("kind", ["convnet", "wide"])
def test_answers_are_the_modules_before_and_after_unload(kind: str, runtime: PytorchRuntime, tmp_path: Path) -> None:
    exports = pytorch_exports()
    folder = a_pytorch_export(tmp_path, kind)
    build, row = exports.MODELS[kind]
    torch.manual_seed(0)
    module = build().eval()
    spec = runtime.inspect(folder)
    other = a_pytorch_model(tmp_path, "other")
    for batch_size in (2, 16, 1):
        x = np.random.default_rng(batch_size).random((batch_size, *row), np.float32)
        model = runtime.open(spec, folder)
        between = runtime.open(runtime.inspect(other), other)  # takes the pages that were free a moment ago
        outputs = model.run(batch_size, {spec.inputs[0].name: x})
        wanted = module(torch.from_numpy(x))
        for name in outputs:
            np.testing.assert_allclose(outputs[name], wanted[name].detach().numpy(), rtol=1e-4, atol=1e-6)
        model.close()
        between.close()
        pool_of(runtime).check()


def test_a_tensor_larger_than_a_page_takes_pages_wherever_they_are(runtime: PytorchRuntime, tmp_path: Path) -> None:
    folder = a_pytorch_export(tmp_path, "wide")
    spec = runtime.inspect(folder)
    assert (spec.weights_bytes, spec.pages) == (20 << 20, 2)
    others = [a_pytorch_model(tmp_path, f"other{number}") for number in range(3)]
    opened = [runtime.open(runtime.inspect(other), other) for other in others]
    opened[1].close()  # leaves one free page between two that are taken, and one at the end
    model = runtime.open(spec, folder)
    assert model.run(1, {"x": np.ones((1, 64), np.float32)})["y"].shape == (1, 1)
    for each in (model, opened[0], opened[2]):
        each.close()


def test_tied_weights_are_kept_once(runtime: PytorchRuntime, tmp_path: Path) -> None:
    spec = runtime.inspect(a_pytorch_export(tmp_path, "convnet"))
    parameters = dict(pytorch_exports().ConvNet().named_parameters())
    assert "again.weight" not in parameters
    rounded = sum(-(-parameter.nbytes // 256) * 256 for parameter in parameters.values())
    assert rounded <= spec.weights_bytes <= rounded + 3 * 256  # the statistics of the batch norm


def test_a_second_load_reads_no_file_and_warms_nothing(
    runtime: PytorchRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_pytorch_model(tmp_path)
    spec = msgspec.structs.replace(runtime.inspect(folder), content_hash="1")
    runtime.prepare(spec, folder)
    monkeypatch.setattr(HostEngine, "load_program", None)
    monkeypatch.setattr(pytorch_runtime, "warm_up", None)
    for _ in range(2):
        model = runtime.open(spec, folder)
        x = np.ones((1, 4), np.float32)
        np.testing.assert_array_equal(model.run(1, {"x": x})["y"], x)
        model.close()


def test_shares_that_load_a_model_at_once_have_pages_each(runtime: PytorchRuntime, tmp_path: Path) -> None:
    folder = a_pytorch_model(tmp_path)
    spec = runtime.inspect(folder)
    first, second = runtime.open(spec, folder), runtime.open(spec, folder)
    first.close()
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(second.run(2, {"x": x})["y"], x)
    second.close()


def test_a_changed_file_is_read_again_and_what_runs_goes_on(runtime: PytorchRuntime, tmp_path: Path) -> None:
    model = a_module(lambda x: {"y": x + 1})
    folder = a_program(tmp_path, model, X, ROWS)
    old = runtime.open(runtime.inspect(folder), folder)
    changed = a_program(tmp_path / "b", a_module(lambda x: {"y": x + 2}), X, ROWS)
    (folder / "model.pt2").write_bytes((changed / "model.pt2").read_bytes() + b"")
    (folder / "model.toml").write_text("slo = '5ms'")
    new = runtime.open(runtime.inspect(folder), folder)
    x = np.zeros((1, 4), np.float32)
    assert (old.run(1, {"x": x})["y"][0, 0], new.run(1, {"x": x})["y"][0, 0]) == (1, 2)
    old.close()
    assert new.run(1, {"x": x})["y"][0, 0] == 2
    new.close()


def test_names_of_outputs_come_from_the_dict_or_the_manifest(runtime: PytorchRuntime, tmp_path: Path) -> None:
    pair = a_module(lambda x: (x + 1, x.sum(1) > 0))
    plain = runtime.inspect(a_program(tmp_path, pair, X, ROWS, name="plain"))
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in plain.outputs] == [
        ("output_0", "FP32", (-1, 4)),
        ("output_1", "BOOL", (-1,)),
    ]
    entry = "[[outputs]]\nname = '{}'\ndatatype = '{}'\nshape = {}\n"
    names = entry.format("more", "FP32", [-1, 4]) + entry.format("any", "BOOL", [-1])
    named = a_program(tmp_path, pair, X, ROWS, manifest=names, name="named")
    spec = runtime.inspect(named)
    assert [tensor.name for tensor in spec.outputs] == ["more", "any"]
    model = runtime.open(spec, named)
    assert sorted(model.run(1, {"x": np.ones((1, 4), np.float32)})) == ["any", "more"]
    model.close()
    other = a_program(tmp_path, pair, X, ROWS, manifest=SIGNATURE, name="other")
    with pytest.raises(InvalidModel, match=r"outputs: got .*'y'.*wanted .*output_1.*as in the program"):
        runtime.inspect(other)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return {"y": x + self.calls}


@pytest.mark.parametrize(
    ("module", "changes"), [(Counter(), "weights"), (a_module(lambda x: {"y": x.add_(1)}), "inputs")]
)
def test_programs_with_state_are_refused(module: Any, changes: str, runtime: PytorchRuntime, tmp_path: Path) -> None:
    folder = a_program(tmp_path, module, X, ROWS)
    with pytest.raises(ModelFailed, match=f"state: got a program that changes its {changes}, wanted one without state"):
        runtime.prepare(runtime.inspect(folder), folder)


def test_garbage_names_the_file(runtime: PytorchRuntime, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"model\.pt2: got .*, wanted a program saved by torch\.export\.save"):
        runtime.inspect(a_folder(tmp_path, "garbage", model_pt2=b"not an archive"))


def test_a_cuda_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    a_pytorch_model(tmp_path / "models")
    (report,) = a_store(tmp_path, settings=WorkerSettings(device="cuda")).scan()
    assert "worker.device: got 'cuda', wanted a CUDA device" in report.reason
