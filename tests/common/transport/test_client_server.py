"""The server of clients: bounds of memory and connections, slow and lost clients, endpoints."""

from __future__ import annotations

import gc
import re
import weakref
from time import monotonic, monotonic_ns
from typing import Any

import pytest

from common.client_door import LIMITS, Door, FakeTransport, packet, predict
from horologe_common.service.settings import SettingsError
from horologe_common.status import Status
from horologe_common.transport.clients import client_connection
from horologe_common.transport.clients.client_connection import SILENT_SWEEPS, STALLED_S
from horologe_common.transport.clients.client_server import ClientLimits
from horologe_common.transport.clients.zmtp import GREETING, MORE, PING, READY, MessageReader
from horologe_common.wire import Answer, Envelope, Hello, Rejected, encode
from horologe_common.wire.frames import refuse_message, unpack


def answers(transport: FakeTransport) -> list[Any]:
    """Return the messages that a client was sent."""
    reader = MessageReader(1 << 20, 1 << 20)
    reader.feed(b"".join(map(bytes, transport.sent)))
    return [message for frames, _ in reader.messages for _, _, message, _ in unpack(frames, 1 << 16)]


def test_a_client_is_not_read_while_its_messages_or_its_answers_wait() -> None:
    door = Door()
    client, transport = door.connect()
    client.data_received(packet(predict(1)) * 5000)
    assert not transport.is_read
    while door.turn():
        pass
    assert transport.is_read
    client.pause_writing()
    assert not transport.is_read, "it does not read"
    client.resume_writing()
    assert transport.is_read


def test_a_client_that_holds_more_answers_than_are_left_for_others_is_disconnected() -> None:
    door = Door()
    client, transport = door.connect()
    client.pause_writing()
    while client.send([bytes(100_000)]):
        assert transport.get_write_buffer_size() <= LIMITS.unsent_bytes
    assert transport.is_aborted
    assert transport.get_write_buffer_size() >= LIMITS.unsent_bytes // 2 - 200_000
    assert not client.send([b""])
    client.connection_lost(None)
    other, _ = door.connect()
    other.pause_writing()
    assert other.send([bytes(400_000)])


@pytest.mark.parametrize("together", [True, False])
def test_messages_that_arrive_and_that_wait_share_a_bounded_memory(together: bool) -> None:
    door, held = Door(), 0
    clients, transports = zip(*[door.connect() for _ in range(5)], strict=True)
    stream = packet(predict(1, 900_000), body=bytes(900_000))
    pieces = [(client, at) for client in clients for at in range(0, len(stream), 50_000)]
    for client, at in sorted(pieces, key=lambda piece: piece[1]) if together else pieces:
        client.data_received(stream[at : at + 50_000])
        held = max(held, sum(client._reader.held_bytes for client in clients))
    handled, dropped = door.turn(), [answer for transport in transports for answer in answers(transport)]
    assert len(handled) + len(dropped) == 5
    assert {answer.status for answer in dropped} == {Status.REFUSED}
    assert held <= LIMITS.receive_bytes
    assert door.server.received.held_bytes == 0


def test_messages_that_wait_do_not_drop_one_that_begins() -> None:
    door = Door()
    client, transport = door.connect()
    for _ in range(3):
        client.data_received(packet(predict(1, 500_000), body=bytes(500_000)))
    small = packet(predict(2, 10_000), body=bytes(10_000))
    client.data_received(small[:20])
    client.data_received(small[20:])
    assert len(door.turn()) == 4
    assert not answers(transport)


def test_there_is_a_bound_on_connections() -> None:
    door = Door()
    transports = [door.connect()[1] for _ in range(7)]
    assert [transport.is_aborted for transport in transports] == [False] * 5 + [True] * 2
    assert door.server.rejected == 2


def test_a_protocol_error_ends_the_connection() -> None:
    door = Door()
    client, transport = door.connect()
    client.data_received(bytes((MORE, 0)) * 5000)
    for _ in range(10):
        door.server.reads.begin_iteration()
    assert transport.is_aborted


def test_a_connection_that_is_lost_is_freed_without_a_garbage_collection() -> None:
    door = Door()
    connection, _ = door.connect()
    connection.data_received(packet(predict(1)))
    door.turn()
    freed = weakref.ref(connection)
    gc.disable()
    try:
        connection.connection_lost(None)
        del connection
        assert freed() is None
    finally:
        gc.enable()


