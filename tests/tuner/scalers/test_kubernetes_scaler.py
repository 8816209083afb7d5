"""The scaler `kubernetes`: its requests against the schema of the API, and an exchange in its documented format."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import WantedShare
from horologe_tuner.scaler import ScalingError
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

kubernetes: Any = pytest.importorskip("kubernetes", reason="the package kubernetes is not installed")
PATH = "/apis/apps/v1/namespaces/serving/deployments/worker-v100/scale"
SCALE = {
    "kind": "Scale",
    "apiVersion": "autoscaling/v1",
    "metadata": {
        "name": "worker-v100",
        "namespace": "serving",
        "uid": "52b7a4a1-9f3c-4d2c-8f4c-7a3e1d0b6c11",
        "resourceVersion": "48213",
        "creationTimestamp": "2026-03-02T10:11:12Z",
    },
    "spec": {"replicas": 2},
    "status": {"replicas": 2, "selector": "app=horologe-worker,hardware=v100"},
}
"""The answer of an API server to `kubectl get --raw .../deployments/worker-v100/scale`."""
NOT_FOUND = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": 'deployments.apps "worker-k80" not found',
    "reason": "NotFound",
    "details": {"name": "worker-k80", "group": "apps", "kind": "deployments"},
    "code": 404,
}
PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json")


class Cluster(BaseHTTPRequestHandler):
    """Replays the exchange: answers as an API server does, and records the requests."""

    requests: list[tuple[str, str, str, Any]]
    replicas: int

    def do_GET(self) -> None:
        self._answer(None)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if isinstance(body, dict) and self.path == PATH:
            type(self).replicas = body["spec"]["replicas"]
        self._answer(body)

    def _answer(self, body: Any) -> None:
        self.requests.append((self.command, self.path, self.headers.get("Content-Type", ""), body))
        known = self.path == PATH
        document = SCALE | {"spec": {"replicas": self.replicas}} if known else NOT_FOUND
        data = json.dumps(document).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def cluster() -> Iterator[tuple[type[Cluster], str]]:
    class Recording(Cluster):
        replicas = 2

    Recording.requests = []
    server = HTTPServer(("127.0.0.1", 0), Recording)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield Recording, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def a_scaler(url: str) -> Any:
    from horologe_tuner.scalers.kubernetes import KubernetesScaler

    configuration = kubernetes.client.Configuration(host=url)
    configuration.retries = False
    api = kubernetes.client.AppsV1Api(kubernetes.client.ApiClient(configuration))
    settings = TunerSettings(scaler="kubernetes", scaler_target="serving", scaler_names=("*=worker-*",))
    return KubernetesScaler(settings, api)


def test_the_scale_subresource_is_read_and_patched(cluster: tuple[type[Cluster], str]) -> None:
    recording, url = cluster
    scaler = a_scaler(url)
    assert scaler.count_workers(("v100",)) == {"v100": 2}
    scaler.set_workers("v100", 5)
    assert scaler.count_workers(("v100",)) == {"v100": 5}
    assert [request[:2] for request in recording.requests] == [("GET", PATH), ("PATCH", PATH), ("GET", PATH)]
    _, _, content_type, body = recording.requests[1]
    assert content_type in PATCH_TYPES[1:]  # a JSON patch would be a list of operations
    assert body == {"spec": {"replicas": 5}}


def test_the_body_matches_the_schema_of_the_api(cluster: tuple[type[Cluster], str]) -> None:
    recording, url = cluster
    a_scaler(url).set_workers("v100", 3)
    scale, spec = kubernetes.client.V1Scale, kubernetes.client.V1ScaleSpec
    body = recording.requests[0][3]
    assert set(body) <= set(scale.attribute_map.values())
    assert scale.openapi_types["spec"] == "V1ScaleSpec"
    assert set(body["spec"]) <= set(spec.attribute_map.values())
    assert spec.openapi_types["replicas"] == "int"
    assert isinstance(body["spec"]["replicas"], int)


def test_errors_name_the_deployment_and_the_cause(cluster: tuple[type[Cluster], str]) -> None:
    scaler = a_scaler(cluster[1])
    with pytest.raises(ScalingError, match="deployment serving/worker-k80: 404 Not Found"):
        scaler.count_workers(("k80",))
    with pytest.raises(ScalingError, match="deployment serving/worker-k80: 404 Not Found"):
        scaler.set_workers("k80", 1)
    with pytest.raises(ScalingError, match="deployment serving/worker-v100"):
        a_scaler("http://127.0.0.1:1").count_workers(("v100",))


DEPLOYMENT = {
    "kind": "Deployment",
    "apiVersion": "apps/v1",
    "metadata": {"name": "worker-v100", "namespace": "serving"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "worker"}},
        "template": {
            "metadata": {"labels": {"app": "worker"}},
            "spec": {
                "containers": [
                    {
                        "name": "worker",
                        "image": "horologe-worker:1",
                        "env": [{"name": "A", "value": "1"}, {"name": "HOROLOGE_WORKER_HARDWARE", "value": "old"}],
                    }
                ]
            },
        },
    },
}
DEPLOYMENTS = PATH.removesuffix("/worker-v100/scale")


@pytest.fixture
def deployments() -> Iterator[tuple[dict[str, Any], str]]:
    """An API server with the Deployment of the workers. Yields its Deployments by name, and its URL."""
    stored: dict[str, Any] = {"worker-v100": DEPLOYMENT}

    class Server(Cluster):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            name = path.removeprefix(DEPLOYMENTS).strip("/")
            shares = [item for item in stored.values() if "labels" in item["metadata"]]
            assert name or query == "labelSelector=horologe.io/share"
            self._reply(stored[name] if name else {"kind": "DeploymentList", "items": shares})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stored[body["metadata"]["name"]] = body
            self._reply(body)

        def do_DELETE(self) -> None:
            self._reply(stored.pop(self.path.rpartition("/")[2]))

        def _reply(self, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield stored, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_shares_are_deployments_with_settings_of_their_own(deployments: tuple[dict[str, Any], str]) -> None:
    stored, url = deployments
    scaler = a_scaler(url)
    left, right = WantedShare("left_A.40", "GPU-1", "v100", 40, "mps"), WantedShare("right", "GPU-1", "v100", 60, "mps")
    assert scaler.set_shares((left, right)) == ("left_A.40", "right")
    body = stored["worker-v100-left-a.40"]
    pod = body["spec"]["template"]
    environment = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert body["spec"]["replicas"] == 1
    assert body["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"] == {
        "app": "worker", "horologe.io/share": "left_A.40"
    }  # fmt: skip
    assert environment["A"] == "1"
    assert environment["HOROLOGE_WORKER_HARDWARE"] == "v100"
    assert environment["HOROLOGE_WORKER_SHARE_PERCENT"] == "40"
    assert pod["spec"]["containers"][0]["image"] == "horologe-worker:1"
    assert scaler.set_shares((right,)) == ("right",)
    assert list(stored) == ["worker-v100", "worker-v100-right"]
    with pytest.raises(ScalingError, match=r"got 60 \+ 50 percent, wanted at most 100"):
        scaler.set_shares((right, WantedShare("third", "GPU-1", "v100", 50)))
    with pytest.raises(ScalingError, match="deployment serving/of a share"):
        a_scaler("http://127.0.0.1:1").set_shares((right,))


def test_without_a_cluster_the_setting_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from horologe_tuner.scalers import create_scaler

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    with pytest.raises(SettingsError, match=r"tuner\.scaler: got 'kubernetes', and no cluster is configured"):
        create_scaler(TunerSettings(scaler="kubernetes"))


def test_names_of_hardware_types() -> None:
    from horologe_tuner.scaler import WorkerNames

    names = WorkerNames(("v100=big", "*=worker-*"))
    assert [names.find_name(hardware) for hardware in ("v100", "k80")] == ["big", "worker-k80"]
    with pytest.raises(SettingsError, match="no name for hardware 'k80', only for v100"):
        WorkerNames(("v100=big",)).find_name("k80")
    for entry in ("v100", "=x", "v100="):
        with pytest.raises(SettingsError, match="wanted HARDWARE=NAME"):
            WorkerNames((entry,))
