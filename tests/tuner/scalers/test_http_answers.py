"""Answers of collectors, engines and clusters that have no end: who reads them stops, and needs little memory."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from fakes.endless_server import ENDLESS, EndlessServer
from horologe_common.core.tracing import Span
from horologe_common.service.http_answers import AnswerError, BoundedPool, bound_session
from horologe_common.service.trace_export import SpanExport
from horologe_tuner.scaler import ScalingError
from horologe_tuner.scalers import process
from horologe_tuner.scalers.process import ProcessScaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

import zmq

from horologe.transport.dealer import Dealer

requests: Any = pytest.importorskip("requests")
urllib3: Any = pytest.importorskip("urllib3")
LIMIT = 1 << 20
MEMORY = 64 << 20
SLOW = {
    "a byte at a time": (ENDLESS["no length"][0], b" "),
    "a slow chunk": (ENDLESS["an endless chunk"][0], b" "),
    "small chunks": (ENDLESS["chunks"][0], b"1\r\n \r\n"),
}


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Check that the test needs less than `MEMORY` bytes."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEMORY


def a_session(timeout_s: float = 5.0) -> Any:
    session = requests.Session()
    session.trust_env = False
    bound_session(session, timeout_s, LIMIT)
    return session


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_session_stops_reading(kind: str) -> None:
    with EndlessServer(*ENDLESS[kind]) as server, a_session() as session:
        with pytest.raises(OSError, match=r"answer: got|headers|Header|header|line|LineTooLong"):
            session.get(f"http://127.0.0.1:{server.port}/", timeout=5)
        assert server.left.acquire(timeout=5)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("kind", [kind for kind in ENDLESS if kind not in ("headers", "a status line")])
def test_a_pool_stops_reading(kind: str) -> None:
    with EndlessServer(*ENDLESS[kind]) as server, urllib3.PoolManager() as pool:
        with pytest.raises(AnswerError, match=f"wanted at most {LIMIT} bytes"):
            BoundedPool(pool, 5.0, LIMIT).request("GET", f"http://127.0.0.1:{server.port}/", timeout=5, retries=False)
        assert server.left.acquire(timeout=5)


@pytest.mark.parametrize("kind", SLOW)
def test_a_slow_answer_has_a_deadline(kind: str) -> None:
    with EndlessServer(*SLOW[kind], slow=True) as server, a_session(0.3) as session:
        with pytest.raises(AnswerError, match=r"no end after 0\.3 s"):
            session.get(f"http://127.0.0.1:{server.port}/", timeout=5)
        assert server.left.acquire(timeout=5)


def test_an_answer_within_the_limits_is_as_without_them() -> None:
    answer = b"HTTP/1.1 404 Not Found\r\nX: y\r\nContent-Length: 9\r\n\r\n" + b'{"a":"b"}'
    with EndlessServer(answer, b"", slow=True) as server, a_session() as session, urllib3.PoolManager() as pool:
        url = f"http://127.0.0.1:{server.port}/"
        response = session.get(url, timeout=5)
        assert (response.status_code, response.json(), response.headers["X"]) == (404, {"a": "b"}, "y")
        other = BoundedPool(pool, 5.0, LIMIT).request("GET", url, timeout=5)
        assert (other.status, other.data, other.headers["X"], other.reason) == (404, b'{"a":"b"}', "y", "Not Found")


def a_span() -> Span:
    return Span("predict", "1" * 32, "", 1, 2, {})


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_collector_without_end_does_not_stop_the_exporter(kind: str) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs horologe[tracing]")
    with EndlessServer(*ENDLESS[kind]) as server:
        exporter = SpanExport(f"http://127.0.0.1:{server.port}/v1/traces", "edge", "frontend/0", 2.0, 10)
        exporter.export(a_span(), ())
        assert server.left.acquire(timeout=10)
        exporter.close()


def test_the_control_socket_of_the_process_scaler_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # the scaler leaves
                connection.sendall(b"[" * (2 * process.ANSWER_BYTES))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ScalingError, match="control socket"):
            ProcessScaler(TunerSettings(scaler_target=path)).count_workers(("cpu",))
        thread.join(10)


def test_a_client_of_the_sdk_leaves_a_server_that_sends_an_endless_frame() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client = Dealer([f"tcp://127.0.0.1:{port}"], None, max_frame_bytes=10_000)
        client.open(context)
        client.socket.send(b"hello")
        identity, _ = router.recv_multipart()
        router.send_multipart([identity, b"x" * 10_000])
        assert len(client.socket.recv()) == 10_000
        with router.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            router.send_multipart([identity, b"x" * 10_001])
            assert monitor.poll(10_000)
            router.disable_monitor()
        client.close()
