"""The link between a service and its child: packets of any size arrive whole. Impossible ones are errors."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from horologe_common.service.parent_link import BUFFER_BYTES, FRAMES_MAX, PacketSocket

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[PacketSocket, socket.socket]]:
    """The service's end, and the socket of the child."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield PacketSocket(ours), theirs


def test_packets_of_any_size_arrive_whole_and_in_order(ends: tuple[PacketSocket, socket.socket]) -> None:
    service, sock = ends
    sizes = [0, 1, 100, BUFFER_BYTES - 1, BUFFER_BYTES, 3 * BUFFER_BYTES + 1]
    packets = [[], [b""], [b"x"] * 20_000, *([bytes([size % 251]) * size, b"end"] for size in sizes)]
    sender = threading.Thread(target=lambda: list(map(PacketSocket(sock).send, packets)))
    sender.start()
    received = []
    for _ in packets:
        assert service.has_arrived(None)
        received.append([bytes(frame) for frame in service.receive()])
    sender.join()
    assert received == packets
    assert not service.has_arrived(0)


def test_what_is_buffered_has_arrived(ends: tuple[PacketSocket, socket.socket]) -> None:
    service, sock = ends
    child = PacketSocket(sock)
    child.send([b"first"])
    child.send([b"second"])
    assert service.receive() == [b"first"]
    assert service.has_arrived(0)
    assert service.receive() == [b"second"]


def test_each_frame_has_memory_of_its_own_that_may_be_written(ends: tuple[PacketSocket, socket.socket]) -> None:
    service, sock = ends
    PacketSocket(sock).send([b"abc", b"def"])
    first, second = service.receive()
    first[:] = b"xyz"
    assert bytes(second) == b"def"


def test_the_end_of_the_peer_is_an_eof(ends: tuple[PacketSocket, socket.socket]) -> None:
    service, sock = ends
    sock.sendall(struct.pack("<IQ", 1, 10) + b"half")
    sock.close()
    assert service.has_arrived(0)
    with pytest.raises(EOFError):
        service.receive()


@pytest.mark.parametrize("head", [struct.pack("<I", FRAMES_MAX + 1), struct.pack("<IQ", 1, 1 << 63)])
def test_an_impossible_packet_is_an_error(ends: tuple[PacketSocket, socket.socket], head: bytes) -> None:
    service, sock = ends
    sock.sendall(head)
    with pytest.raises(OSError, match="packet: "):
        service.receive()
