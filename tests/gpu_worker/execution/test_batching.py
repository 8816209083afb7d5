"""Batches: parts are joined and padded, outputs outlive the workspace, and which models may be padded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.executor_harness import an_exec
from gpu_worker.repository_harness import a_store, only_report
from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    SELECTOR,
    a_worker,
    an_infer,
    an_input,
    deliver,
    operations,
    responses_by_row,
)
from harness.builders import a_spec
from harness.model_folders import SIGNATURE, a_folder, an_onnx_model
from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import Status
from horologe_common.wire import Ship, Shipped
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.execution.batching import assemble_inputs, output_tensors
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.repository.model_signature import zeros
from horologe_gpu_worker.repository.profile_cache import ProfileCache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VARIABLE = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, -1]

[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 1]
"""
SUM = """
class Model:
    def predict_batch(self, inputs):
        return {"y": inputs["x"].sum(1, keepdims=True)}
"""


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 3))
def test_parts_are_joined_in_order_and_padded_with_the_last_row(rows: list[list[int]], shift: int) -> None:
    """A part of a concatenated frame may begin at any byte."""
    parts = []
    for part in rows:
        raw = an_input([float(value) for value in part]).tobytes()
        parts.append(memoryview(bytes(shift) + raw)[shift:])
    count = sum(map(len, rows))
    header = encode_array("x", np.zeros((count, 4), np.float32))[0]
    operation = LaneOperation(1, 0, "exec", "sum/1", 16, count, inputs=[(header, parts)])
    space = Workspace()
    for _ in range(2):  # the second time the space is not clean
        x = assemble_inputs(operation, True, space)["x"]
        assert x.flags.aligned
        true = [float(value) for part in rows for value in part]
        assert x.sum(1).tolist() == true + true[-1:] * (16 - count)
        space.allocate(64)[:] = 255


def test_strings_are_joined_and_padded_with_the_last_one() -> None:
    header, buffer = encode_array("x", np.array([[b"a"], [b"bc"]], object))
    operation = LaneOperation(1, 0, "exec", "m/1", 4, 2, inputs=[(header, [buffer])])
    assert assemble_inputs(operation, True, Workspace())["x"].tolist() == [[b"a"], [b"bc"], [b"bc"], [b"bc"]]


def test_what_a_model_passes_through_outlives_the_workspace() -> None:
    spec = msgspec.structs.replace(a_spec(), outputs=(TensorSpec("y", "FP32", (-1, 4)),))
    space = Workspace()
    operation = an_exec([1, 2, 3])
    x = assemble_inputs(operation, True, space)["x"]
    [(_, buffer)] = output_tensors(operation, spec, {"y": x}, space)
    x[:] = 0
    assert np.frombuffer(buffer, np.float32).reshape(3, 4).sum(1).tolist() == [1, 2, 3]


def a_text_model(*names: str) -> ModelSpec:
    inputs = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in names or ("x",))
    return msgspec.structs.replace(a_spec("text"), inputs=inputs, padded=True)


def assemble_batch(spec: ModelSpec, *requests: Sequence[Any]) -> tuple[list[LaneOperation], list[Out]]:
    """Return the input arrays that the worker builds for an Infer with these inputs, in the order of the signature."""
    worker = a_worker(specs=[spec])
    rows = [len(arrays[0]) for arrays in requests]
    deliver(worker, 0, CONTROLLER, an_infer(rows=rows, model=spec.key))
    items, buffers = [], []
    for at, arrays in enumerate(requests):
        made = [encode_array(tensor.name, array) for tensor, array in zip(spec.inputs, arrays, strict=True)]
        items.append(Shipped(100 + at, tuple(header for header, _ in made)))
        buffers += [buffer for _, buffer in made]
    outs = deliver(worker, 1, HOLDER, Ship(1, HOLDER, tuple(items)), buffers)
    return operations(outs), outs


requests = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=5)


