"""The HTTP server over real sockets."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.key_entries import keys_of
from system.http_server_thread import GOOD, HttpServerThread, is_closed, read_response, request

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 1_000_000


def test_httpx_client(http: HttpServerThread) -> None:
    with httpx.Client(base_url=http.server.url) as client:
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        for _ in range(3):
            assert client.post("/v2/models/echo/infer", content=GOOD).json()["model_name"] == "echo"
        assert client.get("/v2/models/nope").status_code == 404
        assert client.put("/v2/models/echo").headers["allow"] == "GET, HEAD"
        assert client.get("/v2?verbose=1").status_code == 200
        response = client.get("/v2/models/stats", headers={"Accept-Encoding": "gzip"})
        assert "content-encoding" not in response.headers  # Triton's asyncio client could not read it
        assert len(response.content) > 1024
        tensor = {"name": "in", "shape": [1], "datatype": "BYTES", "data": ["x" * 2000]}
        response = client.post("/v2/models/text/infer", json={"inputs": [tensor]}, headers={"Accept-Encoding": "gzip"})
        assert response.headers["content-encoding"] == "gzip"
        assert response.json()["outputs"][0]["data"] == tensor["data"]


def test_head_has_no_body(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers, _ = read_response(sock, body=False)
        assert (status, headers["content-length"]) == (200, headers["content-length"])
        assert read_response(sock)[0] == 200


def test_chunked_body_with_trailers(http: HttpServerThread) -> None:
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (GOOD[:10], GOOD[10:]))
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with http.connect() as sock:
        for _ in range(2):
            sock.sendall(head + chunks + b"0\r\nContent-Encoding: junk\r\n\r\n")
            assert read_response(sock)[0] == 200


def test_http_1_0_and_close(http: HttpServerThread) -> None:
    for extra, version in (("", "1.0"), ("Connection: close\r\n", "1.1")):
        with http.connect() as sock:
            sock.sendall(request(extra=extra, version=version))
            status, headers, _ = read_response(sock)
            assert (status, headers["connection"]) == (200, "close")
            assert is_closed(sock)


@pytest.mark.parametrize("tensors", [1, 400_000])
def test_tritonclient(http: HttpServerThread, tensors: int) -> None:
    """Run tritonclient in a separate process, because it uses gevent."""
    import subprocess
    import sys

    code = """
import sys, numpy as np, tritonclient.http as http
from tritonclient.utils import InferenceServerException
client = http.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("echo")
assert client.get_server_metadata()["name"] == "horologe"
assert client.get_model_metadata("echo", "9")["inputs"][0]["name"] == "in"
assert client.get_model_config("echo")["max_batch_size"] == 8
assert any(m["name"] == "gone" for m in client.get_model_repository_index())
client.load_model("echo"); client.unload_model("echo")
x = np.random.rand(int(sys.argv[2]), 4).astype("f4")
for binary in (True, False) if len(x) == 1 else (True,):
    for packing in (None, "gzip", "deflate"):
        item = http.InferInput("in", x.shape, "FP32"); item.set_data_from_numpy(x, binary_data=binary)
        out = http.InferRequestedOutput("out", binary_data=binary)
        result = client.infer("echo", [item], outputs=[out], request_id="7", timeout=50_000, priority=1,
            parameters={"slo_ms": 40}, request_compression_algorithm=packing, response_compression_algorithm=packing)
        assert result.get_response()["id"] == "7"
        np.testing.assert_array_equal(result.as_numpy("out"), x)
    item = http.InferInput("in", [2], "BYTES")
    item.set_data_from_numpy(np.array([b"a", "p\u0159".encode()], object), binary_data=binary)
    assert client.infer("text", [item]).as_numpy("out").tolist() == [b"a", "p\u0159".encode()]
half = http.InferInput("in", [1, 2], "FP16"); half.set_data_from_numpy(np.ones((1, 2), "f2"))
assert client.infer("half", [half]).as_numpy("out").dtype == np.float16
assert client.get_inference_statistics("text")["model_stats"][0]["inference_count"] >= 1
for name, status in (("refused", "429"), ("late", "504"), ("nope", "404"), ("failed", "500")):
    try:
        item = http.InferInput("in", [1, 4], "FP32"); item.set_data_from_numpy(x[:1])
        client.infer(name, [item])
    except InferenceServerException as error:
        assert error.status() == status and error.message(), error
    else:
        raise AssertionError(name)
