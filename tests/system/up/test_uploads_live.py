"""Models that Triton's clients upload to real processes, beside requests."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from fakes.key_entries import entry, write_keys
from harness.model_folders import a_graph, a_python_model
from harness.running_up import Up
from harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

DECLARED = {
    "backend": "onnxruntime",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["1"]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
}
CONFIG = json.dumps({**DECLARED, "max_batch_size": 4})
PROGRAM = b"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 100 + tensor)]) for tensor in tensors]
"""


def adds(amount: float) -> bytes:
    """Return an ONNX model that adds this to its input."""
    rows = TensorProto.FLOAT, ["rows", 1]
    node = helper.make_node("Add", ["x", "amount"], ["y"])
    constants = [("amount", np.array([amount], np.float32))]
    return a_graph(node, inputs={"x": rows}, outputs={"y": rows}, constants=constants)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    a_python_model(folder / "models", name="echo")
    keys = {
        "uploader": entry("uploader", infer=("*",), observe=True, manage=True, upload=True),
        "manager": entry("manager", infer=("*",), observe=True, manage=True),
    }
    write_keys(folder / "keys.toml", keys)
    options = "--no-tuner", "--no-profiler", "--workers", "2", "--set", "http.keys_file=keys.toml"
    up = Up(folder, "--models", str(folder / "models"), *options)
    yield up
    assert up.stop(signal.SIGTERM) == 0


class Client:
    """A client of Triton over one protocol, with a key."""

    def __init__(self, up: Up, protocol: str, key: str = "uploader") -> None:
        self.kind: Any = over_grpc if protocol == "grpc" else over_http
        self.client = self.kind.InferenceServerClient(up.ready[protocol].removeprefix("http://"))
        self.headers = {"authorization": f"Bearer {key}"}

    def load(self, model: str, **upload: Any) -> None:
        self.client.load_model(model, headers=self.headers, **upload)

    def infer(self, model: str, version: str = "") -> float:
        tensor = self.kind.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.array([[1]], np.float32))
        result = self.client.infer(model, [tensor], headers=self.headers, model_version=version)
        return float(result.as_numpy("y")[0, 0])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_uploaded_models_answer(up: Up, protocol: str) -> None:
    client, name = Client(up, protocol), f"adds-{protocol}"
    client.load(name, config=CONFIG, files={"file:1/model.onnx": adds(1)})
    assert client.infer(name) == 2
    versions = {"file:1/model.onnx": adds(10), "file:3/model.onnx": adds(30)}
    config = {**DECLARED, "max_batch_size": 4, "version_policy": {"all": {}}}
    client.load(name, config=json.dumps(config), files=versions)
    assert [client.infer(name), client.infer(name, "1"), client.infer(name, "3")] == [31, 11, 31]
    client.load(name, config=CONFIG.replace("onnxruntime", "python"), files={"file:1/model.py": PROGRAM})
    assert client.infer(name) == 101
    # the frontend says so, or the controller, until the frontend knows
    with pytest.raises(InferenceServerException, match=r"version '3'|/3': not served any more"):
        client.infer(name, "3")


def test_a_configuration_alone_takes_effect(up: Up) -> None:
    client = Client(up, "http")
    client.load("configured", config=CONFIG, files={"file:1/model.onnx": adds(1)})
    client.load("configured", config=json.dumps({**DECLARED, "max_batch_size": 2}))
    assert client.client.get_model_config("configured", headers=client.headers)["max_batch_size"] == 2
    assert client.infer("configured") == 2
    with pytest.raises(InferenceServerException, match=r"'echo' is described by model\.toml"):
        client.load("echo", config=CONFIG)
    with pytest.raises(InferenceServerException, match="'nope' is unknown"):
        client.load("nope", config=CONFIG)


@pytest.mark.parametrize(
    ("config", "content", "reason"),
    [
        (CONFIG, b"no model", "Protobuf parsing failed|onnx"),
        (CONFIG.replace("TYPE_FP32", "TYPE_NONE"), adds(1), "TYPE_NONE"),
        (CONFIG.replace("max_batch_size", "most"), adds(1), "most"),
        (CONFIG.replace('"x"', '"z"'), adds(1), "'z'|'x'"),
        (json.dumps({**DECLARED, "name": "other"}), adds(1), "other"),
    ],
)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_reason_says_why_an_upload_is_not_served(
    up: Up, protocol: str, config: str, content: bytes, reason: str
) -> None:
    client = Client(up, protocol)
    with pytest.raises(InferenceServerException, match=reason) as caught:
        client.load("mended", config=config, files={"file:1/model.onnx": content})
    index = Client(up, "http").client.get_model_repository_index(headers=client.headers)
    assert str(up.folder) not in f"{caught.value} {index}", "where the repository is, is of no use to clients"
    assert " mended/1" in f" {caught.value.message()}" or "mended/config.pbtxt" in caught.value.message()
    client.load("mended", config=CONFIG, files={"file:1/model.onnx": adds(5)})
    assert client.infer("mended") == 6


def test_a_model_that_an_upload_breaks_answers_as_before(up: Up) -> None:
    client = Client(up, "grpc")
    client.load("good", config=CONFIG, files={"file:1/model.onnx": adds(4)})
    with pytest.raises(InferenceServerException, match="onnx"):
        client.load("good", config=CONFIG, files={"file:1/model.onnx": b"no model"})
    assert client.infer("good") == 5


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_manager_without_upload(up: Up, protocol: str) -> None:
    client = Client(up, protocol, "manager")
    with pytest.raises(InferenceServerException, match="not supported without a key that permits `upload`"):
        client.load("secret", config=CONFIG, files={"file:1/model.onnx": adds(1)})
    with pytest.raises(InferenceServerException, match="secret"):
        client.infer("secret")


def test_each_answer_is_of_the_model_before_or_of_the_new_one(up: Up) -> None:
    loader = Client(up, "http")
    loader.load("served", config=CONFIG, files={"file:1/model.onnx": adds(0)})
    loaded, answers, ended = [0], list[tuple[int, float]](), threading.Event()

    def ask() -> None:
        client = Client(up, "grpc")
        while not ended.is_set():
            since = loaded[0]
            answers.append((since, client.infer("served") - 1))

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        try:
            for number in range(1, 11):
                before = len(answers)
                loader.load("served", config=CONFIG, files={"file:1/model.onnx": adds(number)})
                loaded[0] = number
                until(lambda before=before: len(answers) >= before + 8)  # type: ignore[misc]
        finally:
            ended.set()
        for each in asking:
            each.result()
    assert all(since <= answer <= 10 and answer == int(answer) for since, answer in answers), answers[:10]
    assert {answer for _, answer in answers} >= {10}


def test_an_upload_stays_when_workers_start_again(up: Up) -> None:
    client = Client(up, "http")
    client.load("kept", config=CONFIG, files={"file:1/model.onnx": adds(2)})
    assert client.infer("kept") == 3
    for name in ("worker-0", "worker-1"):
        os.kill(up.ready["processes"][name], signal.SIGKILL)
    assert until(lambda: client.infer("kept"), retry=(InferenceServerException,)) == 3
