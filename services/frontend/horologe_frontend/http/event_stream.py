"""Server-sent events: a response that stays open until the client or the server closes the connection.

Specification: WHATWG HTML, section 9.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_frontend.http.http_messages import STATUS_LINES, HttpResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

HEADERS = b"cache-control: no-store\r\nx-accel-buffering: no\r\nconnection: close\r\n"
HEAD = b"%scontent-type: text/event-stream\r\n%s\r\n" % (STATUS_LINES[200], HEADERS)


class EventSender:
    """Sends events on one connection. A client that does not read them in time misses some."""

    def __init__(self, transport: asyncio.Transport, is_paused: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_paused = is_paused

    def send(self, event: bytes) -> bool:
        """Send an encoded event. Return False if it was dropped, because the client has not read earlier ones."""
        if self._is_paused() or self._transport.is_closing():
            return False
        self._transport.write(event)
        return True

    def close(self) -> None:
        """Close the connection after what has been sent."""
        self._transport.close()


class EventStream(HttpResponse, frozen=True):
    """A stream of events. `on_open` gets its sender, and returns the function that is called when the stream ends."""

    on_open: Callable[[EventSender], Callable[[], object]] | None = None

    def begin(self, transport: asyncio.Transport, is_paused: Callable[[], bool]) -> Callable[[], object]:
        """Send the head, and return the function to call when the connection has been lost."""
        assert self.on_open is not None
        transport.write(HEAD)
        return self.on_open(EventSender(transport, is_paused))


def encode_event(name: str, data: bytes) -> bytes:
    """Return an event of this name. `data` is JSON, which holds no line break."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
