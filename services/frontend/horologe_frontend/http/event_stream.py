"""Server-sent events: a response that stays open until the client or the server closes the connection.

Specification: WHATWG HTML, section 9.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_frontend.http.http_messages import STATUS_LINES, HttpResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

EVENTS = b"text/event-stream"
HEADERS = b"cache-control: no-store\r\nx-accel-buffering: no\r\ntransfer-encoding: chunked\r\nconnection: close\r\n"
"""Chunks show a client whether the stream has ended, or the connection was lost."""
HEAD = b"%scontent-type: %s\r\n%s\r\n" % (STATUS_LINES[200], EVENTS, HEADERS)


class EventSender:
    """Sends events on one connection. `has_room`: the client has read most of what was sent before. `close`: closes the
    connection when everything is sent.
    """

    def __init__(self, transport: asyncio.Transport, has_room: asyncio.Event, close: Callable[[], object]) -> None:
        self._transport = transport
        self._has_room = has_room
        self._close = close

    def send(self, event: bytes) -> bool:
        """Send an encoded event. Return False if it was dropped, because the client has not read earlier ones."""
        if not self._has_room.is_set() or self._transport.is_closing():
            return False
        self._write(event)
        return True

    async def send_all(self, events: bytes) -> None:
        """Send encoded events, and wait until the client has read most of what was sent."""
        if events and not self._transport.is_closing():
            self._write(events)
        await self._has_room.wait()

    def _write(self, events: bytes) -> None:
        self._transport.write(b"%x\r\n%s\r\n" % (len(events), events))

    def finish(self) -> None:
        """End the stream, and close the connection after what has been sent."""
        if not self._transport.is_closing():
            self._transport.write(b"0\r\n\r\n")
            self._close()


class EventStream(HttpResponse, frozen=True):
    """A stream of events. `on_open` gets its sender, and returns the function that is called when the stream ends."""

    on_open: Callable[[EventSender], Callable[[], object]] | None = None

    def begin(
        self, transport: asyncio.Transport, has_room: asyncio.Event, close: Callable[[], object]
    ) -> Callable[[], object]:
        """Send the head, and return the function to call at the end. Other parameters: see `EventSender`."""
        assert self.on_open is not None
        transport.write(HEAD)
        return self.on_open(EventSender(transport, has_room, close))


def encode_event(name: str, data: bytes) -> bytes:
    """Return an event of this name. `data` is JSON, which holds no line break."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def encode_data(fields: Mapping[str, object]) -> bytes:
    """Return an event without a name, whose data are JSON."""
    return b"data: %s\n\n" % msgspec.json.encode(fields)
