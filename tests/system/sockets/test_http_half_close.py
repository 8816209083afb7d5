"""Ends of HTTP connections: half-closed ones, HTTP/1.0, and requests that other servers read otherwise."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

import pytest

from horologe_frontend.http.connection import PROBE_S
from system.http_server_thread import GOOD, HttpServerThread, is_closed, read_response, request

CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
POST = b"POST /v2/models/echo/infer HTTP/%s\r\n%s\r\n%s"
LENGTH = b"Content-Length: %d\r\n" % len(GOOD)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


def statuses(data: bytes) -> list[int]:
    """Return the status of each response, and assert that none before the last one closes the connection."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        found.append(int(lines[0].split()[1]))
        size = next((int(line[16:]) for line in lines if line.startswith(b"content-length: ")), 0)
        data = rest[size:]
        assert not data or b"connection: close" not in lines
    return found


def exchange(http: HttpServerThread, data: bytes) -> bytes:
    """Send the data, end the sending side, and return all that the server sends until it closes."""
    with http.connect() as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


@pytest.mark.parametrize(
    "data",
    [
        request(),
        request(version="1.0"),
        request(extra="Connection: keep-alive\r\n"),
        request(extra="Expect: 100-continue\r\n"),
        POST % (b"1.1", b"Host: x\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
        b"GET /v2/models/echo HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["1.1", "1.0", "keep-alive", "expect", "chunked", "get"],
)
def test_a_complete_request_of_a_half_closed_connection_is_answered(http: HttpServerThread, data: bytes) -> None:
    answer = exchange(http, data)
    if answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    assert statuses(answer) == [200]
    assert http.gateway.cancelled == 0


def test_a_request_in_flight_when_the_client_ends_its_side_is_answered(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(request("slow"))
        http.wait(lambda: http.gateway.predicts)
        sock.shutdown(socket.SHUT_WR)
        http.wait(lambda: any(connection._input_ended for connection in http.server._connections))
        http.release_slow()
        assert statuses(read_all(sock)) == [200]
    assert http.gateway.cancelled == 0


def test_pipelined_requests_before_a_half_close_are_all_answered_in_order(http: HttpServerThread) -> None:
    bodies = [GOOD.replace(b"[1,2", b"[%d,2" % number) for number in range(10)]
    answer = exchange(http, b"".join(request(body=body) for body in bodies))
    assert statuses(answer) == [200] * 10
    firsts = [
        json.loads(part.partition(b"\r\n\r\n")[2])["outputs"][0]["data"][0] for part in answer.split(b"HTTP/1.1 ")[1:]
    ]
    assert firsts == list(range(10))


def test_a_response_that_the_client_reads_slowly_after_a_half_close_is_complete(http: HttpServerThread) -> None:
    size = 4_000_000
    head = json.dumps(
        {
            "inputs": [{"name": "in", "datatype": "UINT8", "shape": [size], "parameters": {"binary_data_size": size}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n"
    answer = exchange(http, request("huge", head + bytes(size), extra))
    assert len(answer) > size
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "data",
    [
        request()[:-5],
        request()[:40],
        b"GET /v2 HT",
        POST % (b"1.1", b"Host: x\r\nTransfer-Encoding: chunked\r\n", CHUNKED[:-5]),
        POST % (b"1.1", b"Host: x\r\nExpect: 100-continue\r\n" + LENGTH, b""),
    ],
    ids=["body", "head", "line", "last chunk", "expect"],
)
def test_an_incomplete_request_of_a_half_closed_connection_is_an_error(http: HttpServerThread, data: bytes) -> None:
    answer = exchange(http, data)
    if answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    assert statuses(answer) == [400]
    assert b"ended the connection before the end of its request" in answer
    assert not http.gateway.predicts


def test_an_incomplete_request_behind_a_complete_one_is_an_error_after_its_answer(http: HttpServerThread) -> None:
    assert statuses(exchange(http, request() + request("echo")[:-3])) == [200, 400]


def test_a_half_close_without_a_request_closes_the_connection(http: HttpServerThread) -> None:
    assert exchange(http, b"") == b""
    with http.connect() as sock:
        sock.sendall(request())
        assert read_response(sock)[0] == 200
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


def test_a_reset_cancels_the_request_in_flight(http: HttpServerThread) -> None:
    sock = http.connect()
    sock.sendall(request("slow"))
    http.wait(lambda: http.gateway.predicts)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    http.wait(lambda: http.gateway.cancelled == 1)


@pytest.mark.parametrize(("version", "interim"), [("1.1", True), ("1.0", False)])
def test_a_client_that_waits_for_long_after_a_half_close_may_get_an_interim_response(
    http: HttpServerThread, version: str, interim: bool
) -> None:
    with http.connect() as sock:
        sock.sendall(request("slow", version=version))
        sock.shutdown(socket.SHUT_WR)
        http.wait(lambda: http.gateway.predicts)
        if interim:
            assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        else:
            time.sleep(PROBE_S + 0.2)
        http.release_slow()
        assert statuses(read_all(sock)) == [200]


def test_a_client_that_has_gone_is_found_when_its_answer_is_written(http: HttpServerThread) -> None:
    sock = http.connect()
    sock.sendall(request("slow") * 3)
    http.wait(lambda: http.gateway.predicts)
    sock.close()
    http.release_slow()
    http.wait(lambda: not http.server._connections)


def test_a_server_that_drains_answers_a_half_closed_connection() -> None:
    with HttpServerThread() as http, http.connect() as sock:
        sock.sendall(request("slow"))
        sock.shutdown(socket.SHUT_WR)
        http.wait(lambda: http.gateway.predicts)
        http.release_slow()
        http.stop()
        assert statuses(read_all(sock)) == [200]


@pytest.mark.parametrize("extra", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.parametrize("length", [b"", LENGTH])
def test_an_old_request_with_transfer_encoding_ends_the_connection(
    http: HttpServerThread, extra: bytes, length: bytes
) -> None:
    """RFC 9112 6.1: another server may have read the end of the message elsewhere."""
    data = POST % (b"1.0", b"Transfer-Encoding: chunked\r\n" + extra + length, CHUNKED)
    with http.connect() as sock:
        sock.sendall(data + b"GET /v2 HTTP/1.0\r\n\r\n")
        found = statuses(read_all(sock))
    assert found == ([400] if length else [200])


STREAM = b'{"in": [[1, 2, 3, 4]]}'
LAST_REQUESTS = {
    "close": request(extra="Connection: close\r\n"),
    "1.0": request(version="1.0"),
    "get": b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "stream": b"POST /v2/models/echo/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
    % (len(STREAM), STREAM),
}


@pytest.mark.parametrize("kind", LAST_REQUESTS)
def test_what_follows_the_last_request_does_not_reset_the_connection(http: HttpServerThread, kind: str) -> None:
    """A reset may overtake the response in a network, and the client then loses it."""
    for _ in range(5):
        with http.connect() as sock:
            sock.sendall(LAST_REQUESTS[kind])
            for _ in range(10):
                sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
            answer = read_all(sock)  # to its end
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.endswith(b"\r\n0\r\n\r\n" if kind == "stream" else b"}")
        http.wait(lambda: not http.server.clients.total.connections)


def test_a_client_that_does_not_close_is_disconnected(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(request(extra="Connection: close\r\n"))
        assert statuses(read_all(sock)) == [200]
        assert http.server.clients.total.connections == 1
        http.wait(lambda: not http.server.clients.total.connections)


def test_http_1_0_keeps_the_connection_only_if_asked(http: HttpServerThread) -> None:
    with http.connect() as sock:
        for _ in range(2):
            sock.sendall(request(version="1.0", extra="Connection: keep-alive\r\n"))
            status, headers, _ = read_response(sock)
            assert (status, headers["connection"]) == (200, "keep-alive")
        sock.sendall(request(version="1.0") * 2)
        assert statuses(read_all(sock)) == [200]


HOSTS = {
    "two": (b"Host: x\r\nHost: x\r\n", "Host: got two headers, wanted one"),
    "two apart": (b"Host: x\r\nA: b\r\nhOST: y\r\n", "Host: got two headers, wanted one"),
    "none": (b"", "Host: got none, wanted one header"),
    "space": (b"Host: a b\r\n", "Host: got 'a b', wanted a name or address with a port"),
    "list": (b"Host: a/b\r\n", "wanted a name or address"),
    "user": (b"Host: me@there\r\n", "wanted a name or address"),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_request_without_one_valid_host_is_an_error(http: HttpServerThread, name: str) -> None:
    headers, reason = HOSTS[name]
    with http.connect() as sock:
        sock.sendall(POST % (b"1.1", headers + LENGTH, GOOD))
        status, answer, body = read_response(sock)
        assert (status, answer["connection"]) == (400, "close")
        assert reason in json.loads(body)["error"]
        assert is_closed(sock)
    assert not http.gateway.predicts


@pytest.mark.parametrize("host", [b"", b"h", b"h:8000", b"10.0.0.1:80", b"[::1]:8000", b"a_b.example.com."])
@pytest.mark.parametrize("target", [b"/v2", b"http://other:1/v2"])
def test_a_valid_host_is_accepted_with_both_forms_of_the_target(
    http: HttpServerThread, host: bytes, target: bytes
) -> None:
    with http.connect() as sock:
        sock.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, host))
        assert read_response(sock)[0] == 200


def test_an_upgrade_with_two_hosts_is_an_error(http: HttpServerThread) -> None:
    with http.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert read_response(sock)[0] == 400


@pytest.mark.parametrize(
    ("header", "status", "name"),
    [
        (b"Transfer-Encoding: gzip, chunked", 501, "NOT_IMPLEMENTED"),
        (b"Transfer-Encoding: identity,chunked", 501, "NOT_IMPLEMENTED"),
        (b"Transfer-Encoding: GZIP\r\nTransfer-Encoding: chunked", 501, "NOT_IMPLEMENTED"),
        (b"Transfer-Encoding: Chunked", 200, ""),
        (b"Transfer-Encoding: , chunked", 200, ""),
        (b"Expect: 200-magic\r\nTransfer-Encoding: chunked", 417, "EXPECTATION_FAILED"),
        (b"Expect: 100-continue, 200-magic\r\nTransfer-Encoding: chunked", 417, "EXPECTATION_FAILED"),
        (b"Expect: 100-Continue, 100-continue\r\nTransfer-Encoding: chunked", 100, ""),
        (b"Expect:\r\nTransfer-Encoding: chunked", 200, ""),
    ],
)
def test_a_coding_or_an_expectation_that_is_not_known_is_refused(
    http: HttpServerThread, header: bytes, status: int, name: str
) -> None:
    """What follows is part of the body, and is not read as a request."""
    with http.connect() as sock:
        sock.sendall(POST % (b"1.1", b"Host: x\r\nConnection: close\r\n" + header + b"\r\n", CHUNKED))
        answers = read_all(sock)
    assert statuses(answers) == ([100, 200] if status == 100 else [status])
    if name:
        assert json.loads(answers.partition(b"\r\n\r\n")[2])["status"] == name
        assert not http.gateway.predicts


@pytest.mark.parametrize(
    "headers",
    [
        b"A: b\r\n c\r\n" + LENGTH,
        b"A: b\r\n\tContent-Length: 5\r\n" + LENGTH,
        LENGTH + LENGTH,
        LENGTH + b"Content-Length: 5\r\n",
        b"Content-Length: 5, 5\r\n",
        LENGTH + b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: \r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length: +5\r\n",
    ],
)
def test_framing_that_other_servers_read_otherwise_is_an_error(http: HttpServerThread, headers: bytes) -> None:
    with http.connect() as sock:
        sock.sendall(POST % (b"1.1", b"Host: x\r\n" + headers, GOOD))
        assert read_response(sock)[0] == 400
        assert is_closed(sock)
    assert not http.gateway.predicts


@pytest.mark.parametrize(("settings", "status"), [({}, 429), ({"refused_status": 503}, 503)])
def test_refused_has_the_status_of_the_setting_wherever_it_comes_from(settings: dict[str, Any], status: int) -> None:
    limits: dict[str, Any] = {"max_requests": 1, "max_connections": 2, "client_share": 1.0}
    with HttpServerThread(**limits, **settings) as http, http.connect() as sock, http.connect() as slow:
        sock.sendall(request("refused"))
        code, headers, body = read_response(sock)
        assert (code, headers["horologe-status"], json.loads(body)["status"]) == (status, "REFUSED", "REFUSED")
        assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "2") or headers["retry-after"] == "2"
        slow.sendall(request("slow"))
        http.wait(lambda: len(http.gateway.predicts) == 2)
        sock.sendall(request())
        assert read_response(sock)[0] == status, "http.max_requests"
        with http.connect() as third:
            third.sendall(request())
            assert read_response(third)[0] == status, "http.max_connections"
            assert is_closed(third)
        http.release_slow()
        assert read_response(slow)[0] == 200
        sock.sendall(request("lost"))
        assert read_response(sock)[0] == 503
        http.call(set_unready(http))
        sock.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_response(sock)[0] == 503


async def set_unready(http: HttpServerThread) -> None:
    http.gateway.ready = False
