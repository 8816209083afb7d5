"""Tensors of a batch: parts are joined and padded, and outputs outlive the workspace."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.executor_harness import an_exec
from gpu_worker.worker_builders import an_input
from harness.builders import a_spec
from horologe_common.models import TensorSpec
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import Operation
from horologe_gpu_worker.execution.batching import assemble_inputs, output_tensors
from horologe_gpu_worker.execution.workspace import Workspace


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 3))
def test_parts_are_joined_in_order_and_padded_with_the_last_row(rows: list[list[int]], shift: int) -> None:
    """A part of a concatenated frame may begin at any byte."""
    parts = []
    for part in rows:
        raw = an_input([float(value) for value in part]).tobytes()
        parts.append(memoryview(bytes(shift) + raw)[shift:])
    count = sum(map(len, rows))
    header = encode_array("x", np.zeros((count, 4), np.float32))[0]
    operation = Operation(1, 0, "exec", "sum/1", 16, count, inputs=[(header, parts)])
    space = Workspace()
    for _ in range(2):  # the second time the space is not clean
        x = assemble_inputs(operation, True, space)["x"]
        assert x.flags.aligned
        true = [float(value) for part in rows for value in part]
        assert x.sum(1).tolist() == true + true[-1:] * (16 - count)
        space.allocate(64)[:] = 255


def test_strings_are_joined_and_padded_with_the_last_one() -> None:
    header, buffer = encode_array("x", np.array([[b"a"], [b"bc"]], object))
    operation = Operation(1, 0, "exec", "m/1", 4, 2, inputs=[(header, [buffer])])
    assert assemble_inputs(operation, True, Workspace())["x"].tolist() == [[b"a"], [b"bc"], [b"bc"], [b"bc"]]


def test_what_a_model_passes_through_outlives_the_workspace() -> None:
    spec = msgspec.structs.replace(a_spec(), outputs=(TensorSpec("y", "FP32", (-1, 4)),))
    space = Workspace()
    operation = an_exec([1, 2, 3])
    x = assemble_inputs(operation, True, space)["x"]
    [(_, buffer)] = output_tensors(operation, spec, {"y": x}, space)
    x[:] = 0
    assert np.frombuffer(buffer, np.float32).reshape(3, 4).sum(1).tolist() == [1, 2, 3]
