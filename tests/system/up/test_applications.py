"""Applications on a real system: `horologe up` with the digits models, by command line, SDK and HTTP."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.running_up import Up
from harness.waiting import until
from horologe import Application, Client, HorologeError, InvalidInput, UnknownModel
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


def declare(client: Client, name: str, *models: str, **fields: Any) -> None:
    client.declare(Application(name, models or THREE, slo_ms=SLO_MS, **fields))


def test_an_ensemble_answers_and_learns(client: Client, digits: tuple[Any, Any]) -> None:
    images, truths = digits
    declare(client, "ensemble")
    for image, truth in zip(images[:40], truths[:40], strict=True):
        reply = client.ask("ensemble", image.reshape(1, 64))
        assert reply.prediction.shape == (1,)
        assert (set(reply.models), reply.missing, reply.defaulted) == (set(THREE), (), False)
        client.feedback("ensemble", reply, truth)
    state = client.application("ensemble")
    assert {statistics.model for statistics in state.statistics} == set(THREE)
    assert all(statistics.observations == 40 for statistics in state.statistics)
    assert sum(statistics.weight for statistics in state.statistics) == pytest.approx(1)


def test_rows_and_lists_of_feedback(client: Client, digits: tuple[Any, Any]) -> None:
    images, truths = digits
    declare(client, "rows", "digits-linear")
    replies = [client.ask("rows", images[at : at + 2]) for at in range(0, 200, 2)]
    client.feedback("rows", replies, [truths[at : at + 2] for at in range(0, 200, 2)])
    (statistics,) = client.application("rows").statistics
    assert statistics.observations in (100, 200)


def test_feedback_by_the_inputs(client: Client, digits: tuple[Any, Any]) -> None:
    images, truths = digits
    declare(client, "inputs", "digits-linear")
    client.feedback("inputs", None, truths[0], inputs=images[:1])
    assert client.application("inputs").statistics[0].observations == 1


def test_an_ab_test_keeps_each_user_with_a_model(client: Client, digits: tuple[Any, Any]) -> None:
    weights = {"weights": {"digits-mlp": 1.0, "digits-linear": 1.0}}
    declare(client, "ab", "digits-mlp", "digits-linear", policy="static", settings=weights)
    seen: dict[str, set[tuple[str, ...]]] = {}
    for user in range(20):
        for image in digits[0][:3]:
            reply = client.ask("ab", image.reshape(1, 64), context=f"user-{user}")
            seen.setdefault(f"user-{user}", set()).add(reply.models)
    assert all(len(models) == 1 for models in seen.values())
    assert {next(iter(models)) for models in seen.values()} == {("digits-mlp",), ("digits-linear",)}


def test_a_shadow_is_queried_and_never_answers(client: Client, digits: tuple[Any, Any]) -> None:
    declare(client, "shadowed", "digits-linear", shadows=("digits-cnn",), cache=False)
    for image in digits[0][:20]:
        assert client.ask("shadowed", image.reshape(1, 64)).models == ("digits-linear",)

    def of_shadow() -> Any:
        return next(entry for entry in client.application("shadowed").statistics if entry.model == "digits-cnn")

    until(lambda: of_shadow().answered == 20)
    shadow = of_shadow()
    assert shadow.shadow
    assert 0 < shadow.agreed <= 20


def test_a_canary_and_its_rollback(client: Client) -> None:
    declare(client, "canary", "digits-mlp")
    first = client.application("canary")
    declare(client, "canary", "digits-cnn")
    assert client.application("canary").application.models == ("digits-cnn",)
    rolled = client.rollback("canary")
    assert rolled.application == first.application
    assert rolled.revision > first.revision
    client.withdraw("canary")
    with pytest.raises(UnknownModel):
        client.ask("canary", np.zeros((1, 64), np.float32))


def test_outputs_of_any_kind(client: Client, digits: tuple[Any, Any]) -> None:
    declare(client, "any", "digits-mlp", task="any")
    reply = client.ask("any", digits[0][:2])
    assert reply.prediction.shape == (2, 10)
    assert np.array_equal(reply.prediction, client.predict("digits-mlp", digits[0][:2]))


def test_wrong_declarations_are_rejected(client: Client) -> None:
    with pytest.raises(InvalidInput, match="policy"):
        declare(client, "wrong", policy="crystal-ball")
    with pytest.raises(InvalidInput, match="noop"):
        declare(client, "wrong", "digits-mlp", "noop")
    with pytest.raises(UnknownModel):
        client.application("wrong")


def test_too_little_agreement_returns_the_default(client: Client, digits: tuple[Any, Any]) -> None:
    declare(client, "sure", "digits-linear", "novice", default=7.0, confidence=1.0)
    replies = [client.ask("sure", image.reshape(1, 64)) for image in digits[0][:40]]
    assert any(reply.defaulted for reply in replies)
    assert all(reply.prediction[0] == 7 for reply in replies if reply.defaulted)


def test_by_http_and_by_command(up: Up, digits: tuple[Any, Any]) -> None:
    url = f"{up.ready['http']}/v1/applications/web"
    body = json.dumps({"models": THREE, "slo_ms": SLO_MS}).encode()
    assert up.http("PUT", url, body)[0] == 200
    image = {"name": "image", "shape": [1, 64], "datatype": "FP32", "data": digits[0][0].tolist()}
    status, answer = up.http("POST", f"{url}/predict", json.dumps({"inputs": [image], "context": "u1"}).encode())
    assert status == 200, answer
    named = {"prediction_id": json.loads(answer)["prediction_id"], "truths": [int(digits[1][0])], "context": "u1"}
    assert json.loads(up.http("POST", f"{url}/feedback", json.dumps(named).encode())[1])["statuses"] == ["OK"]
    shown = up.ask("application", "show", "web", "--context", "u1")
    assert shown == json.loads(up.get(f"{url}?context=u1")[1])
    assert all(statistics["observations"] == 1 for statistics in shown["statistics"])
    as_model = json.dumps({"inputs": [image]}).encode()
    assert up.http("POST", f"{up.ready['http']}/v2/models/web/infer", as_model)[0] == 200
    assert up.http("DELETE", url)[0] == 200


def test_a_killed_selector_loses_no_answer_and_no_acknowledged_feedback(
    up: Up, client: Client, digits: tuple[Any, Any]
) -> None:
    images, truths = digits
    declare(client, "lasting", default=7.0)
    pid = up.ready["processes"]["selector"]
    for at in range(10):
        client.feedback("lasting", client.ask("lasting", images[at : at + 1]), truths[at])
    before = {statistics.model: statistics.weight for statistics in client.application("lasting").statistics}
    os.kill(pid, signal.SIGSTOP)
    held = client.ask("lasting", images[:1], slo_ms=400)
    assert (held.defaulted, held.prediction.tolist(), held.models) == (True, [7], ())
    os.kill(pid, signal.SIGKILL)
    assert client.ask("lasting", images[:1], slo_ms=400).prediction.shape == (1,)

    def back() -> bool:
        try:
            return not client.ask("lasting", images[:1], slo_ms=1000).defaulted
        except HorologeError:
            return False

    until(back)

    def weights() -> dict[str, float]:
        return {statistics.model: statistics.weight for statistics in client.application("lasting").statistics}

    until(lambda: weights() == pytest.approx(before))
