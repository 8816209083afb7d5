"""The endpoint of metrics and probes: its pages, also behind slow, silent and numerous connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest

from common.exposition import PROMETHEUS, all_metrics, traced_stats
from harness.waiting import until
from horologe_common.core.instruments import Stats
from horologe_common.metrics.endpoint import HEAD_BYTES, SLOTS, MetricsServer, MetricsSettings, serve_metrics
from horologe_common.metrics.metric_definitions import METRICS
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MANY = 5 * SLOTS
GET = b"GET /metrics HTTP/1.1\r\n"


class Endpoint:
    """A server, and the connections of a test to it. `stats` may be replaced."""

    def __init__(self) -> None:
        self.stats: Callable[[], Iterable[Stats]] = list
        self.is_ready = True
        server = serve_metrics(MetricsSettings("127.0.0.1:0"), lambda: self.stats(), lambda: self.is_ready)
        assert server
        self.server: MetricsServer = server
        self.connections: list[socket.socket] = []

    def connect(self, first: bytes = b"", receive_bytes: int = 0) -> socket.socket:
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", self.server.port))
        self.connections.append(connection)
        if first:
            connection.sendall(first)
        return connection

    def ask(self, path: str, accept: str = "") -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Accept": accept} if accept else {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def send_raw(self, request: bytes) -> bytes:
        """Return everything that the server sends until it closes the connection."""
        connection, received = self.connect(request), b""
        while part := connection.recv(1 << 16):
            received += part
        return received


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.stop()
    for connection in endpoint.connections:
        connection.close()


def test_an_address_in_use_is_named(endpoint: Endpoint) -> None:
    bind = f"127.0.0.1:{endpoint.server.port}"
    with pytest.raises(SettingsError, match=f"metrics.bind: got {bind}"):
        serve_metrics(MetricsSettings(bind), tuple, lambda: True)


def test_ready_and_health_are_apart(endpoint: Endpoint) -> None:
    endpoint.is_ready = False
    assert [endpoint.ask(path)[0] for path in ("/health", "/ready")] == [200, 503]


def test_triton_names_in_microseconds_have_a_page_of_their_own(endpoint: Endpoint) -> None:
    endpoint.stats = lambda: [all_metrics()]
    pages = [endpoint.ask(path)[1].decode() for path in ("/metrics", "/metrics/triton")]
    names = [{line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")} for page in pages]
    triton = {name for name in METRICS if name.endswith("_us")}
    assert names == [METRICS.keys() - triton, triton]


def test_the_times_of_exemplars_stay_the_same_from_page_to_page(endpoint: Endpoint) -> None:
    """Prometheus stores an exemplar a second time if its time has changed by a millisecond."""
    stats = traced_stats()
    endpoint.stats = lambda: [stats]
    first, *others = [endpoint.ask("/metrics", PROMETHEUS)[1] for _ in range(20)]
    assert set(others) == {first}
    assert first.count(b"trace_id") == 4


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of the connection. Return False if something else arrives first."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"", b""),
        (b"G", b"E"),
        (GET, b"X"),
        (GET, b"a: b\r\n"),
        (GET + b"a: ", b"b"),
        (b"\r\n", b"\r"),
        (GET + b"Host: x\r\n\r", b""),
        (b"\x16\x03\x01\x02\x00", b"\x01"),
    ],
    ids=["nothing", "bytes", "request line", "headers", "a header", "line feeds", "no end", "TLS"],
)
def test_probes_and_scrapes_are_answered_behind_slow_connections(endpoint: Endpoint, first: bytes, more: bytes) -> None:
    slow = [endpoint.connect(first) for _ in range(MANY)]
    for _ in range(3):
        for connection in slow:
            try:
                connection.sendall(more)
            except OSError:
                continue
        assert endpoint.ask("/health") == (200, b"")
        assert endpoint.ask("/ready") == (200, b"")
        assert endpoint.ask("/metrics")[0] == 200
    assert is_closed(slow[0])  # the oldest


@pytest.mark.parametrize("first", [b"", b"G", GET, b"\r\n"])
def test_a_request_has_a_deadline_however_it_arrives(endpoint: Endpoint, first: bytes) -> None:
    endpoint.server.request_s = 0.3
    connection = endpoint.connect(first)
    ended = threading.Event()

    def dribble() -> None:
        while not ended.wait(0.05):
            try:
                connection.send(b"a")
            except OSError:
                return

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        assert is_closed(connection)
    finally:
        ended.set()
        thread.join()


def large_stats() -> list[Stats]:
    stats = Stats()
    for number in range(20_000):
        stats.set("horologe_pages_free", f"{number:0200}", "0", to=1)
    return [stats]


def test_readers_that_do_not_read_do_not_stop_others(endpoint: Endpoint) -> None:
    stats = large_stats()
    endpoint.stats = lambda: stats
    stopped = [endpoint.connect(GET + b"\r\n", receive_bytes=4096) for _ in range(2 * SLOTS)]
    assert endpoint.ask("/health") == (200, b"")
    page = endpoint.ask("/metrics")[1]
    assert len(page) > 4_000_000
    assert page.endswith(b"\n")
    connection, received = stopped[0], 0
    try:  # it has lost its slot, or its time is over
        while part := connection.recv(1 << 20):
            received += len(part)
    except ConnectionResetError:
        pass
    assert received < len(page)


def test_an_answer_has_a_deadline(endpoint: Endpoint) -> None:
    endpoint.server.answer_s = 0.3
    stats = large_stats()
    endpoint.stats = lambda: stats
    endpoint.connect(GET + b"\r\n", receive_bytes=4096)
    until(lambda: endpoint.server.readers)
    until(lambda: not endpoint.server.readers)
    assert endpoint.ask("/health") == (200, b"")


def test_probes_do_not_wait_for_pages_and_scrapes_share_them(endpoint: Endpoint) -> None:
    release, rendered = threading.Event(), []

    def wait() -> list[Stats]:
        release.wait(10)
        rendered.append(1)
        return []

    endpoint.stats = wait
    scrapes = [endpoint.connect(GET + b"\r\n") for _ in range(20)]
    for _ in range(5):
        assert endpoint.ask("/health") == (200, b"")
    release.set()
    for scrape in scrapes:
        assert scrape.recv(15) == b"HTTP/1.1 200 OK"
    assert len(rendered) <= 3  # the first, and one for those that came meanwhile


def test_a_page_that_cannot_be_rendered_is_an_error_and_the_next_one_is_rendered(endpoint: Endpoint) -> None:
    def fail() -> Any:
        raise ValueError("no stats")

    endpoint.stats = fail
    assert endpoint.ask("/metrics")[0] == 500
    endpoint.stats = list
    assert endpoint.ask("/metrics")[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (b"GET /health HTTP/1.1\nHost: x\n\n", 200),
        (b"OPTIONS /health HTTP/1.0\r\n\r\n", 200),
        (b"GET /health?a=b HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"nonsense\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * HEAD_BYTES, 431),
    ],
)
def test_requests_of_other_forms(endpoint: Endpoint, request_bytes: bytes, status: int) -> None:
    if status == 431:
        connection = endpoint.connect(request_bytes[: HEAD_BYTES + 1])
        assert connection.recv(12) == b"HTTP/1.1 431"
        return
    head, _, body = endpoint.send_raw(request_bytes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert body == b""


def test_a_client_that_closes_its_half_gets_its_page(endpoint: Endpoint) -> None:
    connection = endpoint.connect(GET + b"\r\n")
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_the_port_is_free_after_the_end() -> None:
    endpoint = Endpoint()
    silent = endpoint.connect(b"G")
    endpoint.server.stop()
    assert is_closed(silent)
    silent.close()
    socket.create_server(("127.0.0.1", endpoint.server.port)).close()
