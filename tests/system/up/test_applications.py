"""Applications on a real system: `horologe up` with the digits models, by command line, SDK and HTTP."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.http_calls import send_http
from harness.running_up import Up
from harness.waiting import until
from horologe import Application, Client, HorologeError
from horologe_cli.demo.digits import held_out

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = Path(__file__).parents[3] / "models"
THREE = ("digits-cnn", "digits-mlp", "digits-linear")
SLO_MS = 5000.0
"""Long enough for a busy machine: these tests do not measure speed."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    lead = "frontend.default_lead_ns=100ms"  # on a busy machine timers may be later than the default lead
    up = Up(tmp_path_factory.mktemp("up"), "--models", str(MODELS), "--split", "--no-profiler", "--set", lead)
    yield up
    up.stop(signal.SIGTERM)


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.ready["clients"][0]) as client:
        yield client


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    return held_out()


def test_an_ensemble_answers_and_learns(client: Client, digits: tuple[Any, Any]) -> None:
    images, truths = digits
    client.declare(Application("ensemble", THREE, slo_ms=SLO_MS))
    for image, truth in zip(images[:40], truths[:40], strict=True):
        reply = client.ask("ensemble", image.reshape(1, 64))
        assert reply.prediction.shape == (1,)
        assert (set(reply.models), reply.missing, reply.defaulted) == (set(THREE), (), False)
        client.feedback("ensemble", reply, truth)
    state = client.application("ensemble")
    assert {statistics.model for statistics in state.statistics} == set(THREE)
    assert all(statistics.observations == 40 for statistics in state.statistics)
    assert sum(statistics.weight for statistics in state.statistics) == pytest.approx(1)


def test_by_http_and_by_command(up: Up, digits: tuple[Any, Any]) -> None:
    url = f"{up.ready['http']}/v1/applications/web"
    body = json.dumps({"models": THREE, "slo_ms": SLO_MS}).encode()
    assert send_http("PUT", url, body)[0] == 200
    image = {"name": "image", "shape": [1, 64], "datatype": "FP32", "data": digits[0][0].tolist()}
    status, answer = send_http("POST", f"{url}/predict", json.dumps({"inputs": [image], "context": "u1"}).encode())
    assert status == 200, answer
    (stats,) = json.loads(up.get(f"{up.ready['http']}/v2/models/web/stats")[1])["model_stats"]
    assert stats["inference_stats"]["success"]["count"] == 1
    named = {"prediction_id": json.loads(answer)["prediction_id"], "truths": [int(digits[1][0])], "context": "u1"}
    assert json.loads(send_http("POST", f"{url}/feedback", json.dumps(named).encode())[1])["statuses"] == ["OK"]
    shown = up.ask("application", "show", "web", "--context", "u1")
    assert shown == json.loads(up.get(f"{url}?context=u1")[1])
    assert all(statistics["observations"] == 1 for statistics in shown["statistics"])
    as_model = json.dumps({"inputs": [image]}).encode()
    assert send_http("POST", f"{up.ready['http']}/v2/models/web/infer", as_model)[0] == 200
    assert send_http("DELETE", url)[0] == 200


def test_a_killed_selector_loses_no_answer_and_no_acknowledged_feedback(
    up: Up, client: Client, digits: tuple[Any, Any]
) -> None:
    images, truths = digits
    client.declare(Application("lasting", THREE, slo_ms=SLO_MS, default=7.0))
    pid = up.ready["processes"]["selector"]
    for at in range(10):
        client.feedback("lasting", client.ask("lasting", images[at : at + 1]), truths[at])
    before = {statistics.model: statistics.weight for statistics in client.application("lasting").statistics}
    os.kill(pid, signal.SIGSTOP)
    held = client.ask("lasting", images[:1], slo_ms=400)
    assert (held.defaulted, held.prediction.tolist(), held.models) == (True, [7], ())
    os.kill(pid, signal.SIGKILL)
    assert client.ask("lasting", images[:1], slo_ms=400).prediction.shape == (1,)

    until(lambda: not client.ask("lasting", images[:1], slo_ms=1000).defaulted, retry=(HorologeError,))

    def weights() -> dict[str, float]:
        return {statistics.model: statistics.weight for statistics in client.application("lasting").statistics}

    until(lambda: weights() == pytest.approx(before))
