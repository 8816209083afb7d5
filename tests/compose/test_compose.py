"""`docker-compose up`: every service in a container, CURVE between containers, SDK and HTTP clients outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from bench.compose_project import kill_processes
from compose.host_traffic import INFER, bearer, infer, infer_body, infer_over_grpc, rows_of, steady_load
from compose.stack import ROOT, SERVICES, WORKERS, Stack, get_json, wait_until
from container_faults import FaultTimes, measure
from horologe import Application, Client
from horologe_cli.demo.digits import held_out
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(900)]

EDGE = ("controller", "selector", "frontend", "profiler", "tuner")
EDGE_MB, WORKER_MB = 450, 350
"""Bounds of the sizes of images. deploy/README.md states the sizes."""
FAULT_RATE = 30.0
FAULT_TIMES = FaultTimes(18.0, every_s=6.0, seed=561, before_s=5.0, settle_s=8.0)
"""With three workers: the controller is killed, a worker is paused, and the frontend restarts."""
REPLACED = ("gpu-worker", "controller", "selector", "frontend")
"""The services behind a request. Profiler and tuner take no part in one."""
ML_RUNTIMES = ("onnxruntime", "torch", "sklearn", "scipy")
FIND_TIMES = """
import pathlib, struct
for path in pathlib.Path("/opt/horologe").rglob("*.pyc"):
    flags = struct.unpack("<I", path.read_bytes()[4:8])[0]
    assert flags & 1, f"{path} holds the time of its source"
