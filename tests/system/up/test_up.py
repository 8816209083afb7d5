"""`horologe up` and commands against it, as processes: starting, ready, answers, settings, ^C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from harness.http_calls import infer, send_http
from harness.model_folders import a_python_model, an_emulated_model, an_onnx_model
from harness.running_up import HOROLOGE, Up
from harness.waiting import until
from horologe_cli.local.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


INPUT = "[[1, 2, 3, 4]]"
FOLDERS = ("worker.cache", "profiler.state", "selector.state", "tuner.state", "controller.state")
"""Settings that name a folder to which a service writes."""


@pytest.fixture(params=[(), ("--split",)], ids=["fused", "split"])
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    an_emulated_model(tmp_path / "models")
    up = Up(tmp_path, *request.param)
    yield up
    if up.process.poll() is None:
        up.stop(signal.SIGKILL)


def test_serves_until_it_is_stopped(up: Up) -> None:
    split = len(up.ready["processes"]) == 6
    front = ("frontend", "selector", "controller") if split else ("edge",)
    assert set(up.ready["processes"]) == {*front, "worker-0", "profiler", "tuner"}
    assert [model["name"] for model in up.ready["models"]] == ["pretend"]
    assert up.get(f"{up.ready['http']}/v2/health/ready")[0] == 200
    needed = [url for name, url in up.ready["metrics"].items() if name != "profiler"]  # may start later
    assert all(up.get(url)[0] == 200 for url in needed)

    answer = up.ask("predict", "pretend", "--input", INPUT)
    assert (answer["model"], answer["version"], list(answer["outputs"])) == ("pretend", "1", ["y"])
    assert [model["state"] for model in up.ask("models")] == ["READY"]
    (measured,) = up.ask("measure", "pretend", "--runs", "1")
    assert [row["batch_size"] for row in measured["measured"]] == [1, 2]
    assert "not served" in up.ask("measure", "nothing", code=1)
    (share,) = up.ask("status")["shares"]
    assert share["worker"].startswith("worker/0#")

    assert up.ask("unload", "pretend")[0]["state"] == "UNAVAILABLE"
    assert "UNKNOWN_MODEL" in up.ask("predict", "pretend", "--input", INPUT, code=1)
    assert up.ask("load", "pretend")[0]["state"] == "READY"
    assert up.ask("predict", "pretend", "--input", INPUT)["outputs"]

    pids = up.ready["processes"].values()
    assert up.stop(signal.SIGINT) == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_settings_come_from_the_file_and_the_command_line(tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "elsewhere")
    (tmp_path / "settings.toml").write_text('[controller]\nscheduler = "edf"\n[worker]\nrepository = "elsewhere"\n')
    up = Up(tmp_path, "--config", "settings.toml", "--set", "log.json=true", "--http", "0.0.0.0:0", "--insecure")
    try:
        assert up.ready["scheduler"] == "edf"
        assert [model["name"] for model in up.ready["models"]] == ["pretend"]
        assert up.ready["http"].startswith("http://0.0.0.0:")  # the address that it listens on
        assert up.get(f"{up.ready['http']}/v2/models")[0] == 200
        up.process.send_signal(signal.SIGUSR1)  # without a recorder it is ignored
        up.ask("predict", "pretend", "--input", INPUT, "--slo-ms", "20000")
    finally:
        up.process.send_signal(signal.SIGTERM)
        up.process.send_signal(signal.SIGTERM)  # two in a row drain
        assert up.process.wait(20) == 0
        lines = [json.loads(line) for line in up.read_log().splitlines()]
        up.stop(signal.SIGTERM)
    assert {line["process"] for line in lines} >= {"edge", "worker-0", "horologe"}
    assert all(line["service"] == "edge" for line in lines if line["process"] == "edge")
    assert "draining; press ^C again to kill all processes" in [line["event"] for line in lines]


def test_a_service_that_cannot_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "file").write_text("")
    command = [
        *HOROLOGE,
        "up",
        "--http",
        "127.0.0.1:0",
        "--client",
        f"ipc://{tmp_path}/file/clients",
        "--metrics",
        "off",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "horologe: edge ended with exit code 2 before it was ready: horologe-edge: frontend.clients: "
    )


def test_writes_only_to_the_folders_of_its_settings(tmp_path: Path) -> None:
    an_onnx_model(tmp_path / "models")
    a_python_model(tmp_path / "models")
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    written = {path.name for path in tmp_path.iterdir()} | {"log", "cache"}
    files = set((tmp_path / "models").rglob("*"))
    sets = [f"--set={name}={tmp_path / 'cache'}" for name in FOLDERS]
    up = Up(tmp_path, *sets, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "tmp"), ORT_DISABLE_TELEMETRY="")
    try:
        assert {model["state"] for model in up.ready["models"]} == {"READY"}
        for model in ("graph", "code"):
            assert up.ask("predict", model, "--input", INPUT)["outputs"]
    finally:
        assert up.stop(signal.SIGTERM) == 0
    assert {path.name for path in tmp_path.iterdir()} <= written
    assert not [*(tmp_path / "home").iterdir(), *(tmp_path / "tmp").iterdir()]
    assert set((tmp_path / "models").rglob("*")) == files


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1')}"


@pytest.fixture
def starting(tmp_path: Path, address: str) -> Iterator[Up]:
    """Start a system with a known address: it is asked before it is ready."""
    a_python_model(tmp_path / "models", "while True: pass\n", name="hang", load_timeout='"9s"')
    an_emulated_model(tmp_path / "models")
    up = Up(tmp_path, "--http", address, "--no-tuner", "--no-profiler")
    yield up
    up.stop(signal.SIGTERM)


def test_the_others_are_served_while_a_model_hangs_and_health_waits_for_its_timeout(starting: Up, address: str) -> None:
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

    assert {model["name"]: model["state"] for model in starting.ready["models"]} == {
        "hang": "UNAVAILABLE",
        "pretend": "READY",
    }
    assert get("health/ready")[0] == 200
    assert "load_timeout" in get("models/hang/ready")[1]["reason"]
