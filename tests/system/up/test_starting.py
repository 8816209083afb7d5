"""`horologe up` with a model that hangs: the others are served, and health, states and requests say what happens."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from harness.http_calls import infer, send_http
from harness.model_folders import a_python_model, an_emulated_model
from harness.running_up import Up
from harness.waiting import until
from horologe_cli.local.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1')}"


@pytest.fixture
def up(tmp_path: Path, address: str) -> Iterator[Up]:
    """Start a system with a known address: it is asked before it is ready."""
    a_python_model(tmp_path / "models", "while True: pass\n", name="hang", load_timeout='"9s"')
    an_emulated_model(tmp_path / "models")
    up = Up(tmp_path, "--http", address, "--no-tuner", "--no-profiler")
    yield up
    up.stop(signal.SIGTERM)


def test_the_others_are_served_while_a_model_hangs_and_health_waits_for_its_timeout(up: Up, address: str) -> None:
    http = f"http://{address}"

    def get(path: str) -> tuple[int, Any]:
        status, body = send_http("GET", f"{http}/v2/{path}")
        return status, json.loads(body or b"{}")

    until(lambda: infer(http, "pretend")[0] == 200, retry=(OSError,))
    assert get("models/hang/ready")[1]["state"] == "LOADING"
    assert get("health/ready")[0] == 503
    assert get("health/live")[0] == 200
    status, error = infer(http, "hang")
    assert (status, "is loading" in error) == (429, True)
    assert infer(http, "nothing")[0] == 404
    index = json.loads(send_http("POST", f"{http}/v2/repository/index", b"{}")[1])
    assert [(model["name"], model["state"]) for model in index] == [("hang", "LOADING"), ("pretend", "READY")]
    assert "worker/0: " in index[0]["reason"]

    assert {model["name"]: model["state"] for model in up.ready["models"]} == {
        "hang": "UNAVAILABLE",
        "pretend": "READY",
    }
    assert get("health/ready")[0] == 200
    assert "load_timeout" in get("models/hang/ready")[1]["reason"]
