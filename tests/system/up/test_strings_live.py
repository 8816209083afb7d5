"""Strings and rows on real processes: SDK, HTTP, pipelines and applications carry the same text to the models."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from onnx import TensorProto, helper

from harness.model_folders import a_folder
from harness.running_up import Up
from horologe import Application, Client, InvalidInput, ModelFailed
from horologe_common.string_tensors import join_strings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = ["cat", "d\xf6g", "", "a\0b", "x\0", "😀", "n" * 50_000]
PATIENT_MS = 10_000
PYTHON = """
batch_sizes = [1, 8]
inputs = [{ name = "x", datatype = "BYTES", shape = [-1] }]
outputs = [{ name = "y", datatype = "BYTES", shape = [-1] }]
"""
REVERSED = """
class Model:
    def predict_batch(self, inputs):
        return {"y": [bytes(reversed(item)) for item in inputs["x"]]}
"""
PIPELINE = """
[twice]
slo = "10s"
inputs = [{ name = "x", datatype = "BYTES", shape = [-1] }]
outputs = [{ name = "y", datatype = "BYTES", shape = [-1] }]
max_rows = 8
"""
DRIVER = """
async def run(call, inputs):
    first = await call("text", inputs)
    second = await call("text", {"x": [item.decode() for item in first["y"]]})
    return {"y": second["y"]}
"""
CONFIG = "max_batch_size: 8\nversion_policy: { latest: { num_versions: 1 } }\n"


def a_graph(*nodes: Any, kind: int, dims: list[str]) -> bytes:
    ends = [helper.make_tensor_value_info(name, kind, dims) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(list(nodes), "graph", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    models: Path = folder / "models"
    identity = helper.make_node("Identity", ["x"], ["y"])
    text = a_graph(identity, kind=TensorProto.STRING, dims=["rows"])
    a_folder(models, "text", "cache = true\n", model_onnx=text)
    (models / "text" / "config.pbtxt").write_text(CONFIG)
    a_folder(models, "bytes", PYTHON, model_py=REVERSED)
    centred = [helper.make_node("ReduceMean", ["x"], ["m"], keepdims=1), helper.make_node("Sub", ["x", "m"], ["y"])]
    a_folder(models, "waveform", model_onnx=a_graph(*centred, kind=TensorProto.FLOAT, dims=["samples"]))
    pipelines = models / "pipelines"
    pipelines.mkdir()
    (pipelines / "pipeline.toml").write_text(PIPELINE)
    (pipelines / "twice.py").write_text(DRIVER)
    up = Up(folder)
    yield up
    up.stop(signal.SIGKILL)


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.ready["clients"][0]) as client:
        client.declare(Application("app", ("text",), PATIENT_MS, task="any"))
        yield client


@pytest.mark.parametrize("target", ["text", "twice", "app"])
def test_text_arrives_as_it_was_sent(target: str, up: Up, client: Client) -> None:
    application: Any = {"application": target} if target == "app" else {}
    model = "" if target == "app" else target
    for value in (WORDS, np.array(WORDS, object), [word.encode() for word in WORDS]):
        outputs = client.predict_full(model, {"x": value}, slo_ms=PATIENT_MS, **application).outputs
        assert [item.decode() for item in outputs["y"]] == WORDS
    inputs = [{"name": "x", "datatype": "BYTES", "shape": [len(WORDS)], "data": WORDS}]
    body = {"inputs": inputs, "parameters": {"slo_ms": PATIENT_MS}}
    status, content = up.http("POST", f"{up.ready['http']}/v2/models/{target}/infer", json.dumps(body).encode())
    assert (status, json.loads(content)["outputs"][0]["data"]) == (200, WORDS)


def test_text_of_every_client_has_one_entry_in_the_cache(up: Up, client: Client) -> None:
    assert not client.predict_full("text", ["only d\xf6gs"], slo_ms=PATIENT_MS).cached
    assert client.predict_full("text", np.array(["only d\xf6gs".encode()], object), slo_ms=PATIENT_MS).cached


def test_a_bad_element_fails_its_own_request_only(client: Client) -> None:
    good = [client.submit("text", [f"good {number}"], slo_ms=PATIENT_MS) for number in range(20)]
    bad = [client.submit("text", [b"fine", b"\xff"], slo_ms=PATIENT_MS) for _ in range(5)]
    good += [client.submit("text", [f"more {number}"], slo_ms=PATIENT_MS) for number in range(20)]
    for request in bad:
        with pytest.raises(InvalidInput, match=r"input 'x': BYTES: element \[1\]"):
            request.result()
    assert [bytes(request.result().value[0]).decode()[:4] for request in good] == ["good"] * 20 + ["more"] * 20
    with pytest.raises(ModelFailed, match=r"stage text: input 'x': BYTES: element \[0\]"):
        client.predict("twice", [b"\xff"], slo_ms=PATIENT_MS)


def test_python_models_take_any_bytes(up: Up, client: Client) -> None:
    items = [b"\xff\x00", "d\xf6g".encode(), b""]
    reply = client.predict_full("bytes", items, slo_ms=PATIENT_MS)
    assert reply.value.tolist() == [bytes(reversed(item)) for item in items]
    blob = join_strings(items)
    tensor = {"name": "x", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(blob)}}
    url = f"{up.ready['http']}/v2/models/bytes/infer"
    header = json.dumps({"inputs": [tensor]}).encode()
    request = Request(url, header + blob, {"Inference-Header-Content-Length": str(len(header))})
    with pytest.raises(HTTPError) as caught:
        urlopen(request, timeout=10)
    with caught.value as error:
        assert "output 'y': BYTES: element [0]" in json.loads(error.read())["error"]


def test_a_model_whose_rows_differ_is_served_without_batches_and_says_so(up: Up, client: Client) -> None:
    for count in (3, 21):
        x = np.arange(count, dtype=np.float32)
        assert client.predict("waveform", x, slo_ms=PATIENT_MS).tolist() == (x - x.mean()).tolist()
    models = {model["name"]: model for model in up.ask("models")}
    (note,) = models["waveform"]["notes"]
    assert note.startswith("not batched: row 15 of 16 random rows")
    assert models["waveform"]["batched"] is False
    (note,) = models["text"]["notes"]
    assert "config.pbtxt of Triton is not used: max_batch_size 8" in note
    assert "version_policy" in note
    assert (models["text"]["batched"], models["bytes"]["notes"]) == (True, [])
    status, content = up.http("POST", f"{up.ready['http']}/v2/repository/index", b"{}")
    reasons = {entry["name"]: entry["reason"] for entry in json.loads(content)}
    assert status == 200
    assert reasons["waveform"].startswith("not batched: ")
    assert up.read_log().count("model note") == 2


def test_the_command_line_shows_text_and_notes(up: Up) -> None:
    answer = up.ask("predict", "text", "--input", '["d\xf6g"]', "--slo-ms", str(PATIENT_MS))
    assert answer["outputs"] == {"y": ["d\xf6g"]}
