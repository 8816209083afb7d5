"""A server of clients without sockets: connections whose bytes a test passes."""

from __future__ import annotations

from time import monotonic
from typing import Any

from horologe_common.transport.clients.client_connection import ClientConnection
from horologe_common.transport.clients.client_server import ClientLimits, ClientServer
from horologe_common.transport.clients.zmtp import GREETING, READY, encode_message
from horologe_common.transport.peers import Peers, Route
from horologe_common.wire import Envelope, Predict, Tensor, encode
from horologe_common.wire.frames import unpack

LIMITS = ClientLimits(connections=5, message_bytes=1 << 20, receive_bytes=2 << 20, unsent_bytes=1 << 20)


class FakeTransport:
    """A transport whose peer reads nothing."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_aborted = False
        self.is_read = True

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def writelines(self, parts: Any) -> None:
        self.sent.extend(parts)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.sent))

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class FakeLoop:
    """Stores what is to be called soon and later."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.later: list[Any] = []

    def call_soon(self, function: Any) -> None:
        self.soon.append(function)

    def call_later(self, seconds: float, function: Any) -> None:
        assert seconds > 0
        self.later.append(function)


class Door:
    """A server without sockets."""

    def __init__(self, limits: ClientLimits = LIMITS) -> None:
        self.peers = Peers("", *[lambda *_: None] * 6)
        self.server = ClientServer(limits, self.peers)
        self.loop = FakeLoop()
        self.server.reads.loop = self.loop  # type: ignore[assignment]
        self._number = 0

    def accept(self) -> tuple[ClientConnection, FakeTransport]:
        """Return a connection whose client has sent nothing yet."""
        self._number += 1
        connection, transport = ClientConnection(self.server, self._number), FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    def connect(self) -> tuple[ClientConnection, FakeTransport]:
        connection, transport = self.accept()
        connection.data_received(GREETING + READY)
        return connection, transport

    def turn(self) -> list[str]:
        """Run a turn, after what has arrived is parsed. Return the sender of each message."""
        for _ in range(10):
            self.server.reads.begin_iteration()
        inbox: list[Any] = []
        self.server.receive(inbox, self._unpack)
        return [sender for _, sender, _, _ in inbox]

    def measure_rates(self) -> None:
        """End a sweep interval."""
        for connection in self.server.connections:
            connection.sweep(monotonic(), False)
        rates = [connection.rate for connection in self.server.connections if connection.rate]
        self.server._rate, self.server._active = sum(rates), len(rates)

    def _unpack(self, route: Route, frames: Any, inbox: list[Any]) -> None:
        sender = str(int.from_bytes(route.identity or b"", "big"))
        inbox.extend(("core", sender, message, buffers) for _, _, message, buffers in unpack(frames, 1 << 16))


def packet(*messages: Any, body: bytes = b"") -> bytes:
    frames = [encode([Envelope("", "", list(messages))]), *([body] if body else [])]
    return b"".join(encode_message(frames))


def predict(number: int, nbytes: int = 0) -> Predict:
    return Predict(number, "m", "", 0, (Tensor("x", "UINT8", (1, nbytes), nbytes),) if nbytes else ())
