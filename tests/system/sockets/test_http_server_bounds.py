"""Bounds of the HTTP server over real sockets: sizes, times, connections, and requests that are no HTTP."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from system.http_server_thread import HttpServerThread, check_infer, flood, is_closed, read_response, request

MS = 1_000_000


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
        assert (response.status_code, response.headers["horologe-status"]) == (429, "REFUSED")
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
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
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
    with HttpServerThread(body_timeout_ns=150 * MS, idle_timeout_ns=1000 * MS) as http:
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
    with HttpServerThread(body_timeout_ns=200 * MS) as http, http.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(ConnectionError):
            flood(sock, request("huge", body.encode()), times=200)
        assert len(http.gateway.predicts) < 50


def test_disconnect_cancels_the_request(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(request("slow"))
        http.wait(lambda: len(http.gateway.predicts) == 1)
    http.wait(lambda: http.gateway.cancelled == 1)
    http.wait(lambda: http.server.clients.total.requests == 0)
    check_infer(http)


def test_one_client_cannot_take_all_connections() -> None:
    with HttpServerThread(max_connections=4) as http:
        host, _, port = http.address.rpartition(":")
        socks = [http.connect() for _ in range(3)]
        assert read_response(socks[2])[0] == 429
        with socket.create_connection((host, int(port)), 10, ("127.0.0.2", 0)) as other:
            other.sendall(request())
            assert read_response(other)[0] == 200
        for sock in socks:
            sock.close()


def test_a_read_of_tiny_requests_does_not_delay_another_client(http: HttpServerThread) -> None:
    host, _, port = http.address.rpartition(":")
    tiny = b"GET /v2/models/x%d HTTP/1.1\r\nHost: h\r\n\r\n"
    with http.connect() as sock, socket.create_connection((host, int(port)), 10, ("127.0.0.2", 0)) as other:
        sock.sendall(b"".join(tiny % number for number in range(60)) * 20)
        other.sendall(request())
        assert read_response(other)[0] == 200
        assert read_response(sock, True)[0] == 404
