"""Strings and rows on real processes: SDK, HTTP, pipelines and applications carry the same text to the models."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from harness.http_calls import send_http
from harness.model_folders import a_folder, a_graph, onnx_bytes
from harness.running_up import Up
from horologe import Application, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = ["cat", "d\xf6g", "", "a\0b", "x\0", "😀", "n" * 50_000]
PATIENT_MS = 10_000
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


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    models: Path = folder / "models"
    text = onnx_bytes(["rows"], datatype=TensorProto.STRING)
    a_folder(models, "text", "cache = true\n", model_onnx=text)
    (models / "text" / "config.pbtxt").write_text(CONFIG)
    centred = [helper.make_node("ReduceMean", ["x"], ["m"], keepdims=1), helper.make_node("Sub", ["x", "m"], ["y"])]
    samples = TensorProto.FLOAT, ["samples"]
    a_folder(models, "waveform", model_onnx=a_graph(*centred, inputs={"x": samples}, outputs={"y": samples}))
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
    url = f"{up.ready['http']}/v2/models/{target}/infer"
    status, content = send_http("POST", url, json.dumps(body).encode(), timeout_s=PATIENT_MS / 1000)
    assert (status, json.loads(content)["outputs"][0]["data"]) == (200, WORDS)


def test_a_model_whose_rows_differ_is_served_without_batches_and_says_so(up: Up, client: Client) -> None:
    for count in (3, 21):
        x = np.arange(count, dtype=np.float32)
        assert client.predict("waveform", x, slo_ms=PATIENT_MS).tolist() == (x - x.mean()).tolist()
    models = {model["name"]: model for model in up.ask("models")}
    (note,) = models["waveform"]["notes"]
    assert note.startswith("not batched: row 15 of 16 random rows")
    assert models["waveform"]["batched"] is False
    (note,) = models["text"]["notes"]
    assert note == "config.pbtxt of Triton is not used, because there is a model.toml"
    assert models["text"]["batched"] is True
    status, content = send_http("POST", f"{up.ready['http']}/v2/repository/index", b"{}")
    reasons = {entry["name"]: entry["reason"] for entry in json.loads(content)}
    assert status == 200
    assert reasons["waveform"].startswith("not batched: ")
    assert up.read_log().count("model note") == 2
