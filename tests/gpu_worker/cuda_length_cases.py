"""Cases for models of variable length on a CUDA device, emulated (unit tests) or real (tests/gpu).

A module that runs them has the fixture `cuda`: a `PytorchRuntime` on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gpu_worker.repository_harness import a_module, a_program
from harness.model_folders import SIGNATURE
from horologe_common.status import ModelFailed, Status
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.execution.device_models import DeviceModels
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.pytorch import cuda_model
from horologe_gpu_worker.runtimes.pytorch.cuda_model import CAPTURE_AFTER, bucket_length

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_gpu_worker.runtimes.pytorch.pytorch_runtime import PytorchRuntime

LENGTHS = SIGNATURE.replace("[-1, 4]", "[-1, -1]")
SUMS = LENGTHS.rpartition("[-1, -1]")[0] + "[-1, 2]\n"
SHAPES = ({0: torch.export.Dim("rows", max=16), 1: torch.export.Dim("columns", max=100)},)


class Store:
    """The model store of one model."""

    def __init__(self, runtime: PytorchRuntime, folder: Path) -> None:
        self.runtime, self.folder = runtime, folder
        self.model_spec = runtime.inspect(folder)

    def spec(self, key: str) -> Any:
        return self.model_spec

    def open(self, spec: Any) -> Any:
        return self.runtime.open(spec, self.folder)

    def is_open(self, key: str) -> bool:
        return False


def numbers(rows: int, columns: int) -> Any:
    return np.random.default_rng(rows * columns).random((rows, columns), np.float32)


def wait_for_captures(runtime: Any) -> None:
    runtime._engine.captures.submit(lambda: None).result()


def test_batches_of_any_length_run_and_frequent_lengths_get_graphs(
    cuda: PytorchRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_model, "GRAPHS_MAX", 2)
    folder = a_program(tmp_path, a_module(lambda x: {"y": x * 2 + x.shape[1]}), (torch.zeros(2, 4),), SHAPES, LENGTHS)
    model: Any = cuda.open(cuda.inspect(folder), folder)
    for _ in range(CAPTURE_AFTER + 2):
        for columns in (3, 7, 16, 90):
            x = numbers(2, columns)
            np.testing.assert_allclose(model.run(2, {"x": x})["y"], x * 2 + columns, rtol=1e-6)
        wait_for_captures(cuda)
    assert list(model._recent) == [((2, 7),), ((2, 90),)]  # ((2, 16),) was captured in advance
    with pytest.raises(ModelFailed, match="inputs: got"):
        model.run(2, {"x": numbers(2, 101)})
    model.close()
    model._capture_on_demand(((2, 5),), torch.zeros(64, dtype=torch.uint8))
    assert len(model._recent) == 2  # no graph over weights that are not there


def test_batches_of_a_padded_model_are_padded_to_few_lengths(cuda: PytorchRuntime, tmp_path: Path) -> None:
    module = a_module(lambda x: {"y": torch.stack([x.sum(1), (x != 0).sum(1).float()], 1)})
    manifest = "padded = true\nbatch_sizes = [1, 2, 4]\n" + SUMS
    store = Store(cuda, a_program(tmp_path, module, (torch.zeros(2, 4),), SHAPES, manifest))
    device = DeviceModels(store)  # type: ignore[arg-type]

    def do(lane: str, rows: int = 0, **given: Any) -> Any:
        done = device.run(LaneOperation(1, 0, lane, "m/1", 4, rows, **given))
        assert done.status == Status.OK, done.reason
        return done

    do("load")
    for lengths, wanted in (((3, 10, 9), 16), ((33, 33), 40), ((97, 100), 100)):
        given = [1 + numbers(1, length) for length in lengths]
        longest = encode_array("x", np.zeros((len(given), max(lengths)), np.float32))[0]
        parts = [memoryview(array.tobytes()) for array in given]
        shapes = [[array.shape for array in given]] if len(set(lengths)) > 1 else ()
        ready = do("input", len(given), inputs=[(longest, parts)], shapes=shapes)
        assert ready.staged.data.shapes == ((4, wanted),)
        ran = do("exec", len(given), staged=ready.staged)
        [(_, content)] = do("output", len(given), staged=ran.staged).outputs
        got = np.frombuffer(content, np.float32).reshape(len(given), 2)
        np.testing.assert_allclose(got, [[array.sum(), array.size] for array in given], rtol=1e-5)
    device.close()


def test_a_number_of_the_request_is_no_obstacle(cuda: PytorchRuntime, tmp_path: Path) -> None:
    class Shift(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, by: int) -> Any:
            return {"y": x + by}

    shapes = {"x": {}, "by": torch.export.Dim.DYNAMIC}
    folder = a_program(tmp_path, Shift(), (torch.zeros(2, 4), 3), shapes)
    model = cuda.open(cuda.inspect(folder), folder)
    for by in (5, 9) * CAPTURE_AFTER:
        outputs = model.run(1, {"x": np.ones((2, 4), np.float32), "by": np.array(by, np.int64)})
        assert (outputs["y"] == 1 + by).all()
    model.close()


def test_shapes_that_only_a_run_shows_are_named(cuda: PytorchRuntime, tmp_path: Path) -> None:
    folder = a_program(tmp_path, a_module(lambda x: {"y": x.nonzero()}), (torch.ones(2, 4),))
    with pytest.raises(InvalidModel, match="outputs: got shapes that depend on the values of inputs"):
        cuda.inspect(folder)


@pytest.mark.parametrize(("length", "bucket"), [(1, 8), (8, 8), (9, 16), (128, 128), (129, 144), (1000, 1024)])
def test_lengths_are_rounded_up_by_an_eighth_at_most(length: int, bucket: int) -> None:
    assert bucket_length(length) == bucket
