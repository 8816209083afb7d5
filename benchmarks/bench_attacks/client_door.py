"""Attacks on the ZeroMQ door for clients: flat out over plain TCP, with frames of ZMTP 3 written by hand.

libzmq's own sender would be slower than the server, and does not send what is forbidden.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench_attacks.attack import Attack
from horologe_common.applications import Application
from horologe_common.wire import (
    PROTOCOL,
    Admit,
    Cancel,
    Declare,
    Describe,
    Envelope,
    Feedback,
    Hello,
    ModelInfo,
    Observation,
    Pong,
    Predict,
    Tensor,
    Withdraw,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench_attacks.attack import Clock, Doors
    from horologe_common.wire import AnyMessage

MORE, LONG, COMMAND = 1, 2, 4
CHUNK = 1 << 18


def frame(data: bytes, more: bool = False) -> bytes:
    """Return a frame of ZMTP 3.0 (https://rfc.zeromq.org/spec/23)."""
    if len(data) < 256:
        return bytes((MORE * more, len(data))) + data
    return struct.pack(">BQ", MORE * more | LONG, len(data)) + data


def header(messages: Iterable[AnyMessage]) -> bytes:
    """Return the header of a packet."""
    return encode([Envelope("", "", list(messages))])


def connect(doors: Doors) -> socket.socket:
    """Return a connection that has completed the handshake of ZMTP and sent Hello."""
    parts = urlsplit(doors.sdk)
    sock = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
    sock.sendall(bytes((COMMAND, len(ready))) + ready)
    sock.sendall(frame(header([Hello(PROTOCOL, ())])))
    return sock


def flood(build: Callable[[], bytes], reads: bool = True) -> Callable[[Doors, Clock], int]:
    """Return an attack that sends the same bytes again and again, and reconnects when the server closes."""

    def run(doors: Doors, clock: Clock) -> int:
        sent, data = 0, build()
        while clock.running():
            with contextlib.suppress(OSError), connect(doors) as sock:
                sent += send_until(sock, data, clock, reads)
        return sent // len(data)

    return run


def send_until(sock: socket.socket, data: bytes, clock: Clock, reads: bool = True) -> int:
    """Send `data` repeatedly until the end or until the peer closes. Return the number of bytes sent."""
    view, at, sent, trash = memoryview(data), 0, 0, bytearray(CHUNK)
    sock.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while clock.running():
            readable, writable, _ = select.select([sock] * reads, [sock], [], 0.01)
            if readable and sock.recv_into(trash) == 0:
                break
            if writable:
                count = sock.send(view[at : at + CHUNK])
                sent += count
                at = (at + count) % len(view)
    return sent


def endless_parts(doors: Doors, clock: Clock) -> int:
    """Send one message that never ends, of empty parts. Return the number of parts."""
    sent, parts = 0, b"\x01\x00" * 50_000
    while clock.running():
        with contextlib.suppress(OSError), connect(doors) as sock:
            sock.sendall(frame(header([Cancel((1,))]), more=True))
            sent += send_until(sock, parts, clock) // 2
    return sent


def half_messages(doors: Doors, clock: Clock) -> int:
    """Open 200 connections, and send 60 MB of a message of 64 MB on each. Return the number of connections."""
    large = struct.pack(">BQ", LONG, 60 << 20)
    start = frame(header([predict(doors.model, 60 << 20)]), more=True) + large
    socks: list[socket.socket] = []
    block, turn, trash = bytes(CHUNK), 0, bytearray(CHUNK)
    while clock.running():
        if len(socks) < 200:
            with contextlib.suppress(OSError):
                sock = connect(doors)
                sock.sendall(start)
                sock.setblocking(False)
                socks.append(sock)
        for sock in list(socks):
            try:
                with contextlib.suppress(BlockingIOError):
                    if sock.recv_into(trash) == 0:
                        raise ConnectionResetError
                with contextlib.suppress(BlockingIOError):
                    sock.send(block)
                    turn += 1
            except OSError:
                socks.remove(sock)
    for sock in socks:
        sock.close()
    return turn


def reconnections(doors: Doors, clock: Clock) -> int:
    """Connect, send Hello and disconnect, again and again. Return the number of connections."""
    opened = 0
    while clock.running():
        with contextlib.suppress(OSError):
            connect(doors).close()
            opened += 1
    return opened


def idle_connections(doors: Doors, clock: Clock) -> int:
    """Open as many connections as possible, hold 800 of them, and send nothing. Return how many were opened."""
    socks: list[socket.socket] = []
    opened = 0
    parts = urlsplit(doors.sdk)
    while clock.running():
        with contextlib.suppress(OSError):
            socks.append(socket.create_connection((parts.hostname or "", parts.port or 0), timeout=1))
            opened += 1
        if len(socks) > 800:
            socks.pop(0).close()
    return opened


def predict(model: str, nbytes: int = 256, budget_ns: int = 0, number: int = 1) -> Predict:
    """Return a Predict of `nbytes` of input."""
    return Predict(number, model, "", budget_ns, (Tensor("image", "FP32", (nbytes // 256, 64), nbytes),))


def predicts(budget_ns: int, count: int = 128) -> bytes:
    """Return packets of small requests with increasing ids."""
    packets = []
    for start in range(0, 64 * count, count):
        messages = [predict("digits-linear", 256, budget_ns, start + i + 1) for i in range(count)]
        packets.append(frame(header(messages), more=True) + frame(bytes(256 * count)))
    return b"".join(packets)


def packet(message: Callable[[int], AnyMessage], count: int, first: int = 0) -> bytes:
    """Return one packet with `count` messages in its header."""
    return frame(header([message(number) for number in range(first, first + count)]))


def application(number: int) -> Application:
    """Return a valid application."""
    return Application(f"attack-{number}", ("digits-linear",), task="classes")


def feedback(number: int) -> Feedback:
    """Return feedback for an application that is not declared."""
    return Feedback(number, "nosuch", (Observation((1.0,), b"x"),))


def large_request(missing: int = 0) -> bytes:
    """Return a request of 30 MB, without the last `missing` bytes of its body."""
    size = 30 << 20
    return frame(header([predict("digits-linear", size)]), more=True) + frame(bytes(size - missing))


def empty_parts() -> bytes:
    """Return a message of two million empty parts."""
    return frame(b"\x90", more=True) + b"\x01\x00" * 2_000_000 + b"\x00\x00"


def declarations() -> bytes:
    """Return packets with 40,000 declarations."""
    return b"".join(packet(lambda n: Declare(n, application(n)), 400, first) for first in range(0, 40_000, 400))


def swap(number: int) -> AnyMessage:
    """Return a declaration and a withdrawal of one application in turn."""
    return Declare(number, application(1)) if number % 2 else Withdraw(number, application(1).name)


def sdk(name: str, what: str, growth_mb: int, run: Callable[[Doors, Clock], int]) -> Attack:
    """Return an attack on the door for SDK clients."""
    return Attack(name, "sdk", what, run, growth_mb)


def repeat(message: Callable[[int], AnyMessage], count: int, reads: bool = True) -> Callable[[Doors, Clock], int]:
    """Return an attack that repeats a packet with `count` messages."""
    return flood(lambda: packet(message, count), reads)


ATTACKS = (
    sdk("admit", "4,500 loads in each packet", 64, repeat(lambda n: Admit(n, "noop", "", True), 4500)),
    sdk("unload", "loads and unloads", 64, repeat(lambda n: Admit(n, "noop", "", n % 2 > 0), 4500)),
    sdk("describe", "9,000 Describe in each packet", 64, repeat(Describe, 9000)),
    sdk("describe-long", "Describe with a name of 5.8 MB", 64, repeat(lambda n: Describe(n, "x" * 5_800_000), 1)),
    sdk("model-info", "8,500 ModelInfo in each packet", 64, repeat(ModelInfo, 8500)),
    sdk("cancel", "Cancel of 9,000 unknown ids", 64, repeat(lambda _: Cancel(tuple(range(70_000, 79_000))), 1)),
    sdk("predict-30mb", "requests of 30 MB", 600, flood(large_request)),
    sdk("predict-odd", "requests of 30 MB whose body is too short", 300, flood(lambda: large_request(missing=1))),
    sdk("predict-negative", "requests with a negative budget", 128, flood(lambda: predicts(-(10**18)))),
    sdk("predict-flood", "valid requests with a deadline of 1 s", 256, flood(lambda: predicts(10**9))),
    sdk("garbage", "packets that cannot be decoded", 64, flood(lambda: frame(b"\x93" * 60_000) * 10)),
    sdk("parts", "messages of two million empty parts", 64, flood(empty_parts)),
    sdk("endless-parts", "a message without an end", 64, endless_parts),
    sdk("half-messages", "200 unfinished messages of 60 MB", 600, half_messages),
    sdk("idle-connections", "connections that send nothing", 64, idle_connections),
    sdk("reconnections", "connections that end after a Hello", 64, reconnections),
    sdk("pong", "7,000 Pong in each packet", 64, repeat(lambda n: Pong(n, n), 7000)),
    sdk("never-read", "requests whose answers are never read", 256, flood(lambda: predicts(0), reads=False)),
    sdk("never-read-info", "ModelInfo whose answers are never read", 256, repeat(ModelInfo, 8500, reads=False)),
    sdk("declare", "more applications than the limit", 128, flood(declarations)),
    sdk("declare-withdraw", "one application declared and withdrawn", 128, repeat(swap, 400)),
    sdk("feedback", "feedback for an unknown application", 64, repeat(feedback, 1500)),
)
