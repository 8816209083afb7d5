"""Limits of requests when their headers have arrived, and the responses that refuse them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from horologe_common.clock import monotonic_ns
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.client_accounts import RETRY_NS, ClientAccounts
from horologe_frontend.http.http_requests import HttpHandler, HttpRequest
from horologe_frontend.http.http_responses import HttpResponse, error_response

if TYPE_CHECKING:
    from horologe_frontend.http.settings import HttpSettings

MAX_LENGTH_DIGITS = 18
"""A Content-Length with more digits exceeds every limit."""
IDLE_POLL_S = 0.01


class RequestLimits:
    """Count the requests in flight and the bytes that they hold, and refuse requests beyond the settings."""

    def __init__(self, settings: HttpSettings, handler: HttpHandler) -> None:
        self.settings = settings
        self.handler = handler
        self.clients = ClientAccounts(settings)
        self.total = self.clients.total

    def admit_request(self, head: HttpRequest) -> HttpResponse | None:
        """Count a request whose headers have arrived, or return the response that refuses it."""
        if refusal := self.handler.refuse(head):
            return refusal
        length, account = head.headers.get(b"content-length", b"0"), head.account
        if not length.isdigit():
            return error_response(InvalidInput("Content-Length: wanted a number"))
        if len(length) > MAX_LENGTH_DIGITS or int(length) > self.settings.body_limit_bytes:
            return self.refuse_large_body()
        if not account.may_request():
            reason = f"{self.total.requests} requests are in flight already, {account.requests} of this client"
            return error_response(Refused(reason, RETRY_NS))
        if not account.has_room(int(length)):
            return refuse_full()
        account.try_begin(0)
        return None

    def refuse_large_body(self) -> HttpResponse:
        return error_response(TooLarge(f"body: at most {self.settings.body_limit_bytes} bytes"))

    async def wait_until_idle(self, timeout_ns: int) -> None:
        """Wait until no request is in flight, or until the timeout."""
        end_ns = monotonic_ns() + timeout_ns
        while self.total.requests and monotonic_ns() < end_ns:  # noqa: ASYNC110 - an event would cost every request
            await asyncio.sleep(IDLE_POLL_S)


def refuse_full() -> HttpResponse:
    """Return the response to a request for which there is no memory."""
    return error_response(Refused("too many bytes of requests and responses are in memory already", RETRY_NS))
