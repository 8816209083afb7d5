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
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments"
PATH = f"{DEPLOYMENTS}/worker-v100/scale"
SCALE = {
    "kind": "Scale",
    "apiVersion": "autoscaling/v1",
    "metadata": {"name": "worker-v100", "namespace": "serving", "resourceVersion": "48213"},
    "spec": {"replicas": 2},
    "status": {"replicas": 2, "selector": "app=horologe-worker,hardware=v100"},
}
"""The answer of an API server to `kubectl get --raw .../deployments/worker-v100/scale`."""
NOT_FOUND = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": 'deployments.apps "worker-k80" not found',
    "reason": "NotFound",
    "code": 404,
}
ENVIRONMENT = [{"name": "A", "value": "1"}, {"name": "HOROLOGE_WORKER_HARDWARE", "value": "old"}]
DEPLOYMENT = {
    "kind": "Deployment",
    "apiVersion": "apps/v1",
    "metadata": {"name": "worker-v100", "namespace": "serving"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "worker"}},
        "template": {
            "metadata": {"labels": {"app": "worker"}},
            "spec": {"containers": [{"name": "worker", "image": "horologe-worker:1", "env": ENVIRONMENT}]},
        },
    },
}
PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json")


class Cluster(BaseHTTPRequestHandler):
    """Answers as an API server with one Deployment of workers, and records the requests."""

    requests: list[tuple[str, str, str, Any]]
    scale: dict[str, Any]
    stored: dict[str, Any]
    """Deployments by name."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        name = path.removeprefix(DEPLOYMENTS).strip("/")
        if path == DEPLOYMENTS and query == "labelSelector=horologe.io/share":
            shares = [item for item in self.stored.values() if "labels" in item["metadata"]]
            self._answer({"kind": "DeploymentList", "items": shares})
        else:
            self._answer(self.scale if path == PATH else self.stored.get(name, NOT_FOUND))

    def do_PATCH(self) -> None:
        body = self._read()
        if isinstance(body, dict) and self.path == PATH:
            self.scale["spec"] = body["spec"]
        self._answer(self.scale if self.path == PATH else NOT_FOUND, body)

    def do_POST(self) -> None:
        body = self._read()
        self.stored[body["metadata"]["name"]] = body
        self._answer(body)

    def do_DELETE(self) -> None:
        self._answer(self.stored.pop(self.path.rpartition("/")[2]))

    def _read(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, document: dict[str, Any], body: Any = None) -> None:
        self.requests.append((self.command, self.path, self.headers.get("Content-Type", ""), body))
        data = json.dumps(document).encode()
        self.send_response(document.get("code", 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def cluster() -> Iterator[tuple[type[Cluster], str]]:
    answers = {"requests": [], "scale": dict(SCALE), "stored": {"worker-v100": DEPLOYMENT}}
    recording: type[Cluster] = type("Recording", (Cluster,), answers)
    server = HTTPServer(("127.0.0.1", 0), recording)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield recording, f"http://127.0.0.1:{server.server_port}"
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
    assert set(body) <= set(kubernetes.client.V1Scale.attribute_map.values())
    assert set(body["spec"]) <= set(kubernetes.client.V1ScaleSpec.attribute_map.values())


def test_errors_name_the_deployment_and_the_cause(cluster: tuple[type[Cluster], str]) -> None:
    scaler = a_scaler(cluster[1])
    with pytest.raises(ScalingError, match="deployment serving/worker-k80: 404 Not Found"):
        scaler.count_workers(("k80",))
    with pytest.raises(ScalingError, match="deployment serving/worker-k80: 404 Not Found"):
        scaler.set_workers("k80", 1)
    with pytest.raises(ScalingError, match="deployment serving/worker-v100"):
        a_scaler("http://127.0.0.1:1").count_workers(("v100",))


def test_shares_are_deployments_with_settings_of_their_own(cluster: tuple[type[Cluster], str]) -> None:
    stored, url = cluster[0].stored, cluster[1]
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
