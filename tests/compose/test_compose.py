"""`docker-compose up`: every service in a container, CURVE between containers, SDK and HTTP clients outside."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from compose.stack import ROOT, Stack, Unavailable, get_json, wait_until
from horologe import Application, Client
from horologe_cli.demo.digits import held_out
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

TWICE_CODE = """
class Model:
    def predict_batch(self, inputs):
        return {"y": inputs["x"] * 2}
"""
TWICE_TOML = """
runtime = "python"
batch_sizes = [1, 2, 4]
slo = "2s"

[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]

[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 4]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with the demo's models, and a model whose answers depend on the input."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(ROOT / "models", folder, dirs_exist_ok=True)
    version = folder / "twice" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(TWICE_CODE)
    (version / "model.toml").write_text(TWICE_TOML)
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    try:
        stack = Stack(repository)
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def keys(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the service's public key and the keys of clients and operators."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "service").mkdir()
    stack.copy("frontend", "/keys/service/service.key", folder / "service")
    for group in ("clients", "management", "http"):
        stack.copy("frontend", f"/keys/{group}", folder)
    return folder


@pytest.fixture(scope="module")
def client(stack: Stack, keys: Path) -> Iterator[Client]:
    with Client(f"tcp://127.0.0.1:{stack.clients}", keys=keys) as client:
        wait_until("the models to be ready", 60, lambda: _all_ready(client))
        yield client


def _all_ready(client: Client) -> bool:
    models = client.models()
    return bool(models) and all(model.state == "READY" for model in models)


def _rows(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((1, 4), number, np.float32)


def _bearer(keys: Path, group: str = "clients") -> dict[str, str]:
    return {"Authorization": f"Bearer {(keys / 'http' / f'{group}.txt').read_text().strip()}"}


def _infer(stack: Stack, keys: Path, x: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}
    url = f"http://127.0.0.1:{stack.http}/v2/models/twice/infer"
    request = Request(url, json.dumps(body).encode(), _bearer(keys))
    with urlopen(request, timeout=10) as answer:
        return json.load(answer)["outputs"][0]["data"]


def test_the_sdk_gets_its_own_answers(client: Client) -> None:
    answers = client.predict_many("twice", [_rows(number) for number in range(50)], slo_ms=5_000)
    assert [answer[0, 0] for answer in answers] == [2 * number for number in range(50)]


def test_every_model_of_the_demo_answers(client: Client) -> None:
    models = client.models()
    assert {"digits-cnn", "digits-linear", "digits-mlp", "twice", "cascade"} <= {model.spec.name for model in models}
    for model in models:
        if any(tensor.datatype != "FP32" for tensor in model.spec.inputs):
            continue  # bytes of an image file
        inputs = {
            tensor.name: np.zeros([abs(size) for size in tensor.shape], np.float32) for tensor in model.spec.inputs
        }
        outputs = client.predict_full(model.spec.name, inputs, slo_ms=5_000).outputs
        assert set(outputs) == {tensor.name for tensor in model.spec.outputs}


def test_http_works_at_the_same_time(stack: Stack, client: Client, keys: Path) -> None:
    assert _infer(stack, keys, _rows(21)) == [42] * 4
    url = f"http://127.0.0.1:{stack.http}/v2"
    with urlopen(Request(f"{url}/models/twice", headers=_bearer(keys)), timeout=10) as answer:
        assert json.load(answer)["name"] == "twice"
    load = f"{url}/repository/models/twice/load"
    for headers, status in (({}, 401), (_bearer(keys), 403)):
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(load, b"", headers), timeout=10)
        assert refused.value.code == status
        refused.value.close()
    with urlopen(Request(load, b"", _bearer(keys, "management")), timeout=10) as answer:
        assert answer.status == 200


def test_a_model_finds_neither_foreign_keys_nor_the_store(stack: Stack) -> None:
    script = (
        "ls /keys/*; python3 -c 'import socket; socket.create_connection((\"redis\", 6379), 3)' || echo unreachable"
    )
    seen = stack.execute("worker", "sh", "-c", script)
    assert "worker.key_secret" in seen
    assert "service.key_secret" not in seen
    assert "unreachable" in seen


def test_a_client_without_keys_is_rejected(stack: Stack) -> None:
    with Client(f"tcp://127.0.0.1:{stack.clients}") as stranger, pytest.raises(HorologeError):
        stranger.predict("twice", _rows(1), slo_ms=1_000)


def test_no_container_runs_as_root_or_writes_to_the_models(stack: Stack) -> None:
    for service in ("controller", "selector", "frontend", "profiler", "tuner", "worker"):
        assert stack.inspect(service)["Config"]["User"] == "1000:1000"
    mounts = {mount["Destination"]: mount for mount in stack.inspect("worker")["Mounts"]}
    assert not mounts["/models"]["RW"]


def test_prometheus_scrapes_every_service(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.prometheus}/api/v1/targets?state=active"

    def healthy() -> bool:
        targets = get_json(url)["data"]["activeTargets"]
        return {t["labels"]["service"] for t in targets if t["health"] == "up"} == {
            "frontend",
            "selector",
            "controller",
            "profiler",
            "tuner",
            "worker",
        }

    wait_until("every target up", 60, healthy)


def test_selection_states_survive_restarts_of_selector_and_store(stack: Stack, client: Client) -> None:
    client.declare(Application("digits", ("novice", "digits-linear", "digits-mlp"), slo_ms=5_000))
    images, truths = held_out()
    replies = [client.ask("digits", images[at : at + 1]) for at in range(60)]
    client.feedback("digits", replies, truths[:60].tolist())
    learned = _weights(client)
    assert learned["novice"] == min(learned.values())
    for service in ("selector", "redis"):
        stack.execute(service, "sh", "-c", "kill -9 -1")
        wait_until(f"{service} restarted", 30, lambda: stack.inspect(service)["RestartCount"] >= 1)  # noqa: B023
        wait_until("the same weights", 60, lambda: _weights(client) == pytest.approx(learned))
    wait_until("an answer", 30, lambda: client.ask("digits", images[:1]).models)


def _weights(client: Client) -> dict[str, float]:
    return {statistics.model: statistics.weight for statistics in client.application("digits").statistics}


def test_service_resumes_after_a_killed_worker_restarts(stack: Stack, client: Client, keys: Path) -> None:
    # Docker restarts a container whose process exits by itself, but not one that was stopped with `docker kill`.
    stack.execute("worker", "sh", "-c", "kill -9 -1")

    wait_until("the worker restarted", 30, lambda: stack.inspect("worker")["RestartCount"] >= 1)
    wait_until("an answer after the restart", 60, lambda: (client.predict("twice", _rows(4), slo_ms=1_000) == 8).all())
    assert _infer(stack, keys, _rows(5)) == [10] * 4