@given(requests)
def test_every_row_lies_in_the_first_corner_and_zeros_behind(shapes: list[tuple[int, int, int]]) -> None:
    spec = a_text_model()
    spec = msgspec.structs.replace(spec, inputs=(TensorSpec("x", "INT64", (-1, -1, -1)),))
    arrays = [np.arange(1, 1 + np.prod(shape), dtype=np.int64).reshape(shape) for shape in shapes]
    [operation], _ = assemble_batch(spec, *([array] for array in arrays))
    space = Workspace()
    space.allocate(1 << 12)[:] = 255
    x = assemble_inputs(operation, True, space)["x"]
    wide, high = max(shape[1] for shape in shapes), max(shape[2] for shape in shapes)
    assert x.shape == (operation.batch_size, wide, high)
    rows = [row for array in arrays for row in array]
    for got, row in zip(x, rows + rows[-1:] * (operation.batch_size - len(rows)), strict=True):
        assert got[: row.shape[0], : row.shape[1]].tolist() == row.tolist()
        assert got.sum() == row.sum()


def test_equal_lengths_need_no_padding() -> None:
    [operation], _ = assemble_batch(a_text_model(), [np.ones((1, 3), np.int64)], [np.ones((2, 3), np.int64)])
    assert (operation.inputs[0][0].shape, operation.shapes) == ((3, 3), [])


def test_strings_are_padded_with_empty_ones() -> None:
    spec = msgspec.structs.replace(a_text_model(), inputs=(TensorSpec("x", "BYTES", (-1, -1)),))
    [operation], _ = assemble_batch(spec, [np.array([["a", "b"]], object)], [np.array([["c"]], object)])
    assert assemble_inputs(operation, True, Workspace())["x"].tolist() == [[b"a", b"b"], [b"c", b""]]


def test_a_row_whose_inputs_contradict_each_other_fails_alone() -> None:
    spec = a_text_model("tokens", "mask")
    good, short = np.ones((1, 4), np.int64), np.ones((1, 2), np.int64)
    [operation], _ = assemble_batch(spec, [good, good], [good, short])
    assert (operation.rows, operation.batch_size) == (1, 1)
    _, refused = assemble_batch(spec, [good, short])
    assert responses_by_row(refused) == {(SELECTOR, 200): Status.FAILED}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (VARIABLE.replace("[-1, 1]", "[-1, -1]"), "output 'y' has the shape [-1, -1], variable in more than the rows"),
        (VARIABLE.replace("[-1, 1]", "[1]"), "not every tensor begins with a variable dimension"),
    ],
)
def test_padded_is_for_models_whose_outputs_are_not_longer_for_it(tmp_path: Path, manifest: str, words: str) -> None:
    a_folder(tmp_path / "models", "m", "padded = true\nbatch_sizes = [1]\n" + manifest, model_py=SUM)
    reason = only_report(tmp_path).reason
    assert "model.toml: padded: got true, wanted false: " in reason
    assert words in reason


@pytest.mark.parametrize(
    ("keys", "length"),
    [("", 16), ("profile_length = 40", 40), ("max_length = 9", 9), ("max_length = 9\nprofile_length = 5", 5)],
)
def test_a_variable_model_is_measured_at_the_length_its_manifest_says(tmp_path: Path, keys: str, length: int) -> None:
    an_onnx_model(tmp_path / "models", "m", f"batch_sizes = [1, 2]\n{keys}\n", shape=("rows", "length"))
    store = a_store(tmp_path)
    (report,) = store.scan()
    assert report.spec.profile_length == length
    assert {name: array.shape for name, array in zeros(report.spec, report.spec.inputs, 2).items()} == {
        "x": (2, length)
    }
    store.open(report.spec).close()
    cache = ProfileCache(tmp_path / "cache")
    assert cache.read_profile(report.spec) == report.profile
    assert cache.read_profile(msgspec.structs.replace(report.spec, profile_length=length + 1)) is None


def test_a_model_of_fixed_shape_has_no_profile_length(tmp_path: Path) -> None:
    a_folder(
        tmp_path / "models", "m", "profile_length = 5\n" + SIGNATURE, model_py=SUM.replace(".sum(1, keepdims=True)", "")
    )
    report = only_report(tmp_path)
    assert (report.reason, report.spec.profile_length) == ("", 0)
    assert report.profile is not None
    assert 0 < report.profile.exec_ns[1] < ms(1000)