def test_only_a_client_that_has_sent_a_message_is_reported_as_lost() -> None:
    door = Door()
    (silent, _), (client, _) = door.connect(), door.connect()
    client.data_received(packet(Hello(1, ())))
    door.turn()
    assert list(door.peers.routes) == [client.address]
    for connection in (silent, client):
        connection.connection_lost(None)
    assert [address for address, _ in door.peers.events] == [client.address]
    assert not door.peers.routes


def test_silent_and_stalled_clients_are_disconnected() -> None:
    door = Door()
    (silent, _), (unread, _), (stalled, _) = door.connect(), door.connect(), door.connect()
    assert all(silent.sweep(0.0, True) for _ in range(SILENT_SWEEPS - 1))
    assert not silent.sweep(0.0, True)
    unread.pause_writing()
    assert unread.sweep(monotonic(), True)
    assert not unread.sweep(monotonic() + STALLED_S + 1, True)
    stalled.data_received(packet(predict(1, 10_000), body=bytes(10_000))[:5_000])
    assert stalled.sweep(monotonic(), True)
    assert not stalled.sweep(monotonic() + STALLED_S + 1, True)
    stalled.silent_sweeps = 0
    stalled.data_received(packet(predict(1, 10_000), body=bytes(10_000))[5_000:])
    assert stalled.sweep(monotonic() + STALLED_S + 1, True)


def test_a_slow_message_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    door, now_s = Door(), 100.0
    monkeypatch.setattr(client_connection, "monotonic", lambda: now_s)
    client, _ = door.connect()
    stream = packet(predict(1, 900_000), body=bytes(900_000))
    for at in range(0, len(stream), 100_000):
        client.data_received(stream[at : at + 100_000])
        assert client.sweep(now_s, False)
        now_s += 0.9
    assert door.turn() == ["1"]


def test_a_client_that_reads_large_answers_slowly_is_not_disconnected() -> None:
    door, now_s = Door(ClientLimits(unsent_bytes=64 << 20)), monotonic()
    client, transport = door.connect()
    client.pause_writing()
    assert client.send([bytes(10 << 20)])
    for second in range(20):
        client.silent_sweeps = 0
        assert client.sweep(now_s + second, True)
        transport.sent = [bytes((19 - second) << 19)]
    assert not client.sweep(now_s + 60, True)


def test_a_client_gets_no_heartbeat_before_its_handshake() -> None:
    """A libzmq that gets any command but READY in its handshake ends the connection as one of another protocol."""
    client, transport = Door().accept()
    assert client.sweep(monotonic(), True)
    assert transport.sent == [GREETING + READY]
    client.data_received(GREETING + READY)
    assert client.sweep(monotonic(), True)
    assert transport.sent[1:] == [PING]


def test_an_abstract_endpoint_has_no_file() -> None:
    door, name = Door(), f"horologe-{monotonic_ns()}"
    door.server.bind([f"ipc://@{name}"])
    [listener] = door.server._listeners
    assert listener.getsockname() == b"\0" + name.encode()
    door.server.close()


def test_requests_that_were_not_received_are_answered() -> None:
    header = encode([Envelope("", "", [predict(7, 100), predict(8, 200)])])
    small, large = refuse_message([header], 1000), refuse_message([header], 250)
    assert [(answer.id, answer.status) for answer in small if isinstance(answer, Answer)] == [
        (7, Status.REFUSED),
        (8, Status.REFUSED),
    ]
    assert [answer.status for answer in large if isinstance(answer, Answer)] == [Status.TOO_LARGE] * 2
    assert [type(answer) for answer in refuse_message([], 250)] == [Rejected]
    assert [type(answer) for answer in refuse_message([b"\xc1"], 250)] == [Rejected]


@pytest.mark.parametrize("endpoint", ["tcp://*:*", "tcp://127.0.0.1:0", "tcp://localhost:*"])
def test_any_free_port_is_bound(endpoint: str) -> None:
    server = Door().server
    server.bind([endpoint])
    (listener,) = server._listeners
    assert listener.getsockname()[1] > 0
    server.close()


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("tcp://lo:*", "host: got the interface lo, wanted one of its addresses"),
        ("tcp://127.0.0.1:http", "port: got 'http', wanted a number up to 65535"),
        ("tcp://127.0.0.1:65536", "port: got '65536', wanted a number up to 65535"),
        ("tcp://127.0.0.1", "port: got"),
        ("udp://127.0.0.1:1", "wanted tcp://HOST:PORT or ipc://PATH"),
    ],
)
def test_an_endpoint_that_cannot_be_bound_is_explained(endpoint: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"frontend.clients: {endpoint}: ") + ".*" + re.escape(problem)):
        Door().server.bind([endpoint])