print("no times")
"""


def test_the_sdk_gets_its_own_answers(client: Client) -> None:
    answers = client.predict_many("twice", [rows_of(number) for number in range(50)], slo_ms=5_000)
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
    assert infer(stack, keys, 21) == [42] * 4
    url = f"http://127.0.0.1:{stack.http}/v2"
    with urlopen(Request(f"{url}/models/twice", headers=bearer(keys)), timeout=10) as answer:
        assert json.load(answer)["name"] == "twice"
    load = f"{url}/repository/models/twice/load"
    for headers, status in (({}, 401), (bearer(keys), 403)):
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(load, b"", headers), timeout=10)
        assert refused.value.code == status
        refused.value.close()
    with urlopen(Request(load, b"", bearer(keys, "manager")), timeout=10) as answer:
        assert answer.status == 200


def test_grpc_works_with_the_same_keys(stack: Stack, client: Client, keys: Path) -> None:
    assert infer_over_grpc(f"127.0.0.1:{stack.grpc}", bearer(keys), 21) == [42] * 4
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        infer_over_grpc(f"127.0.0.1:{stack.grpc}", {}, 21)


def test_bytecode_in_the_images_does_not_depend_on_the_time_of_the_build(stack: Stack) -> None:
    for service in ("frontend", WORKERS):
        assert stack.execute(service, "python3", "-c", FIND_TIMES) == "no times\n"


def test_a_model_finds_neither_foreign_keys_nor_the_store(stack: Stack) -> None:
    script = (
        "ls /keys/*; python3 -c 'import socket; socket.create_connection((\"redis\", 6379), 3)' || echo unreachable"
    )
    seen = stack.execute(WORKERS, "sh", "-c", script)
    assert "worker.key_secret" in seen
    assert "service.key_secret" not in seen
    assert "unreachable" in seen


def test_a_client_without_keys_is_rejected(stack: Stack) -> None:
    with Client(f"tcp://127.0.0.1:{stack.clients}") as stranger, pytest.raises(HorologeError):
        stranger.predict("twice", rows_of(1), slo_ms=1_000)


def test_no_container_runs_as_root_or_writes_to_its_root_or_the_models(stack: Stack) -> None:
    for service in SERVICES:
        attributes = stack.container(service).attrs
        user, host = attributes["Config"]["User"], attributes["HostConfig"]
        assert user.partition(":")[0] not in ("", "0", "root"), service
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        assert host["RestartPolicy"]["Name"] == "unless-stopped", service
        assert not host["NanoCpus"], service
    worker = stack.container(WORKERS).attrs
    assert worker["HostConfig"]["CapAdd"] in (["SYS_NICE"], ["CAP_SYS_NICE"])
    mounts = {mount["Destination"]: mount for mount in worker["Mounts"]}
    assert not mounts["/models"]["RW"]


def test_the_edge_has_no_ml_runtime(stack: Stack) -> None:
    """`horologe-edge` also stays below a bound of its size. The base image is about half of it."""
    script = f"from importlib.util import find_spec; print([name for name in {ML_RUNTIMES} if find_spec(name)])"
    for service in EDGE:
        assert stack.execute(service, "python3", "-c", script).strip() == "[]"
    assert stack.execute(WORKERS, "python3", "-c", script).strip() == "['onnxruntime']"
    sizes = {name: stack.engine.images.get(f"horologe-{name}:test").attrs["Size"] / 1e6 for name in ("edge", "worker")}
    assert sizes["edge"] < EDGE_MB
    assert sizes["worker"] < WORKER_MB


@pytest.mark.parametrize("service", ["frontend", WORKERS])
def test_doctor_runs_inside_containers(stack: Stack, service: str) -> None:
    report = json.loads(stack.execute(service, "horologe", "doctor", "--json"))
    findings = {finding["subject"]: finding for finding in report["findings"]}
    assert report["level"] != "fail", report
    assert findings["container"]["found"].startswith("Docker")
    assert findings["CPU quota"]["level"] == "ok"
    assert "limit of the container" in findings["memory"]["found"]
    if service == WORKERS:
        assert "WORKER_RTPRIO" in findings["real-time priority"]["hint"]
        assert "8.0 GiB" in findings["memory"]["found"]


@pytest.mark.parametrize("service", ["frontend", WORKERS])
def test_the_images_can_export_traces(stack: Stack, service: str) -> None:
    script = "import opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http.trace_exporter; print('ok')"
    assert stack.execute(service, "python3", "-c", script).strip() == "ok"


def test_a_request_is_explained_from_the_recordings_of_the_containers(stack: Stack, client: Client, keys: Path) -> None:
    """The commands of deploy/README.md."""
    body = json.loads(infer_body(7, slo_ms=5_000)) | {"id": "explain-me"}
    request = Request(f"http://127.0.0.1:{stack.http}{INFER}", json.dumps(body).encode(), bearer(keys))
    with urlopen(request, timeout=10) as answer:
        assert json.load(answer)["id"] == "explain-me"
    stack.compose("kill", "-s", "USR1", "frontend", "controller")
    command = "horologe", "explain", "explain-me", "--recording", "/recordings", "--json"

    def explanation() -> Any:
        text = stack.execute("frontend", *command)  # without the request: [], and a line of the error
        return json.JSONDecoder().raw_decode(text)[0] if text.startswith("[") else None

    (found,) = wait_until("recordings with the request", 20, explanation)
    assert found["request"]["name"] == "explain-me"
    assert found["explanation"]["parts"]


def test_prometheus_scrapes_every_service(stack: Stack, client: Client) -> None:
    url = f"http://127.0.0.1:{stack.prometheus}/api/v1"

    def scraped() -> bool:
        targets = get_json(f"{url}/targets?state=active")["data"]["activeTargets"]
        return {t["labels"]["service"] for t in targets if t["health"] == "up"} == {*EDGE, WORKERS}

    def count_requests() -> float:
        query = "sum(nv_inference_request_success)"
        found = get_json(f"{url}/query?query={quote(query)}")["data"]["result"]
        return float(found[0]["value"][1]) if found else 0.0

    wait_until("every target up", 60, scraped)
    before = count_requests()
    client.predict_many("twice", [rows_of(number) for number in range(20)], slo_ms=5_000)
    wait_until("the requests in Prometheus", 30, lambda: count_requests() >= before + 20)


def test_grafana_or_its_stand_in_has_the_dashboards_and_reaches_prometheus(stack: Stack) -> None:
    """Grafana itself runs only where its image can be pulled. `deploy/airgap` builds a stand-in for its health check
    and search. It draws no dashboard.
    """
    found = get_json(f"http://127.0.0.1:{stack.grafana}/api/search?type=dash-db")
    committed = [json.loads(path.read_text()) for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")]
    assert {entry["uid"] for entry in found} == {entry["uid"] for entry in committed}
    assert committed
    page = stack.execute("grafana", "wget", "-q", "-O", "-", "http://prometheus:9090/-/ready")
    assert "Ready" in page, page


def test_the_demo_measures_the_running_system(stack: Stack, client: Client) -> None:
    options = ("--json", "--learn", "2", "--step", "0.3")
    text = stack.compose("run", "--rm", "demo", *options, code=None)
    result = json.loads(text[text.index("{") :])
    assert {entry["via"] for entry in result["accuracies"]} == {"SDK", "HTTP"}
    assert all(entry["correct"] >= 0.9 * entry["images"] for entry in result["accuracies"])
    assert len(result["feedback_effects"]) == 2
    assert result["ramp"], "no load was offered"
    assert result["criteria"]


def test_selection_states_survive_restarts_of_selector_and_store(stack: Stack, client: Client) -> None:
    client.declare(Application("digits", ("novice", "digits-linear", "digits-mlp"), slo_ms=5_000))
    images, truths = held_out()
    replies = [client.ask("digits", images[at : at + 1]) for at in range(60)]
    client.feedback("digits", replies, truths[:60].tolist())
    learned = _weights(client)
    assert learned["novice"] == min(learned.values())
    for service in ("selector", "redis"):
        restarts = stack.restarts(service)
        kill_processes(stack.container(service))
        wait_until(f"{service} restarted", 30, lambda: stack.restarts(service) > restarts)  # noqa: B023
        wait_until("the same weights", 60, lambda: _weights(client) == pytest.approx(learned))
    wait_until("an answer", 30, lambda: client.ask("digits", images[:1]).models)


def _weights(client: Client) -> dict[str, float]:
    return {statistics.model: statistics.weight for statistics in client.application("digits").statistics}


def test_containers_that_are_replaced_one_after_the_other_lose_no_request(
    stack: Stack, client: Client, keys: Path
) -> None:
    """As after a new image. Requests wait meanwhile, because each of these services has one container."""
    with steady_load(stack, keys) as outcomes:
        for service in REPLACED:
            before = stack.container(service).id
            stack.compose("up", "-d", "--no-deps", "--force-recreate", service)
            assert stack.container(service).id != before
            answered = outcomes["OK"]
            wait_until(f"answers without the old {service}", 60, lambda: outcomes["OK"] > answered + 40)  # noqa: B023
    assert set(outcomes) == {"OK", "HTTP OK"}, outcomes


def test_three_workers_just_work_under_load(stack: Stack, client: Client) -> None:
    stack.scale_workers(3)
    wait_until("three healthy workers", 60, lambda: len(stack.containers(WORKERS)) == 3 and stack.is_healthy(WORKERS))
    wait_until("three workers at the controller", 60, lambda: len(_workers(client)) == 3)


def _workers(client: Client) -> set[str]:
    return {share.worker for share in client.describe().shares}


def test_faults_of_containers_lose_no_request(stack: Stack, client: Client) -> None:
    """The bound of the goodput is left to the benchmark: it depends on the speed of the machine."""
    result = measure(stack, "digits-mlp", FAULT_RATE, 0.0, FAULT_TIMES)
    violations = {name: count for name, count in result["violations"].items() if name != "goodput"}
    assert not any(violations.values()), result
    assert len({fault.partition(" ")[0] for fault in result["faults"]}) == 3, "all kinds of faults"
    assert all(any(name in fault for fault in result["faults"]) for name in ("controller", WORKERS, "frontend"))
    assert result["statuses"]["OK"] > 0.5 * result["requests"], result
    assert result["http"]["200"] > 0
    stack.wait_healthy()
    stack.scale_workers(1)
