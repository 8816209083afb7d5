"""The HTTP server over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horologe_frontend.auth import read_keys
from http_server_thread import HttpServerThread, read_response

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOOD = b'{"inputs":[{"name":"in","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
MS = 1_000_000


def request(model: str = "echo", body: bytes = GOOD, extra: str = "", version: str = "1.1") -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


@pytest.fixture
def http() -> Iterator[HttpServerThread]:
    with HttpServerThread() as http:
        yield http


def check_infer(http: HttpServerThread) -> None:
    response = httpx.post(f"{http.server.url}/v2/models/echo/infer", content=GOOD)
    assert response.status_code == 200, response.text
    assert response.json()["outputs"][0]["data"] == [1, 2, 3, 4]


def is_closed(sock: socket.socket) -> bool:
    """Read to the end. Return True when the server has closed the connection."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def flood(sock: socket.socket, data: bytes, times: int, pause: float = 0) -> None:
    for _ in range(times):
        sock.sendall(data)
        threading.Event().wait(pause)


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
        assert response.headers["content-encoding"] == "gzip"
        assert response.json()["model_stats"]


def test_head_has_no_body(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers, _ = read_response_once(sock, body=False)
        assert (status, headers["content-length"]) == (200, headers["content-length"])
        assert read_response(sock)[0] == 200


def read_response_once(sock: socket.socket, body: bool) -> tuple[int, dict[str, str], bytes]:
    """Read a response byte by byte, so that a pipelined response behind it stays unread."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += sock.recv(1)
    lines = data.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    rest = b""
    while body and len(rest) < int(headers["content-length"]):
        rest += sock.recv(1)
    return int(lines[0].split()[1]), headers, rest


def test_pipelined_requests_are_answered_in_order(http: HttpServerThread) -> None:
    bodies = [GOOD.replace(b"[1,2", b"[%d,2" % i) for i in range(20)]
    with http.connect() as sock:
        sock.sendall(b"".join(request(body=body) for body in bodies))
        firsts = [json.loads(read_response_once(sock, True)[2])["outputs"][0]["data"][0] for _ in bodies]
    assert firsts == list(range(20))


def test_request_in_single_bytes(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request():
            sock.sendall(bytes([byte]))
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


def test_expect_100_continue(http: HttpServerThread) -> None:
    head, _, body = request(extra="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with http.connect() as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert read_response(sock)[0] == 100
        sock.sendall(body)
        assert read_response(sock)[0] == 200


def test_upgrade_is_ignored(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert read_response(sock)[0] == 200
    check_infer(http)


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
for name, status in (("refused", "503"), ("late", "504"), ("nope", "404"), ("failed", "500")):
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


def test_body_over_the_limit_is_refused_unread() -> None:
    with HttpServerThread(body_limit_bytes=100_000) as http:
        with http.connect() as sock:
            sock.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000000\r\n\r\n")
            status, _, body = read_response(sock)
            assert status == 413
            assert b"at most 100000" in body
        response = httpx.post(f"{http.server.url}/v2/models/echo/infer", content=bytes(3_000_000))
        assert response.status_code == 413
        with http.connect() as sock:
            sock.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            sock.sendall(b"%x\r\n%s\r\n" % (150_000, bytes(150_000)))
            assert read_response(sock)[0] == 413
        check_infer(http)


def test_bytes_of_all_bodies_are_bounded() -> None:
    with HttpServerThread(held_limit_bytes=1000) as http:
        response = httpx.post(f"{http.server.url}/v2/models/echo/infer", content=bytes(1001))
        assert (response.status_code, response.headers["horologe-status"]) == (503, "REFUSED")
        check_infer(http)


@pytest.mark.parametrize("filler", [b"x" * 80_000, b"X: " + b"y" * 80_000, b"X: y\r\n" * 15_000])
def test_headers_over_the_limit(http: HttpServerThread, filler: bytes) -> None:
    with http.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\n" + filler)
        assert read_response(sock)[0] in (400, 431)
        assert is_closed(sock)
    with http.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
        assert read_response(sock)[0] == 431
    check_infer(http)


def test_endless_header_closes_the_connection(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            flood(sock, b"y" * 100_000, times=100, pause=0.05)
    check_infer(http)


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET \xff\xfe HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nbad header\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_malformed_http_gets_an_error(http: HttpServerThread, junk: bytes) -> None:
    with http.connect() as sock:
        sock.sendall(junk)
        try:
            assert 400 <= read_response(sock)[0] < 600
            sock.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass
        assert is_closed(sock)
    check_infer(http)


def test_slow_clients_time_out() -> None:
    with HttpServerThread(header_timeout_ns=150 * MS, body_timeout_ns=150 * MS, idle_timeout_ns=1000 * MS) as http:
        for start in (b"GET /v2 HT", request()[:-5], b"POST /v2 HTTP/1.1\r\nHost: x\r\nX: y\r\n"):
            with http.connect() as sock:
                sock.sendall(start)
                assert read_response(sock)[0] == 408
                sock.shutdown(socket.SHUT_WR)
                assert is_closed(sock)
        with http.connect() as sock:
            assert is_closed(sock)
        with http.connect() as sock:
            sock.sendall(request())
            assert read_response(sock)[0] == 200
            assert is_closed(sock)
        check_infer(http)


def test_client_that_does_not_read_is_disconnected() -> None:
    body = json.dumps({"inputs": [{"name": "in", "shape": [400_000], "datatype": "UINT8", "data": [7] * 400_000}]})
    with HttpServerThread(write_timeout_ns=200 * MS) as http, http.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(ConnectionError):
            flood(sock, request("huge", body.encode()), times=200)
        assert len(http.gateway.predicts) < 50


def test_disconnect_cancels_the_request(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(request("slow"))
        http.wait(lambda: len(http.gateway.predicts) == 1)
    http.wait(lambda: http.gateway.cancelled == 1)
    http.wait(lambda: http.server.limits.total.requests == 0)
    check_infer(http)


def test_requests_in_flight_are_bounded() -> None:
    with HttpServerThread(max_requests=2, client_share=1.0) as http:
        socks = [http.connect() for _ in range(2)]
        for sock in socks:
            sock.sendall(request("slow"))
        http.wait(lambda: len(http.gateway.predicts) == 2)
        response = httpx.post(f"{http.server.url}/v2/models/echo/infer", content=GOOD)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        http.release_slow()
        for sock in socks:
            assert read_response(sock)[0] == 200
            sock.close()
        check_infer(http)


def test_connections_are_bounded() -> None:
    with HttpServerThread(max_connections=2, client_share=1.0) as http:
        socks = [http.connect() for _ in range(2)]
        for sock in socks:
            sock.sendall(request())
            assert read_response(sock)[0] == 200
        with http.connect() as third:
            third.sendall(request())
            assert read_response(third)[0] == 503
            assert is_closed(third)
        for sock in socks:
            sock.close()
        http.wait(lambda: True)
        wait_for_infer(http)


def test_one_client_cannot_take_all_connections() -> None:
    with HttpServerThread(max_connections=4) as http:
        host, _, port = http.address.rpartition(":")
        socks = [http.connect() for _ in range(3)]
        assert read_response(socks[2])[0] == 503
        with socket.create_connection((host, int(port)), 10, ("127.0.0.2", 0)) as other:
            other.sendall(request())
            assert read_response(other)[0] == 200
        for sock in socks:
            sock.close()


def test_a_read_of_tiny_requests_does_not_delay_another_client(http: HttpServerThread) -> None:
    host, _, port = http.address.rpartition(":")
    tiny = b"GET /v2/models/x%d HTTP/1.1\r\n\r\n"
    with http.connect() as sock, socket.create_connection((host, int(port)), 10, ("127.0.0.2", 0)) as other:
        sock.sendall(b"".join(tiny % number for number in range(60)) * 20)
        other.sendall(request())
        assert read_response(other)[0] == 200
        assert read_response_once(sock, True)[0] == 404


def wait_for_infer(http: HttpServerThread) -> None:
    """Retry until the server has noticed the closed connections."""
    for _ in range(100):
        response = httpx.post(f"{http.server.url}/v2/models/echo/infer", content=GOOD)
        if response.status_code == 200:
            return
    raise AssertionError(response.text)


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


def test_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    with HttpServerThread(read_keys(str(tmp_path / "keys"))) as http:
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
    with HttpServerThread(header_timeout_ns=50 * MS, body_timeout_ns=50 * MS) as http:
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