client.close()
"""
    done = subprocess.run([sys.executable, "-c", code, http.address, str(tensors)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_stop_finishes_requests_in_flight(http: HttpServerThread) -> None:
    with http.connect() as idle, http.connect() as sock:
        sock.sendall(request("slow"))
        http.wait(lambda: len(http.gateway.predicts) == 1)
        stopping = threading.Thread(target=http.stop)
        stopping.start()
        assert is_closed(idle)
        with pytest.raises(ConnectionRefusedError):
            http.connect()
        http.release_slow()
        status, headers, _ = read_response(sock)
        assert (status, headers["connection"]) == (200, "close")
        assert is_closed(sock)
        stopping.join()


def test_a_request_on_its_way_at_a_stop_is_served(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(request("echo"))
        assert read_response(sock)[0] == 200
        stopping = threading.Thread(target=http.stop)
        stopping.start()
        http.wait(lambda: http.server.closing)
        sock.sendall(request("echo"))
        status, headers, _ = read_response(sock)
        assert (status, headers["connection"]) == (200, "close")
        assert is_closed(sock)
        stopping.join()


def test_stop_cancels_requests_after_the_drain_timeout() -> None:
    with HttpServerThread(drain_ns=300 * MS) as http, http.connect() as sock:
        sock.sendall(request("slow"))
        http.wait(lambda: len(http.gateway.predicts) == 1)
        http.stop()
        assert http.gateway.cancelled == 1
        assert is_closed(sock)


def test_keys() -> None:
    with HttpServerThread(keys_of("secret")) as http:
        url = http.server.url
        assert httpx.get(f"{url}/v2/health/ready").status_code == 200
        for method, path in (("GET", "/v2"), ("POST", "/v2/models/echo/infer"), ("GET", "/nope")):
            response = httpx.request(method, url + path)
            assert (response.status_code, response.json()["status"]) == (401, "UNAUTHENTICATED")
            assert response.headers["www-authenticate"] == "Bearer"
        headers = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{url}/v2/models/echo/infer", content=GOOD, headers=headers).status_code == 200
        with http.connect() as sock:
            sock.sendall(b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
            assert read_response(sock)[0] == 401
        assert httpx.post(f"{url}/v2", content=bytes(1_000_000)).status_code == 401


fragments = st.sampled_from(
    [
        b"GET ",
        b"POST ",
        b"/v2",
        b"/v2/models/echo/infer",
        b" HTTP/1.1",
        b"\r\n",
        b"\r\n\r\n",
        b"Host: x",
        b": ",
        b"\n",
        b"Content-Length: 5",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"Expect: 100-continue",
        b"5\r\nhello",
        b"0\r\n\r\n",
        GOOD,
        request(),
        b"Inference-Header-Content-Length: 9",
        b"Content-Encoding: gzip",
        b"\x00",
        b" ",
    ]
)


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServerThread]:
    with HttpServerThread(body_timeout_ns=50 * MS) as http:
        yield http


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(st.one_of(fragments, st.binary(max_size=20)), max_size=12))
def test_any_bytes_get_a_response_or_a_close(shared: HttpServerThread, parts: list[bytes]) -> None:
    with shared.connect() as sock:
        sock.sendall(b"".join(parts))
        sock.shutdown(socket.SHUT_WR)
        assert is_closed(sock)
    with shared.connect() as sock:
        sock.sendall(request())
        assert read_response(sock)[0] == 200


def test_many_clients_get_their_own_answers(http: HttpServerThread) -> None:
    def client(number: int, results: list[Any]) -> None:
        with httpx.Client(base_url=http.server.url) as client:
            for i in range(30):
                body = GOOD.replace(b"[1,2", b"[%d,%d" % (number, i))
                data = client.post("/v2/models/echo/infer", content=body).json()["outputs"][0]["data"]
                results.append(data[:2] == [number, i])

    results: list[Any] = []
    threads = [threading.Thread(target=client, args=(number, results)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 240
