"""Text encoder of the benchmarks: padding changes no embedding; the committed graph is the script's output."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array, encode_array
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.execution.batching import assemble_inputs, output_tensors
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.runtimes.onnx.onnx_runtime import OnnxRuntime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import OpenModel

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "benchmarks" / "models" / "text-encoder" / "1"


@pytest.fixture(scope="module")
def encoder() -> tuple[ModelSpec, OpenModel]:
    runtime = OnnxRuntime()
    spec = runtime.inspect(FOLDER)
    return spec, runtime.open(spec, FOLDER)


def embeddings(encoder: tuple[ModelSpec, OpenModel], texts: list[NDArray[np.int64]]) -> NDArray[np.float32]:
    """Return the embeddings [rows, width] of texts [rows, length], computed as one batch of the worker."""
    spec, model = encoder
    rows = sum(map(len, texts))
    longest = max(text.shape[1] for text in texts)
    columns = [
        [encode_array(name, array) for array in arrays]
        for name, arrays in (
            ("tokens", texts),
            ("mask", [np.ones(text.shape, np.float32) for text in texts]),
        )
    ]
    inputs = [
        (Tensor(column[0][0].name, column[0][0].datatype, (rows, longest), 0), [part for _, part in column])
        for column in columns
    ]
    shapes = [[header.shape for header, _ in column] for column in columns]
    size = spec.compiled_batch_size(rows)
    operation = LaneOperation(1, 0, "exec", spec.key, size, rows, inputs=inputs, shapes=shapes)
    space = Workspace()
    outputs = model.run(size, assemble_inputs(operation, True, space))
    [(header, buffer)] = output_tensors(operation, spec, outputs, space)
    vectors: NDArray[np.float32] = decode_array(header, buffer)
    return vectors


def test_a_row_of_a_padded_batch_has_the_embedding_it_has_alone(encoder: tuple[ModelSpec, OpenModel]) -> None:
    random = np.random.RandomState(0)
    texts = [random.randint(0, 30_000, (rows, length)) for rows, length in ((1, 3), (2, 40), (1, 1), (1, 17))]
    together = embeddings(encoder, texts)
    alone = np.concatenate([embeddings(encoder, [text]) for text in texts])
    assert together.shape == (5, encoder[0].outputs[0].shape[1])
    assert np.abs(together - alone).max() < 1e-4
    assert np.abs(alone[1] - alone[2]).max() > 0.1, "another text has another embedding"


def test_a_text_without_tokens_has_an_embedding_too(encoder: tuple[ModelSpec, OpenModel]) -> None:
    empty, text = np.zeros((1, 0), np.int64), np.ones((1, 4), np.int64)
    assert not embeddings(encoder, [text, empty])[1].any()


def test_it_is_served_as_a_padded_model_of_bounded_length(encoder: tuple[ModelSpec, OpenModel]) -> None:
    spec = encoder[0]
    assert (spec.padded, spec.max_length, spec.profile_length, spec.batch_sizes) == (True, 512, 16, (1, 2, 4, 8))
    assert spec.variable_dimensions == {"tokens": (1,), "mask": (1,)}


def test_the_committed_graph_is_what_the_script_makes() -> None:
    script = importlib.util.spec_from_file_location("export_text", ROOT / "models" / "export_text.py")
    assert script is not None
    assert script.loader is not None
    module: Any = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    ours, again = onnx.load(FOLDER / "model.onnx").graph, module.text_encoder().graph
    assert [node.op_type for node in again.node] == [node.op_type for node in ours.node]
    for mine, made in zip(ours.initializer, again.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(mine), numpy_helper.to_array(made))
