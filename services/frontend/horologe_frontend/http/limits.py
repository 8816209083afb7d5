"""What every HTTP server of ours does before and around a request: limits, refusals, accounting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.exchange import error_response

if TYPE_CHECKING:
    from horologe_frontend.http.exchange import Handler, Request, Response
    from horologe_frontend.http.settings import HttpSettings

BUSY_NS = 1_000_000_000


class Gate:
    """Counts requests in flight and the bytes of their bodies, and lets no more in than the settings allow."""

    def __init__(self, settings: HttpSettings, handler: Handler) -> None:
        self.settings = settings
        self.handler = handler
        self.requests = 0
        self.held_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, head: Request) -> Response | None:
        """Count a request whose head has been read, or give the response that refuses it."""
        if refusal := self.handler.refuse(head):
            return refusal
        length = head.headers.get(b"content-length", b"0")
        if not length.isdigit():
            return error_response(InvalidInput("Content-Length: wanted a number"))
        if len(length) > 18 or int(length) > self.settings.body_limit_bytes:
            return self.too_large()
        if self.requests >= self.settings.max_requests:
            return error_response(Refused(f"{self.requests} requests are in flight already", BUSY_NS))
        if self.held_bytes + int(length) > self.settings.held_limit_bytes:
            return self.full()
        self.requests += 1
        self._idle.clear()
        return None

    def take(self, size: int, total: int) -> Response | None:
        """Account for `size` more bytes of a body that is then `total` long, or give the response that refuses it.

        Bytes that were refused are not accounted for.
        """
        if total > self.settings.body_limit_bytes:
            return self.too_large()
        if self.held_bytes + size > self.settings.held_limit_bytes:
            return self.full()
        self.held_bytes += size
        return None

    def leave(self, held: int) -> None:
        """A request that had entered, and took `held` bytes, is over."""
        self.requests -= 1
        self.held_bytes -= held
        if not self.requests:
            self._idle.set()

    def too_large(self) -> Response:
        return error_response(TooLarge(f"body: at most {self.settings.body_limit_bytes} bytes"))

    def full(self) -> Response:
        return error_response(Refused("too many request bodies are held already", BUSY_NS))

    async def idle(self, timeout_ns: int) -> bool:
        """Wait until no request is in flight; False if that took longer than the timeout."""
        try:
            async with asyncio.timeout(timeout_ns / 1e9):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def check(self) -> None:
        assert self.requests >= 0
        assert self.held_bytes >= 0
        assert self.requests or not self.held_bytes
