"""Triton's clients, unchanged, use a running system over gRPC: blocking, asynchronous and as a stream."""

from __future__ import annotations

import asyncio
import queue
import signal
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from harness.model_folders import a_folder, a_python_model, onnx_bytes
from harness.running_up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENT_MS = 10_000
WORDS = ["cat", "d\xf6g", "", "x\0", "😀"]
SLEEPER = """
import time

class Model:
    def predict_batch(self, inputs):
        time.sleep(0.2)
        return {"y": inputs["x"]}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    a_python_model(folder / "models", name="echo")
    a_python_model(folder / "models", SLEEPER, "sleeper", batch_sizes=[1])
    a_folder(folder / "models", "text", model_onnx=onnx_bytes(["rows"], datatype=TensorProto.STRING))
    up = Up(folder, "--no-tuner", "--no-profiler")
    yield up
    assert up.stop(signal.SIGTERM) == 0


@pytest.fixture
def client(up: Up) -> Iterator[Any]:
    with triton.InferenceServerClient(up.ready["grpc"]) as client:
        yield client


def floats(fill: float = 1.0, rows: int = 1, module: Any = triton) -> Any:
    tensor = module.InferInput("x", [rows, 4], "FP32")
    tensor.set_data_from_numpy(np.full((rows, 4), fill, np.float32))
    return tensor


def infer(client: Any, model: str, *inputs: Any, slo_ms: int = PATIENT_MS, **options: Any) -> Any:
    return client.infer(model, list(inputs), parameters={"slo_ms": slo_ms}, **options)


def test_descriptions(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata().name == "horologe"
    assert [tensor.datatype for tensor in client.get_model_metadata("text").inputs] == ["BYTES"]
    assert client.get_model_config("echo").config.input[0].name == "x"
    assert {model.name for model in client.get_model_repository_index().models} == {"echo", "sleeper", "text"}


def test_numbers_and_strings_arrive_as_they_were_sent(client: Any) -> None:
    result = infer(client, "echo", floats(3, rows=2), request_id="mine")
    assert result.as_numpy("y").tolist() == [[3.0] * 4] * 2
    assert result.get_response().id == "mine"
    words = triton.InferInput("x", [len(WORDS)], "BYTES")
    words.set_data_from_numpy(np.array([word.encode() for word in WORDS], object))
    assert [item.decode() for item in infer(client, "text", words).as_numpy("y")] == WORDS
    outputs = [triton.InferRequestedOutput("y", class_count=1)]
    assert infer(client, "echo", floats(), outputs=outputs).as_numpy("y").tolist() == [[b"1.000000:0"]]
    assert client.get_inference_statistics("echo").model_stats[0].inference_stats.success.count >= 2


def test_typed_contents(up: Up) -> None:
    """A client that sends no raw contents, such as KServe's."""
    request = triton.service_pb2.ModelInferRequest(model_name="echo")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1, 2, 3, 4])
    request.parameters["slo_ms"].double_param = PATIENT_MS
    with grpc.insecure_channel(up.ready["grpc"]) as channel:
        response = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [1, 2, 3, 4]
    assert health.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("model", "options", "code", "words"),
    [
        ("nope", {}, "NOT_FOUND", "model: got 'nope'"),
        ("text", {}, "INVALID_ARGUMENT", "input 'x': datatype: got FP32, wanted BYTES"),
        ("echo", {"model_version": "7"}, "NOT_FOUND", "version '7'"),
        ("echo", {"timeout": -1}, "INVALID_ARGUMENT", "parameters.timeout"),
        ("sleeper", {"slo_ms": 20}, "RESOURCE_EXHAUSTED", "deadline"),
        ("sleeper", {"client_timeout": 0.02}, "RESOURCE_EXHAUSTED", "deadline"),
    ],
)
def test_errors(client: Any, model: str, options: dict[str, Any], code: str, words: str) -> None:
    if model == "sleeper":
        infer(client, "sleeper", floats())  # from now on its time is known
    with pytest.raises(InferenceServerException) as caught:
        infer(client, model, floats(), **options)
    assert caught.value.status() in (f"StatusCode.{code}", "StatusCode.DEADLINE_EXCEEDED")
    assert words in caught.value.message() or "Deadline Exceeded" in caught.value.message()


def test_wrong_shapes_name_the_input(client: Any) -> None:
    tensor = triton.InferInput("x", [1, 5], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 5), np.float32))
    with pytest.raises(InferenceServerException, match=r"input 'x': shape: got \[1, 5\], wanted \[-1, 4\]"):
        infer(client, "echo", tensor)


def test_a_cancelled_request_ends_and_the_next_one_is_served(up: Up, client: Any) -> None:
    ended: queue.Queue[Any] = queue.Queue()
    for _ in range(5):
        call = client.async_infer("sleeper", [floats()], lambda result, error: ended.put(error))
        call.cancel()
        assert "CANCELLED" in str(ended.get(timeout=10).status())
    assert infer(client, "echo", floats()).as_numpy("y").tolist() == [[1.0] * 4]


def test_models_are_loaded_again(client: Any) -> None:
    client.load_model("text")
    client.unload_model("text")
    assert not client.is_model_ready("text")
    client.load_model("text")
    assert client.is_model_ready("text")
    with pytest.raises(InferenceServerException, match="not supported without a key that permits `upload`"):
        client.load_model("text", config="{}")


def test_a_stream_keeps_the_order(client: Any) -> None:
    results: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    models = ["sleeper", "echo", "nope", "echo"]
    for number, model in enumerate(models):
        client.async_stream_infer(model, [floats(number)], parameters={"slo_ms": PATIENT_MS})
    answers = [results.get(timeout=20) for _ in models]
    client.stop_stream()
    values = [result and float(result.as_numpy("y")[0, 0]) for result, _ in answers]
    assert values == [0.0, 1.0, None, 3.0]
    assert answers[2][1].message().startswith("UNKNOWN_MODEL: ")


def test_the_asynchronous_client(up: Up) -> None:
    async def run() -> list[float]:
        async with triton_aio.InferenceServerClient(up.ready["grpc"]) as client:
            calls = [
                client.infer("echo", [floats(number, module=triton_aio)], parameters={"slo_ms": PATIENT_MS})
                for number in range(50)
            ]
            return [float(result.as_numpy("y")[0, 0]) for result in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == list(range(50))


def test_grpc_can_be_switched_off(tmp_path: Any) -> None:
    a_python_model(tmp_path / "models")
    up = Up(tmp_path, "--grpc", "off", "--no-tuner", "--no-profiler")
    try:
        assert up.ready["grpc"] == ""
        assert "grpc" not in up.read_log()
    finally:
        up.stop(signal.SIGTERM)


def test_a_shutdown_answers_the_calls_in_progress(tmp_path: Any) -> None:
    a_python_model(tmp_path / "models", SLEEPER, "sleeper", batch_sizes=[1])
    up = Up(tmp_path, "--no-tuner", "--no-profiler")
    ended: queue.Queue[Any] = queue.Queue()
    try:
        with triton.InferenceServerClient(up.ready["grpc"]) as client:
            infer(client, "sleeper", floats())
            for _ in range(3):
                parameters = {"slo_ms": PATIENT_MS}
                client.async_infer("sleeper", [floats()], lambda result, error: ended.put(error), parameters=parameters)
            assert ended.get(timeout=10) is None  # the others have arrived too
            up.process.send_signal(signal.SIGTERM)
            assert [ended.get(timeout=10) for _ in range(2)] == [None] * 2
        assert up.process.wait(20) == 0
    finally:
        up.stop(signal.SIGKILL)
