"""The bound on connections of a ZeroMQ socket: what is logged, and that a system without socket filters goes on."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from harness.socket_filters import needs_socket_filters
from horologe_common.transport.accept_limit import AcceptLimit

if TYPE_CHECKING:
    from collections.abc import Iterator


class Refusing(socket.socket):
    """A listener whose options must not be changed."""

    def setsockopt(self, *_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def limit() -> Iterator[AcceptLimit]:
    limit = AcceptLimit(2)
    yield limit
    limit.close()


def accept(limit: AcceptLimit, *descriptors: int) -> None:
    for descriptor in descriptors:
        limit.on_event({"event": zmq.EVENT_ACCEPTED, "value": descriptor})


@needs_socket_filters
def test_packets_are_dropped_while_there_are_too_many_connections(
    limit: AcceptLimit, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limit.on_event({"event": zmq.EVENT_LISTENING, "value": listener.fileno()})
        accept(limit, 1001, 1002)
        assert "no connection accepted" in caplog.text
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), timeout=0.2)
        limit.on_event({"event": zmq.EVENT_DISCONNECTED, "value": 1001})
        socket.create_connection(listener.getsockname(), timeout=5).close()


def test_a_system_that_forbids_the_filter_is_logged(
    limit: AcceptLimit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", Refusing)
    with Refusing(socket.AF_INET) as listener:
        limit.on_event({"event": zmq.EVENT_LISTENING, "value": listener.fileno()})
        accept(limit, 1001, 1002)
    assert "connections cannot be limited" in caplog.text
    assert "no connection accepted" not in caplog.text
