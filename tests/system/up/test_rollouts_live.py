"""Versions of a model on real processes: watched, rolled back, promoted under load, and given a part as a canary."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from conftest import STATE_VARIABLES
from harness.http_calls import ROW, send_http
from harness.model_folders import an_emulated_model
from harness.running_up import Up
from harness.waiting import until
from horologe import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    an_emulated_model(tmp_path / "models")
    state = dict.fromkeys(STATE_VARIABLES, str(tmp_path / "state"))
    up = Up(tmp_path, "--models", "models", "--no-profiler", "--set", "worker.watch=true", **state)
    yield up
    up.stop(signal.SIGKILL)


def add_version(up: Up, version: str, manifest: str = "") -> None:
    """Add a version as a whole, with the files of the first one or a manifest of its own."""
    models = up.folder / "models" / "pretend"
    draft = up.folder / version
    draft.mkdir()
    (draft / "model.toml").write_text(manifest or (models / "1" / "model.toml").read_text())
    draft.rename(models / version)


def traffic(up: Up) -> dict[str, float]:
    return {model["version"]: model["traffic"] for model in up.ask("models", "pretend")}


class Load:
    """Clients that send requests without a version, and the versions that answered those sent after `expect`."""

    def __init__(self, endpoint: str) -> None:
        self.expected: str | None = None
        self.wrong: list[str] = []
        self.answers = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(endpoint,)) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, endpoint: str) -> None:
        with Client(endpoint) as client:
            while not self._stop.is_set():
                expected = self.expected
                try:
                    version = client.predict_full("pretend", [ROW], slo_ms=20_000).version
                except Exception as error:
                    version = repr(error)
                self.answers += 1
                if version != expected and (expected is not None or not version.isdigit()):
                    self.wrong.append(version)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def load_over_http(up: Up, **parameters: Any) -> tuple[int, Any]:
    body = json.dumps({"parameters": parameters}).encode()
    status, content = send_http("POST", f"{up.ready['http']}/v2/repository/models/pretend/load", body, timeout_s=30)
    return status, json.loads(content)


def test_versions_from_the_watched_folder_to_a_restart_of_the_controller(up: Up) -> None:
    load = Load(up.ready["clients"][0])
    try:
        until(lambda: load.answers > 10)
        add_version(up, "2")
        until(lambda: traffic(up) == {"1": 0.0, "2": 1.0}, timeout_s=30)
        for _ in range(3):
            load.expected = None
            up.ask("models", "rollback", "pretend")
            load.expected = "1"
            assert traffic(up) == {"1": 1.0, "2": 0.0}
            load.expected = None
            up.ask("models", "promote", "pretend", "2")
            load.expected = "2"
        add_version(up, "3", 'runtime = "emulated"\nslo = "soon"\n')
        assert "slo" in up.ask("models", "promote", "pretend", "3", code=1)
        answers = load.answers
        until(lambda: load.answers > answers + 20)
    finally:
        load.stop()
    assert load.wrong == []

    assert load_over_http(up, canary="1", weight=0.25)[0] == 200
    url = f"{up.ready['http']}/v2/models/pretend/infer"
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}).encode()
    versions = [json.loads(send_http("POST", url, body)[1])["model_version"] for _ in range(12)]
    assert "".join(versions) == "222122212221"
    assert load_over_http(up, promote="1", rollback=True)[0] == 400

    os.kill(up.ready["processes"]["edge"], signal.SIGKILL)
    ready = f"{up.ready['http']}/v2/health/ready"
    until(lambda: send_http("GET", ready)[0] == 200, retry=(OSError,))
    assert traffic(up) == {"1": 0.25, "2": 0.75, "3": 0.0}
