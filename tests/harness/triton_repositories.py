"""Small Triton repositories, written from Triton's documentation: what each answers, or what of it is missing."""

from __future__ import annotations

import io
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from harness.model_folders import onnx_bytes

if TYPE_CHECKING:
    from pathlib import Path

ADD_SUB = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        output0 = pb_utils.get_output_config_by_name(model_config, "SUM")
        self.dtype = pb_utils.triton_string_to_numpy(output0["data_type"])
        self.factor = int(model_config["parameters"]["factor"]["string_value"])
        assert args["model_version"] == "1" and args["model_instance_kind"] == "CPU"

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            if (a < 0).any():
                error = pb_utils.TritonError("A is negative")
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            total = pb_utils.Tensor("SUM", ((a + b) * self.factor).astype(self.dtype))
            responses.append(pb_utils.InferenceResponse(output_tensors=[total]))
        return responses

    def finalize(self):
        print("cleaning up")
"""
UPPER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            (text,) = request.inputs()
            upper = np.array([item.decode().upper() for item in text.as_numpy().ravel()], np.object_)
            tensor = pb_utils.Tensor("UPPER", upper.reshape(text.as_numpy().shape))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""
DEFAULTS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            total = pb_utils.get_input_tensor_by_name(request, "A").as_numpy() + 1
            other = pb_utils.get_input_tensor_by_name(request, "B")
            if other is not None:
                total += other.as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
        return answers
"""
BLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        request = pb_utils.InferenceRequest(model_name="plain", requested_output_names=["y"], inputs=[])
        return [request.exec() for _ in requests]
"""
REPEAT = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        import json
        assert pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if values[0] < 0:
                error = pb_utils.TritonError("IN is negative")
                sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            threading.Thread(target=self.answer, args=(sender, values)).start()

    def answer(self, sender, values):
        for value in values:
            if sender.is_cancelled():
                return
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
VECTOR = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
FOUR = [[1.0, 2.0, 3.0, 4.0]]


class TritonCase(NamedTuple):
    """A model: its configuration, its files, and an answer or the text that says what is missing."""

    config: str
    files: dict[str, bytes]
    """Path below the model's folder -> content."""
    inputs: dict[str, Any] = {}  # noqa: RUF012
    """Values of float32, or strings."""
    outputs: dict[str, Any] = {}  # noqa: RUF012
    missing: str = ""
    note: str = ""
    """Text in the notes of the model."""
    versions: tuple[str, ...] = ("1",)


def triton_cases() -> dict[str, TritonCase]:
    """Return the models by name."""
    identity = onnx_bytes()
    return {
        "plain": TritonCase(
            'name: "plain"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
            + VECTOR.replace('"y"', '"y" label_filename: "y_labels.txt"')
            + "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 100 }\n"
            + "instance_group [ { count: 2 kind: KIND_CPU } ]\nresponse_cache { enable: true }\n"
            + 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'
            + 'model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" '
            + "value: { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]\n",
            {"1/model.onnx": identity, "y_labels.txt": b"zero\n\ntwo\ntr\xc3\xaas\n"},
            {"x": FOUR},
            {"y": FOUR},
            note="instance_group (kind, count): not needed",
        ),
        "reshaped": TritonCase(
            'backend: "onnxruntime"\nmax_batch_size: 4\ndefault_model_filename: "net.onnx"\n'
            'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape: { shape: [ 4 ] } } ]\n'
            'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4, 1 ] reshape: { shape: [ 4 ] } } ]\n',
            {"1/net.onnx": identity},
            {"x": [[[1.0, 2.0], [3.0, 4.0]]]},
            {"y": [[[1.0], [2.0], [3.0], [4.0]]]},
        ),
        "unbatched": TritonCase(
            'platform: "onnxruntime_onnx"\nmax_batch_size: 0\n' + VECTOR.replace("[ 4 ]", "[ 3, 4 ]"),
            {"1/model.onnx": identity},
            {"x": FOUR * 3},
            {"y": FOUR * 3},
        ),
        "newest": TritonCase(
            VECTOR + 'max_batch_size: 2\nplatform: "onnxruntime_onnx"\n',
            {f"{version}/model.onnx": identity for version in ("2", "9", "10")},
            {"x": FOUR},
            {"y": FOUR},
            versions=("10",),
        ),
        "chosen": TritonCase(
            VECTOR + 'max_batch_size: 2\nbackend: "onnxruntime"\nversion_policy { specific { versions: [ 1, 3 ] } }\n',
            {f"{version}/model.onnx": identity for version in ("1", "2", "3")} | {"warmup/data": b"\0"},
            {"x": FOUR},
            {"y": FOUR},
            versions=("1", "3"),
        ),
        "add": TritonCase(
            'backend: "python"\nmax_batch_size: 4\n'
            'input [ { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
            'output [ { name: "SUM" data_type: TYPE_INT64 dims: [ 2 ] } ]\n'
            'parameters { key: "factor" value { string_value: "10" } }\n',
            {"1/model.py": ADD_SUB.encode()},
            {"A": [[1.0, 2.0]], "B": [[3.0, 4.0]]},
            {"SUM": [[40, 60]]},
        ),
        "upper": TritonCase(
            'backend: "python"\nmax_batch_size: 4\ndynamic_batching { }\n'
            'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }\n'
            'output { name: "UPPER" data_type: TYPE_STRING dims: [ 1 ] }\n',
            {"1/model.py": UPPER.encode()},
            {"TEXT": [["caf\xe9"]]},
            {"UPPER": [["CAF\xc9"]]},
        ),
        "optional": TritonCase(
            'backend: "python"\nmax_batch_size: 4\ndynamic_batching { }\n'
            'input [ { name: "A" data_type: TYPE_FP32 dims: [ 2 ] },\n'
            '  { name: "B" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]\n'
            'output { name: "SUM" data_type: TYPE_FP32 dims: [ 2 ] }\n',
            {"1/model.py": DEFAULTS.encode()},
            {"A": [[1.0, 2.0]]},
            {"SUM": [[2.0, 3.0]]},
        ),
        "chain": TritonCase(
            'platform: "ensemble"\nmax_batch_size: 4\n'
            'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
            'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "out.txt" } ]\n'
            'model_warmup { name: "w" inputs {\n'
            '  key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }\n'
            "ensemble_scheduling { step [\n"
            '  { model_name: "chosen" model_version: 1 input_map { key: "x" value: "middle" }\n'
            '    output_map { key: "y" value: "OUT" } },\n'
            '  { model_name: "plain" model_version: -1 input_map { key: "x" value: "IN" }\n'
            '    output_map { key: "y" value: "middle" } } ] }\n',
            {"1/.keep": b""},
            {"IN": FOUR},
            {"OUT": FOUR},
        ),
        "bls": TritonCase(
            'backend: "python"\n' + VECTOR, {"1/model.py": BLS.encode()}, missing="calls of other models from a model"
        ),
        "sequence": TritonCase(
            'backend: "onnxruntime"\nmax_batch_size: 4\nsequence_batching { max_sequence_idle_microseconds: 5000000 }\n'
            + VECTOR,
            {"1/model.onnx": identity},
            missing="sequence_batching: no state is kept between requests",
        ),
        "decoupled": TritonCase(
            'backend: "onnxruntime"\nmodel_transaction_policy { decoupled: True }\n' + VECTOR,
            {"1/model.onnx": identity},
            missing="model_transaction_policy.decoupled: only models of the backend python stream, got 'onnxruntime'",
        ),
        "unknown": TritonCase(
            'backend: "onnxruntime"\nmax_batch_sizes: 4\n' + VECTOR,
            {"1/model.onnx": identity},
            missing='has no field named "max_batch_sizes"',
        ),
        "unlabelled": TritonCase(
            'backend: "onnxruntime"\nmax_batch_size: 4\n' + VECTOR.replace('"y"', '"y" label_filename: "names/y.txt"'),
            {"1/model.onnx": identity},
            missing="output.label_filename: 'y': got 'names/y.txt', wanted a file beside config.pbtxt",
        ),
        "engine": TritonCase(
            'platform: "tensorrt_plan"\nmax_batch_size: 4\n' + VECTOR,
            {"1/model.plan": b"\0"},
            missing="platform: got 'tensorrt_plan', wanted one of onnxruntime, pytorch, python, ensemble",
        ),
    }


