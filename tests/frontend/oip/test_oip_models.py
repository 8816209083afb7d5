"""Health, metadata, configuration, statistics and repository of the Open Inference Protocol."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fakes.gateway import FLOATS, SPECS, FakeGateway, a_model
from frontend.oip_requests import content, error, send
from horologe_common.models import ModelSpec
from horologe_common.wire import Admit, ModelState
from horologe_frontend.http.http_messages import HttpResponse
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

GOOD = b'{"inputs":[{"name":"in","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


def test_server_metadata() -> None:
    server = content(send("GET", "/v2"))
    assert server["name"] == "horologe"
    assert server["version"] == "1.2.3"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(server["extensions"])
    assert content(send("GET", "/v2/")) == server


def test_health_has_json_bodies() -> None:
    gateway = FakeGateway()
    oip = OipHandler(gateway, HttpSettings())
    assert content(send("GET", "/v2/health/live", oip=oip)) == {"live": True}
    assert content(send("GET", "/v2/health/ready", oip=oip)) == {"ready": True}
    gateway.ready = False
    assert send("GET", "/v2/health/ready", oip=oip) == HttpResponse(503, b'{"ready":false}')
    gateway.ready, oip.draining = True, True
    assert send("GET", "/v2/health/ready", oip=oip).status == 503
    assert send("GET", "/v2/models/echo/ready", oip=oip).status == 503
    assert send("POST", "/v2/models/echo/infer", GOOD, oip=oip).status == 200


def test_model_metadata_of_the_newest_version() -> None:
    model = content(send("GET", "/v2/models/echo"))
    assert model == {
        "name": "echo",
        "versions": ["1", "9", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "in", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "out", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert content(send("GET", "/v2/models/echo/versions/9"))["name"] == "echo"
    assert send("GET", "/v2/models/echo/versions/8").status == 404
    assert "echo" in content(send("GET", "/v2/models"))["models"]


def test_model_ready() -> None:
    ready = content(send("GET", "/v2/models/echo/versions/1/ready"))
    assert ready == {"name": "echo", "ready": True, "state": "READY", "reason": ""}
    gone = send("GET", "/v2/models/gone/ready")
    document = json.loads(gone.body)
    assert (gone.status, document["ready"], document["state"]) == (503, False, "UNAVAILABLE")
    assert send("GET", "/v2/models/nope/ready").status == 404


def test_a_model_that_was_never_read_has_no_documents_and_says_why() -> None:
    gateway = FakeGateway()
    unread = ModelState(ModelSpec("bad", "1", "", (), ()), "UNAVAILABLE", "model.toml: slo: got 3")
    gateway.core.catalogue.replace_models([unread])
    for method, path in (("GET", ""), ("GET", "/config"), ("POST", "/infer"), ("POST", "/generate")):
        response = send(method, f"/v2/models/bad{path}", GOOD if method == "POST" else b"", gateway)
        error = json.loads(response.body)["error"]
        assert (response.status, error) == (404, "model 'bad/1' is unavailable: model.toml: slo: got 3")


def test_config_has_the_fields_of_triton() -> None:
    config = content(send("GET", "/v2/models/echo/config"))
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "in", "data_type": "TYPE_FP32", "dims": [4]}]
    config = content(send("GET", "/v2/models/huge/config"))
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [-1]


def test_config_of_a_model_whose_requests_have_rows_and_run_alone() -> None:
    gateway = FakeGateway()
    changes = {"batched": False, "batch_sizes": (1,), "max_rows": 4}
    spec = msgspec.structs.replace(a_model("echo", FLOATS), **changes)
    gateway.core.catalogue.replace_models([ModelState(spec)])
    config = content(send("GET", "/v2/models/echo/config", gateway=gateway))
    assert (config["max_batch_size"], config["input"][0]["dims"], config["output"][0]["dims"]) == (4, [4], [4])
    assert "dynamic_batching" not in config


def test_config_names_optional_inputs_and_files_of_labels() -> None:
    gateway = FakeGateway()
    spec = msgspec.structs.replace(a_model("echo", FLOATS), optional=("in",), labels=(("a",),), label_files=("l.txt",))
    gateway.core.catalogue.replace_models([ModelState(spec)])
    config = content(send("GET", "/v2/models/echo/config", gateway=gateway))
    assert config["input"] == [{"name": "in", "data_type": "TYPE_FP32", "dims": [4], "optional": True}]
    assert config["output"] == [{"name": "out", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "l.txt"}]


def test_statistics() -> None:
    gateway = FakeGateway()
    for _ in range(4):
        assert send("POST", "/v2/models/echo/versions/10/infer", GOOD, gateway).status == 200
    stats = content(send("GET", "/v2/models/echo/versions/10/stats", gateway=gateway))["model_stats"]
    assert len(stats) == 1
    assert stats[0]["inference_count"] == 4
    assert stats[0]["execution_count"] == 2
    assert stats[0]["inference_stats"]["success"] == {"count": 4, "ns": 20_000}
    assert stats[0]["inference_stats"]["queue"] == {"count": 4, "ns": 4_000}
    assert stats[0]["batch_stats"][0]["batch_size"] == 2
    for part, count in ((stats[0]["inference_stats"], 4), (stats[0]["batch_stats"][0], 2)):
        assert [part[f"compute_{name}"]["count"] for name in ("input", "infer", "output")] == [count] * 3
    assert stats[0]["last_inference"] > 0
    assert len(content(send("GET", "/v2/models/echo/stats", gateway=gateway))["model_stats"]) == 3
    assert len(content(send("GET", "/v2/models/stats", gateway=gateway))["model_stats"]) == len(SPECS) + 1


@pytest.mark.parametrize("prefix", ["/v2/repository", "/v2/repository/main"])
def test_repository(prefix: str) -> None:
    gateway = FakeGateway()
    index = content(send("POST", f"{prefix}/index", gateway=gateway))
    assert {"name": "gone", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"} in index
    assert all(m["state"] == "READY" for m in content(send("POST", f"{prefix}/index", b'{"ready":true}', gateway)))
    loaded = send("POST", f"{prefix}/models/gone/load", b"{}", gateway)
    assert [state["name"] for state in content(loaded)] == ["gone"]
    assert (
        send("POST", f"{prefix}/models/gone/unload", b'{"parameters":{"unload_dependents":true}}', gateway).status
        == 200
    )
    assert gateway.calls == [Admit(0, "gone", "", True), Admit(0, "gone", "", False)]
    assert send("POST", f"{prefix}/models/nope/load", b"", gateway).status == 404
    assert send("POST", f"{prefix}/models/gone/load", b"{", gateway).status == 400
    assert send("POST", f"{prefix}/models/gone/load", b'{"parameters":{"config":"{}"}}', gateway).status == 501
    said = error(send("POST", f"{prefix}/models/gone/unload", {"parameters": {"unload_dependents": "no"}}, gateway))
    assert said == "parameters: unload_dependents: got 'no', wanted true or false"


def test_a_load_changes_versions() -> None:
    gateway = FakeGateway()
    path = "/v2/repository/models/gone"
    for parameters in ({"promote": "2"}, {"promote": ""}, {"rollback": True}, {"canary": "3", "weight": 0.25}):
        assert send("POST", f"{path}/load", json.dumps({"parameters": parameters}).encode(), gateway).status == 200
    rollouts = [(call.rollout, call.version, call.weight) for call in gateway.calls]
    assert rollouts == [("promote", "2", 0), ("promote", "", 0), ("rollback", "", 0), ("canary", "3", 0.25)]
    both = {"promote": "2", "rollback": True}
    wrong: tuple[dict[str, Any], ...] = ({"promote": 1}, {"rollback": False}, {"canary": "2"}, {"weight": 1}, both)
    for parameters in wrong:
        assert send("POST", f"{path}/load", json.dumps({"parameters": parameters}).encode(), gateway).status == 400
    assert send("POST", f"{path}/unload", b'{"parameters":{"promote":"2"}}', gateway).status == 400
    no_number: tuple[Any, ...] = (None, True, [], "much", 10**400)  # the last has no 64-bit float
    for weight in no_number:
        body = json.dumps({"parameters": {"canary": "2", "weight": weight}}).encode()
        assert "parameters.weight: got " in error(send("POST", f"{path}/load", body, gateway))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1",
        "/v2/nope",
        "/v2/models/",
        "/v2//models",
        "v2",
        "/v2/models/echo/nope",
        "/v2/models//infer",
        "/v2/models/echo/versions",
        "/v2/models/echo/versions//infer",
        "/v2/repository",
        "/v1/models",
        "/v1/applications/digits/nonsense",
        "/v1/applications/%FF",
        "/v1/applications/a%ED%A0%80",
        "/v2/" + "a/" * 5000,
    ],
)
def test_unknown_paths(path: str) -> None:
    response = send("GET", path)
    if path == "/v2/models/":
        assert response.status == 200
    else:
        body = {"error": "unknown path", "status": "NOT_FOUND"}
        assert (response.status, json.loads(response.body)) == (404, body)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v2/models/echo/infer", b"POST"),
        ("POST", "/v2/health/live", b"GET, HEAD"),
        ("DELETE", "/v2/models/echo", b"GET, HEAD"),
        ("GET", "/v2/repository/index", b"POST"),
        ("POST", "/v1/applications/digits", b"GET, HEAD, PUT, DELETE"),
        ("PUT", "/v1/applications", b"GET, HEAD"),
        ("GET", "/v1/applications/digits/predict", b"POST"),
    ],
)
def test_wrong_method(method: str, path: str, allow: bytes) -> None:
    response = send(method, path)
    assert (response.status, json.loads(response.body)["status"]) == (405, "METHOD_NOT_ALLOWED")
    assert (b"allow", allow) in response.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
        ("POST", "/v2/systemsharedmemory/unregister"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/models/echo/trace/setting"),
        ("POST", "/v1/models/echo:predict"),
        ("GET", "/v1/models/echo"),
    ],
)
def test_unsupported_extensions(method: str, path: str) -> None:
    response = send(method, path)
    assert (response.status, json.loads(response.body)["status"]) == (501, "NOT_IMPLEMENTED")
