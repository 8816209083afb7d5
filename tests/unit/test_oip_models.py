"""Health, metadata, configuration, statistics, repository and authentication of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from fake_gateway import FakeGateway
from horologe_common.service.settings import SettingsError
from horologe_frontend.auth import BearerKeys, read_keys
from horologe_frontend.http.http_responses import HttpResponse
from horologe_frontend.http.request_reader import HttpRequest
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from pathlib import Path

GOOD = b'{"inputs":[{"name":"in","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


def ask(
    method: str, path: str, body: bytes = b"", port: FakeGateway | None = None, oip: OipHandler | None = None
) -> HttpResponse:
    oip = oip or OipHandler(port or FakeGateway(), HttpSettings(), version="1.2.3")
    return asyncio.run(oip.handle(HttpRequest(method, path, "", {}, body)))


def content(response: HttpResponse) -> Any:
    assert response.status == 200, response.body
    return json.loads(response.body)


def test_server_metadata() -> None:
    server = content(ask("GET", "/v2"))
    assert server["name"] == "horologe"
    assert server["version"] == "1.2.3"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(server["extensions"])
    assert content(ask("GET", "/v2/")) == server


def test_health_has_json_bodies() -> None:
    port = FakeGateway()
    oip = OipHandler(port, HttpSettings())
    assert content(ask("GET", "/v2/health/live", oip=oip)) == {"live": True}
    assert content(ask("GET", "/v2/health/ready", oip=oip)) == {"ready": True}
    port.ready = False
    assert ask("GET", "/v2/health/ready", oip=oip)[:2] == (503, b'{"ready":false}')
    port.ready, oip.draining = True, True
    assert ask("GET", "/v2/health/ready", oip=oip).status == 503
    assert ask("GET", "/v2/models/echo/ready", oip=oip).status == 503
    assert ask("POST", "/v2/models/echo/infer", GOOD, oip=oip).status == 200


def test_model_metadata_is_of_the_newest_version_by_number() -> None:
    model = content(ask("GET", "/v2/models/echo"))
    assert model == {
        "name": "echo",
        "versions": ["1", "9", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "in", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "out", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert content(ask("GET", "/v2/models/echo/versions/9"))["name"] == "echo"
    assert ask("GET", "/v2/models/echo/versions/8").status == 404
    assert "echo" in content(ask("GET", "/v2/models"))["models"]


def test_model_ready() -> None:
    assert content(ask("GET", "/v2/models/echo/versions/1/ready")) == {"name": "echo", "ready": True}
    assert ask("GET", "/v2/models/gone/ready").status == 503
    assert ask("GET", "/v2/models/nope/ready").status == 404


def test_config_speaks_triton() -> None:
    config = content(ask("GET", "/v2/models/echo/config"))
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "in", "data_type": "TYPE_FP32", "dims": [4]}]
    config = content(ask("GET", "/v2/models/huge/config"))
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [-1]


def test_statistics() -> None:
    port = FakeGateway()
    for _ in range(4):
        assert ask("POST", "/v2/models/echo/versions/10/infer", GOOD, port).status == 200
    stats = content(ask("GET", "/v2/models/echo/versions/10/stats", port=port))["model_stats"]
    assert len(stats) == 1
    assert stats[0]["inference_count"] == 4
    assert stats[0]["execution_count"] == 2
    assert stats[0]["inference_stats"]["success"] == {"count": 4, "ns": 20_000}
    assert stats[0]["inference_stats"]["queue"] == {"count": 4, "ns": 4_000}
    assert stats[0]["batch_stats"][0]["batch_size"] == 2
    assert stats[0]["last_inference"] > 0
    assert len(content(ask("GET", "/v2/models/echo/stats", port=port))["model_stats"]) == 3
    assert len(content(ask("GET", "/v2/models/stats", port=port))["model_stats"]) == len(port.states)


@pytest.mark.parametrize("prefix", ["/v2/repository", "/v2/repository/main"])
def test_repository(prefix: str) -> None:
    port = FakeGateway()
    index = content(ask("POST", f"{prefix}/index", port=port))
    assert {"name": "gone", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"} in index
    assert all(m["state"] == "READY" for m in content(ask("POST", f"{prefix}/index", b'{"ready":true}', port)))
    assert ask("POST", f"{prefix}/models/gone/load", b"{}", port)[:2] == (200, b"")
    assert ask("POST", f"{prefix}/models/gone/unload", b'{"parameters":{"unload_dependents":true}}', port).status == 200
    assert port.admitted == [("gone", "", True), ("gone", "", False)]
    assert ask("POST", f"{prefix}/models/nope/load", b"", port).status == 404
    assert ask("POST", f"{prefix}/models/gone/load", b"{", port).status == 400
    assert ask("POST", f"{prefix}/models/gone/load", b'{"parameters":{"config":"{}"}}', port).status == 501


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
        "/v2/" + "a/" * 5000,
    ],
)
def test_unknown_paths(path: str) -> None:
    response = ask("GET", path)
    if path == "/v2/models/":
        assert response.status == 200
    else:
        assert (response.status, json.loads(response.body)) == (404, {"error": "unknown path"})


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v2/models/echo/infer", b"POST"),
        ("POST", "/v2/health/live", b"GET, HEAD"),
        ("DELETE", "/v2/models/echo", b"GET, HEAD"),
        ("GET", "/v2/repository/index", b"POST"),
    ],
)
def test_wrong_verb(method: str, path: str, allow: bytes) -> None:
    response = ask(method, path)
    assert response.status == 405
    assert (b"allow", allow) in response.headers


@pytest.mark.parametrize(
    "path", ["/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/register", "/v2/logging"]
)
def test_extensions_that_are_not_offered_say_so(path: str) -> None:
    assert ask("POST", path).status == 501


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
def test_key_file_that_would_leave_the_door_open(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"http\.keys_file"):
        write_and_read_keys(tmp_path / "keys", text)


def test_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"http\.keys_file"):
        read_keys(str(tmp_path / "nope"))


def test_without_a_key_nothing_is_revealed() -> None:
    oip = OipHandler(FakeGateway(), HttpSettings(), BearerKeys([hashlib.sha256(b"k").digest()]))
    answers = {
        ask(method, path, oip=oip)
        for method, path in (
            ("GET", "/v2"),
            ("GET", "/v2/models/echo"),
            ("POST", "/v2/models/nope/infer"),
            ("GET", "/x"),
        )
    }
    expected = HttpResponse(401, b'{"error":"unauthenticated"}', headers=((b"www-authenticate", b"Bearer"),))
    assert answers == {expected}
    assert ask("GET", "/v2/health/live", oip=oip).status == 200
    assert ask("GET", "/v2/health/live/../../models", oip=oip).status == 401
    with_key = HttpRequest("GET", "/v2", "", {b"authorization": b"Bearer k"})
    assert asyncio.run(oip.handle(with_key)).status == 200