def a_decoupled_case() -> TritonCase:
    """Return a model that sends a response for each value of its input, from a thread of its own."""
    return TritonCase(
        'backend: "python"\nmodel_transaction_policy { decoupled: True }\n'
        'input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }\n'
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }\n',
        {"1/model.py": REPEAT.encode()},
    )


def a_torchscript_case() -> TritonCase:
    """Return a TorchScript model of two inputs and outputs, whose names are in another order than its arguments.

    Skips the test if PyTorch is not installed.
    """
    return TritonCase(
        'platform: "pytorch_libtorch"\nmax_batch_size: 4\n'
        'input [ { name: "b" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "a" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
        'output { name: "OUT__1" data_type: TYPE_FP32 dims: [ 2 ] }\n'
        'output { name: "OUT__0" data_type: TYPE_FP32 dims: [ 2 ] }\n',
        {"1/model.pt": torchscript_bytes()},
        {"a": [[1.0, 2.0]], "b": [[10.0, 20.0]]},
        {"OUT__0": [[-9.0, -18.0]], "OUT__1": [[11.0, 22.0]]},
    )


@cache
def torchscript_bytes() -> bytes:
    """Return a module with `forward(a, b)`: their difference and their sum."""
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    example = torch.zeros(1, 2), torch.zeros(1, 2)

    class AddSub(torch.nn.Module):  # type: ignore[misc]
        def forward(self, a: Any, b: Any) -> Any:
            return a - b, a + b

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(AddSub(), example), file)
    return file.getvalue()


def write_case(repository: Path, name: str, case: TritonCase) -> Path:
    """Write a model and return its folder."""
    folder = repository / name
    for path, content in case.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "config.pbtxt").write_text(case.config)
    return folder


def case_arrays(case: TritonCase) -> dict[str, Any]:
    """Return the inputs of a case as a model gets them."""
    return {name: _array(values) for name, values in case.inputs.items()}


def _array(values: Any) -> Any:
    array = np.array(values, np.object_)
    if isinstance(array.ravel()[0], str):
        return np.array([item.encode() for item in array.ravel()], np.object_).reshape(array.shape)
    return array.astype(np.float32)


def as_lists(outputs: Any) -> dict[str, Any]:
    """Return outputs as lists, and strings as text."""
    return {
        name: np.array([item.decode() if isinstance(item, bytes) else item for item in array.ravel()], np.object_)
        .reshape(array.shape)
        .tolist()
        for name, array in outputs.items()
    }
