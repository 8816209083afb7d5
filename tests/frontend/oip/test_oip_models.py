"""Health, metadata, configuration, statistics, repository and authentication of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from fakes.gateway import SPECS, FakeGateway, respond
from frontend.oip_requests import content, error, send
from horologe_common.service.settings import SettingsError
from horologe_common.wire import Admit
from horologe_frontend.auth import BearerKeys, check_open, read_keys
from horologe_frontend.http.client_accounts import ClientAccount
from horologe_frontend.http.http_messages import HttpRequest, HttpResponse
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from pathlib import Path

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


def test_config_has_the_fields_of_triton() -> None:
    config = content(send("GET", "/v2/models/echo/config"))
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "in", "data_type": "TYPE_FP32", "dims": [4]}]
    config = content(send("GET", "/v2/models/huge/config"))
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [-1]


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


def write_and_read_keys(path: Path, text: str) -> BearerKeys:
    path.write_text(text)
    keys = read_keys(str(path))
    assert keys is not None
    return keys


def test_keys(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"second").hexdigest()
    keys = write_and_read_keys(tmp_path / "keys", f"# ours\n\nfirst\nsha256:{hashed}\n")
    for good in (b"Bearer first", b"bearer second", b"Bearer  first "):
        assert keys.is_accepted(good)
    for bad in (
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic first",
        b"first",
        b"Bearer sha256:" + hashed.encode(),
        b"\xff",
    ):
        assert not keys.is_accepted(bad)
    assert read_keys("") is None
    assert not BearerKeys(()).is_accepted(None)


@pytest.mark.parametrize("text", ["", "# nothing\n", "sha256:zz", "sha256:00"])
def test_key_file_without_a_valid_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"http\.keys_file"):
        write_and_read_keys(tmp_path / "keys", text)


def test_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"http\.keys_file"):
        read_keys(str(tmp_path / "nope"))


def test_responses_without_a_key_are_equal() -> None:
    oip = OipHandler(FakeGateway(), HttpSettings(), BearerKeys([hashlib.sha256(b"k").digest()]))
    answers = {
        send(method, path, oip=oip)
        for method, path in (
            ("GET", "/v2"),
            ("GET", "/v2/models/echo"),
            ("GET", "/v1/applications"),
            ("POST", "/v2/models/nope/infer"),
            ("GET", "/x"),
        )
    }
    headers = (b"horologe-status", b"UNAUTHENTICATED"), (b"www-authenticate", b"Bearer")
    expected = HttpResponse(401, b'{"error":"unauthenticated","status":"UNAUTHENTICATED"}', headers=headers)
    assert answers == {expected}
    assert send("GET", "/v2/health/live", oip=oip).status == 200
    assert send("GET", "/v2/health/live/../../models", oip=oip).status == 401
    with_key = HttpRequest("GET", "/v2", "", {b"authorization": b"Bearer k"})
    assert asyncio.run(respond(oip, with_key)).status == 200


def test_management_needs_a_key_of_its_own() -> None:
    def keys(key: bytes) -> BearerKeys:
        return BearerKeys([hashlib.sha256(key).digest()])

    def status(oip: OipHandler, method: str, path: str, key: bytes) -> int:
        head = HttpRequest(method, path, "", {b"authorization": b"Bearer " + key} if key else {})
        return (oip.refuse(head) or asyncio.run(respond(oip, head))).status

    managed = OipHandler(FakeGateway(), HttpSettings(), keys(b"client"), managers=keys(b"manager"))
    unmanaged = OipHandler(FakeGateway(), HttpSettings(), keys(b"client"))
    for method, path in (
        ("POST", "/v2/repository/models/echo/unload"),
        ("POST", "/v2/repository/models/echo/load"),
        ("DELETE", "/v1/applications/digits"),
        ("PUT", "/v1/applications/digits"),
        ("POST", "/v1/applications/digits/rollback"),
    ):
        assert [status(managed, method, path, key) for key in (b"", b"client")] == [401, 403]
        assert status(unmanaged, method, path, b"client") == 403
        assert status(managed, method, path, b"manager") not in (401, 403)
    assert [status(managed, "GET", "/v2", key) for key in (b"client", b"manager", b"other")] == [200, 200, 401]
    assert status(OipHandler(FakeGateway(), HttpSettings()), "POST", "/v2/repository/models/echo/load", b"") == 200


def test_a_web_page_cannot_manage_an_open_server() -> None:
    headers = {b"origin": b"https://elsewhere.example"}
    request = HttpRequest("POST", "/v2/repository/models/echo/unload", "", headers)
    assert asyncio.run(respond(OipHandler(FakeGateway(), HttpSettings()), request)).status == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "example.org", "127.0.0.1.example.org"])
def test_an_address_beyond_this_machine_needs_keys(host: str) -> None:
    with pytest.raises(SettingsError, match=r"setting http.host: .* is not loopback and no keys are set"):
        check_open(HttpSettings(host=host))
    check_open(HttpSettings(host=host, allow_open=True))
    check_open(HttpSettings(host=host, keys_file="keys"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_keys(host: str) -> None:
    check_open(HttpSettings(host=host))


def test_http_clients_are_named_by_their_key_or_else_by_their_address() -> None:
    """A header that nobody checks names no client: each request could carry another one."""
    body = b'{"inputs": [{"name": "in", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
    keyed = BearerKeys([hashlib.sha256(key).digest() for key in (b"a", b"b")])
    names = []
    for keys in (None, keyed):
        gateway = FakeGateway()
        oip = OipHandler(gateway, HttpSettings(), keys)
        for key in (b"a", b"a", b"b"):
            headers = {b"authorization": b"Bearer " + key}
            request = HttpRequest("POST", "/v2/models/echo/infer", "", headers, body, ClientAccount(name="10.0.0.7"))
            assert asyncio.run(respond(oip, request)).status == 200
        names.append(gateway.clients)
    without_keys, with_keys = names
    assert without_keys == ["10.0.0.7"] * 3
    assert with_keys[0] == with_keys[1] != with_keys[2]
    assert not any("10.0.0.7" in name for name in with_keys)
