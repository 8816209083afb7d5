"""Fair reads and accepts: what one iteration of the loop takes from the sockets of clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from common.client_door import Door, FakeTransport
from horologe_common.transport.clients.acceptor import REFUSALS, Acceptor
from horologe_common.transport.clients.client_connection import READ_TURN, ClientConnection
from horologe_common.transport.clients.client_server import READERS, ClientLimits
from horologe_common.transport.clients.zmtp import GREETING, MORE, READY, encode_message

if TYPE_CHECKING:
    from pathlib import Path

READ = 256 << 10
"""libuv reads as much at once."""


class Iterations:
    """Counts what happens in each iteration of a loop."""

    def __init__(self) -> None:
        self.counts = [0]
        self._loop = asyncio.get_running_loop()
        self._tick()

    def add(self, count: int) -> None:
        self.counts[-1] += count

    def _tick(self) -> None:
        if self.counts[-1]:
            self.counts.append(0)
        self._loop.call_soon(self._tick)


@pytest.mark.parametrize("senders", [1, 6])
def test_an_iteration_reads_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, senders: int
) -> None:
    uvloop = pytest.importorskip("uvloop")
    message = b"".join(encode_message([b"x", bytes(4 << 20)]))
    total = senders * 4 * len(message)
    done = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(tmp_path / "clients"))
            sock.sendall(GREETING + READY + 4 * message)
            done.wait(20)

    async def serve() -> list[int]:
        iterations, received, received_all = Iterations(), 0, asyncio.Event()
        data_received = ClientConnection.data_received

        def count(self: ClientConnection, data: bytes) -> None:
            nonlocal received
            received += len(data)
            if received >= total:
                received_all.set()
            iterations.add(len(data))
            data_received(self, data)

        def receive() -> None:
            server.receive([], lambda *_: None)

        monkeypatch.setattr(ClientConnection, "data_received", count)
        server = Door(ClientLimits()).server
        server.reads.loop = None
        server.bind([f"ipc://{tmp_path}/clients"])
        await server.start(receive)
        threads = [threading.Thread(target=send) for _ in range(senders)]
        for thread in threads:
            thread.start()
        try:
            async with asyncio.timeout(20):
                await received_all.wait()
        finally:
            done.set()
            await server.stop()
        for thread in threads:
            thread.join()
        return iterations.counts

    counts = uvloop.run(serve())
    assert max(counts[5:]) <= senders * READ + READERS * (READ_TURN + READ)


def begin_large_message(door: Door) -> tuple[ClientConnection, FakeTransport]:
    connection, transport = door.connect()
    connection.data_received(bytes((MORE, 1)) + b"h" + b"\2" + (1 << 40).to_bytes(8, "big"))
    return connection, transport


def test_connections_that_send_much_take_turns() -> None:
    door = Door()
    clients = [begin_large_message(door) for _ in range(5)]
    for connection, transport in clients:
        while transport.is_read:
            connection.data_received(bytes(READ))
    turns = []
    while door.loop.soon:
        door.loop.soon.pop()()
        turns.append([transport.is_read for _, transport in clients])
    assert [sum(turn) for turn in turns][:3] == [2, 4, 5]
    assert not door.loop.later
    for connection, _ in clients:
        connection.connection_lost(None)
    assert not door.server.reads.waiting


def test_there_is_a_pause_between_turns_while_others_send_requests() -> None:
    door = Door()
    door.server._active = 1
    connection, transport = begin_large_message(door)
    while transport.is_read:
        connection.data_received(bytes(READ))
    door.loop.soon.pop()()
    assert not transport.is_read
    door.loop.later.pop()()
    assert transport.is_read


def test_small_reads_do_not_wait() -> None:
    connection, transport = begin_large_message(Door())
    for _ in range(1000):
        connection.data_received(bytes(1000))
    assert transport.is_read


def test_an_iteration_accepts_a_bounded_number_of_connections() -> None:
    async def serve() -> list[int]:
        iterations = Iterations()
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        listener.setblocking(False)
        sockets = [socket.create_connection(listener.getsockname()) for _ in range(50)]
        refused, refused_all = 0, asyncio.Event()

        def refuse(_: socket.socket) -> None:
            nonlocal refused
            refused += 1
            iterations.add(1)
            if refused == len(sockets):
                refused_all.set()

        accepting: Acceptor[asyncio.Protocol] = Acceptor(listener, lambda _: None, refuse, lambda _: None)
        accepting.start()
        async with asyncio.timeout(20):
            await refused_all.wait()
        accepting.stop()
        for sock in sockets:
            sock.close()
        return iterations.counts

    assert max(asyncio.run(serve())) <= REFUSALS
