"""`horologe up` with models that fail on made-up inputs: they are shown with a note and measured by requests."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

from gpu_worker.repository_harness import a_dividing_graph, an_input, an_output
from harness.model_folders import a_folder, a_python_model
from harness.running_up import Up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CHOOSY = """
import os
class Model:
    def predict_batch(self, inputs):
        x = inputs["x"]
        if not x.all():
            os._exit(3)
        return {"y": 1 / x}
"""
BROKEN = """
class Model:
    def predict_batch(self, inputs):
        raise ValueError("never works")
"""
NOTE = "not measured yet: failed on made-up inputs: "


def infer(up: Up, model: str, datatype: str, rows: Sequence[Sequence[float]], slo_ms: int = 5000) -> tuple[int, Any]:
    tensor = {"name": "x", "datatype": datatype, "shape": [len(rows), len(rows[0])], "data": rows}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": slo_ms * 1000}}).encode()
    status, content = up.http("POST", f"{up.ready['http']}/v2/models/{model}/infer", body)
    answer = json.loads(content)
    return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]


def until_note_is_gone(up: Up, model: str) -> None:
    end = time.monotonic() + 10
    while states(up)[model] != ("READY", ""):
        assert time.monotonic() < end, states(up)
        time.sleep(0.05)


def states(up: Up) -> dict[str, tuple[str, str]]:
    return {model["name"]: (model["state"], model["reason"]) for model in up.ask("models")}


def test_models_that_fail_on_zeros(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    a_python_model(repository, CHOOSY, "choosy", memory_limit='"2GiB"')
    a_python_model(repository, BROKEN, "broken")
    a_folder(
        repository, "division", an_input("x", "INT64", [-1, 2]) + an_output("INT64", [-1, 2]),
        model_onnx=a_dividing_graph(),
    )  # fmt: skip
    up = Up(tmp_path, "--models", str(repository), "--no-tuner", "--no-profiler", HOROLOGE_WORKER_CACHE=str(tmp_path))
    try:
        shown = {model["name"]: (model["state"], model["reason"]) for model in up.ready["models"]}
        assert {name: state for name, (state, _) in shown.items()} == dict.fromkeys(shown, "READY")
        for name, text in {"choosy": "exit code 3", "broken": "never works", "division": "division by zero"}.items():
            assert shown[name][1].startswith(NOTE)
            assert text in shown[name][1]
        for number in range(6):
            assert infer(up, "choosy", "FP32", [[1, 2, 4, 8]]) == (200, [1, 0.5, 0.25, 0.125])
            assert infer(up, "division", "INT64", [[3, 4], [1, 2]][: 1 + number % 2])[0] == 200
            status, error = infer(up, "broken", "FP32", [[1, 2, 3, 4]])
            assert (status, "never works" in error) == (500, True), error
        until_note_is_gone(up, "choosy")
        assert states(up)["broken"][1].startswith(NOTE)
        status, error = infer(up, "choosy", "FP32", [[0, 1, 1, 1]])
        assert (status, "exit code 3" in error) == (500, True), error
        assert infer(up, "division", "INT64", [[3, 4]], slo_ms=100) == (200, [4, 3])
        up.ask("load", "choosy")
        assert states(up)["choosy"] == ("READY", "")
    finally:
        assert up.stop(signal.SIGTERM) == 0, up.read_log()
