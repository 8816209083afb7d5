"""uvicorn's HTTP protocol with the bounds that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from horologe_frontend.http.exchange import Response, failure
from horologe_frontend.http.responses import head_of

if TYPE_CHECKING:
    import asyncio

    from horologe_frontend.http.settings import HttpSettings


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn bounds neither the head of a request nor the patience with slow clients: this does."""

    settings: HttpSettings
    _in_head = True
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self.settings.header_timeout_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._disarm_write()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        in_head = self._in_head
        super().data_received(data)
        if self.transport.is_closing() or not (in_head and self._in_head):
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.settings.header_limit_bytes:
            self._too_long()
        elif self._timer is None:
            self._arm(self.settings.header_timeout_ns)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, and must not change the headers after the fact
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > (
            self.settings.header_limit_bytes
        ):
            self._too_long()
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._end(failure(400, "malformed HTTP request"))

    def _too_long(self) -> None:
        self._end(failure(431, f"headers: at most {self.settings.header_limit_bytes} bytes"))

    def _end(self, response: Response) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(head_of(response, b"", b"close") + response.body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._disarm_write()
        self._write_timer = self.loop.call_later(self.settings.write_timeout_ns / 1e9, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._disarm_write()

    def _disarm_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _arm(self, timeout_ns: int) -> None:
        self._disarm()
        self._timer = self.loop.call_later(timeout_ns / 1e9, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._in_head:
            self._end(failure(408, "the request did not arrive in time"))
