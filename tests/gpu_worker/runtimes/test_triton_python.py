"""The adapter of a TritonPythonModel, in the process of the test."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import horologe_gpu_worker.runtimes.python as python_runtime
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import ModelFailed
from horologe_gpu_worker.core.stream_step import Step
from horologe_gpu_worker.runtimes.open_streams import OpenStreams
from horologe_gpu_worker.runtimes.python import triton_stream
from horologe_gpu_worker.runtimes.python.triton_model import MODULE, TritonModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Execute = Callable[[Any, list[Any]], Any]

SPEC = ModelSpec("m", "3", "python", (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),), (1, 2))
X = {"x": np.array([[1, 2]], np.float32)}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(python_runtime.__path__[0]) / "importable"))
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE)


def a_model(folder: Path, execute: Execute, device: str = "cpu") -> tuple[TritonModel, dict[str, str]]:
    """Return a model with this method, and the arguments of its `initialize`."""
    arguments: dict[str, str] = {}
    methods = {"initialize": lambda self, given: arguments.update(given), "execute": execute}
    return TritonModel(type("TritonPythonModel", (), methods), SPEC, folder / "m" / "3", device), arguments


def test_a_response_becomes_the_outputs(backend: Any, tmp_path: Path) -> None:
    async def execute(model: Any, requests: list[Any]) -> list[Any]:
        (request,) = requests
        assert request.requested_output_names() == ["y"]
        x = backend.get_input_tensor_by_name(request, "x")
        assert backend.get_input_tensor_by_name(request, "z") is None
        array = x.as_numpy()
        array += 1  # inputs may be written to
        return [backend.InferenceResponse([backend.Tensor.from_dlpack("y", x)])]

    model, _ = a_model(tmp_path, execute)
    read_only = X["x"].copy()
    read_only.flags.writeable = False
    assert model.predict_batch({"x": read_only})["y"].tolist() == [[2, 3]]
    assert read_only.tolist() == [[1, 2]]


def test_an_error_fails_its_request_alone(backend: Any, tmp_path: Path) -> None:
    sizes: list[int] = []

    def execute(model: Any, requests: list[Any]) -> list[Any]:
        answers = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            sizes.append(len(x))
            wrong = backend.TritonError("negative") if x[0, 0] < 0 else None
            y = x[:, :1] if x[0, 0] == 7 else x + x.max()
            answers.append(backend.InferenceResponse([backend.Tensor("y", y)], wrong))
        return answers

    model, _ = a_model(tmp_path, execute)
    x = np.array([[-1, 0], [-1, 0], [1, 2], [7, 7], [3, 4], [5, 6], [5, 6], [5, 6]], np.float32)
    outputs, failed = model.predict_requests({"x": x}, (2, 1, 1, 2), 8)
    assert sizes == [2, 1, 1, 2]  # the padding is no request
    assert failed == {0: "negative", 2: "output 'y': shape: got [1, 1], wanted [1, 2]"}
    assert outputs["y"][[2, 4, 5]].tolist() == [[3, 4], [9, 10], [11, 12]]
    assert outputs["y"].shape == (8, 2)
    assert model.predict_requests({"x": x[:2]}, (1, 1), 2) == ({}, {0: "negative", 1: "negative"})


def test_objects_become_text(backend: Any, tmp_path: Path) -> None:
    values = np.array([b"\xff", "\xe9", 3], np.object_)
    model, _ = a_model(
        tmp_path, lambda model, requests: [backend.InferenceResponse(output_tensors=[backend.Tensor("y", values)])]
    )
    assert model.predict_batch(X)["y"].tolist() == [b"\xff", "\xe9", "3"]


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        (lambda model, requests: None, "execute: got NoneType, wanted a list of 1 InferenceResponse"),
        (lambda model, requests: [], "execute: got 0 responses, wanted a list of 1"),
        (lambda model, requests: ["y"], "execute: got str, wanted an InferenceResponse"),
        (lambda model, requests: requests[0].flags(), "InferenceRequest.flags is not supported"),
    ],
)
def test_what_is_no_response_fails(execute: Execute, text: str, backend: Any, tmp_path: Path) -> None:
    with pytest.raises((ModelFailed, backend.TritonModelException), match=text):
        a_model(tmp_path, execute)[0].predict_batch(X)


def streams_of(folder: Path, execute: Execute) -> OpenStreams:
    """Return the streams of a decoupled model."""
    return OpenStreams(a_model(folder, execute)[0].predict_stream, 1)


def test_a_decoupled_model_rests_between_its_steps(backend: Any, tmp_path: Path) -> None:
    sent: list[int] = []

    def execute(model: Any, requests: list[Any]) -> None:
        (request,) = requests
        sender = request.get_response_sender()
        for number in (1, 2):
            sent.append(number)
            sender.send(backend.InferenceResponse([backend.Tensor("y", np.array([[number]]))]), flags=number - 1)
        sent.append(3)

    streams = streams_of(tmp_path, execute)
    item, more = streams.step(Step("s", 1, 1), X)
    assert (item["y"].tolist(), more, sent) == ([[1]], True, [1])
    item, more = streams.step(Step("s", 1, 2), {})
    assert (item["y"].tolist(), more, sent) == ([[2]], False, [1, 2, 3])


def test_execute_ends_with_its_stream(backend: Any, tmp_path: Path) -> None:
    ended: list[bool] = []

    def execute(model: Any, requests: list[Any]) -> None:
        try:
            while True:
                try:
                    requests[0].get_response_sender().send(backend.InferenceResponse([]))
                except Exception:
                    ended.append(False)
        finally:
            ended.append(requests[0].is_cancelled())

    streams = streams_of(tmp_path, execute)
    assert streams.step(Step("s", 1, 1), X) == ({}, True)
    streams.end("s")
    assert ended == [True]


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        (lambda model, requests: [], "execute: got list, wanted None"),
        (lambda model, requests: 1 / 0, "division by zero"),
        (lambda model, requests: requests[0].get_response_sender().send(3), "execute: got int, wanted an Inference"),
    ],
)
def test_a_decoupled_model_that_fails(execute: Execute, text: str, backend: Any, tmp_path: Path) -> None:
    streams = streams_of(tmp_path, execute)
    with pytest.raises((ModelFailed, ZeroDivisionError), match=text):
        streams.step(Step("s", 1, 1), X)
    assert len(streams) == 0


def test_a_thread_of_the_model_sends_nothing_after_the_end(backend: Any, tmp_path: Path) -> None:
    senders: list[Any] = []
    threads: list[threading.Thread] = []

    def execute(model: Any, requests: list[Any]) -> None:
        senders.append(requests[0].get_response_sender())
        threads.append(
            threading.Thread(target=lambda: [senders[0].send(backend.InferenceResponse()) for _ in range(9)])
        )
        threads[0].start()

    streams = streams_of(tmp_path, execute)
    assert streams.step(Step("s", 1, 1), X) == ({}, True)
    assert not senders[0].is_cancelled()
    streams.end("s")
    threads[0].join(10)
    assert senders[0].is_cancelled()
    assert not threads[0].is_alive()


def test_a_step_without_a_response_ends_without_an_item(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_stream, "WAIT_S", 0.01)
    streams = streams_of(tmp_path, lambda model, requests: None)
    assert streams.step(Step("s", 1, 1), X) == (None, True)


def test_an_error_is_the_answer(backend: Any, tmp_path: Path) -> None:
    error = backend.TritonError("no", backend.TritonError.INVALID_ARG)
    model, _ = a_model(tmp_path, lambda model, requests: [backend.InferenceResponse(error=error)])
    with pytest.raises(ModelFailed, match=r"^no$"):
        model.predict_batch(X)


@pytest.mark.parametrize(
    ("config", "device", "kind", "number"),
    [
        ("", "cpu", "CPU", "0"),
        ("instance_group { kind: KIND_GPU }", "cuda", "GPU", "0"),
        ("instance_group { kind: KIND_GPU }", "cpu", "CPU", "0"),
    ],
)
def test_initialize_gets_the_configuration_and_the_device(
    config: str, device: str, kind: str, number: str, backend: Any, tmp_path: Path
) -> None:
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: 2 } output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    (tmp_path / "m" / "3").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "python" max_batch_size: 2 {tensors} {config}')
    _, arguments = a_model(tmp_path, lambda model, requests: [], device)
    document = json.loads(arguments.pop("model_config"))
    assert backend.get_output_config_by_name(document, "y")["dims"] == [2]
    assert (document["name"], document["max_batch_size"]) == ("m", 2)
    assert not backend.using_decoupled_model_transaction_policy(document)
    assert arguments == {
        "model_instance_kind": kind,
        "model_instance_device_id": number,
        "model_instance_name": "m_0_0",
        "model_name": "m",
        "model_repository": str(tmp_path / "m"),
        "model_version": "3",
    }


def test_types_have_tritons_numbers(backend: Any) -> None:
    for number, (name, kind) in enumerate(backend.TYPES.items(), 1):
        assert backend.triton_to_numpy_type(number) is kind
        assert backend.numpy_to_triton_type(kind) == number
        assert np.dtype(backend.triton_string_to_numpy(f"TYPE_{name}")) == np.dtype(kind)
    assert backend.Tensor("s", np.array([b"a"])).triton_dtype() == 13
    with pytest.raises(backend.TritonModelException, match=r"wanted an array of numbers, or np\.object_ for text"):
        backend.Tensor("s", np.array(["a"]))


def test_strings_are_serialized_with_their_lengths(backend: Any) -> None:
    array = np.array([[b"a\0", "\xe9"], [b"", "b"]], np.object_)
    serialized = backend.serialize_byte_tensor(array)
    assert backend.deserialize_bytes_tensor(serialized).tolist() == [b"a\0", "\xe9".encode(), b"", b"b"]
    assert backend.serialize_byte_tensor(np.zeros(2)) is None


def test_a_name_that_is_missing_is_refused(backend: Any) -> None:
    with pytest.raises(backend.TritonModelException, match="MetricFamily is not supported"):
        _ = backend.MetricFamily
    assert backend.refusals.pop() == "triton_python_backend_utils: MetricFamily is not supported"
