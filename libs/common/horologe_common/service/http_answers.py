"""Answers of other servers over HTTP (collectors, Docker, Kubernetes), bounded in bytes and time.

The client libraries read an answer to its end, and their timeouts start again with every byte.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import requests
    import urllib3

ANSWER_BYTES = 16 << 20
READ_BYTES = 64 << 10


class AnswerError(OSError):
    """An answer is too large or takes too long."""


def read_answer(response: urllib3.BaseHTTPResponse, limit_bytes: int, timeout_s: float) -> bytes:
    """Return the decoded body. Raises AnswerError beyond the limits, after closing the connection.

    A single read takes up to the timeout of the request.
    """
    body, end_s = bytearray(), time.monotonic() + timeout_s
    while part := response.read1(READ_BYTES, decode_content=True):
        body += part
        if len(body) > limit_bytes or time.monotonic() > end_s:
            response.close()
            got = f"{len(body)} bytes" if len(body) > limit_bytes else f"no end after {timeout_s:g} s"
            raise AnswerError(f"answer: got {got} and more, wanted at most {limit_bytes} bytes in {timeout_s:g} s")
    return bytes(body)


def bound_session(session: requests.Session, timeout_s: float, limit_bytes: int = ANSWER_BYTES) -> None:
    """Limit all answers to the requests of a session, except those that are streamed. They raise AnswerError."""

    def read(response: requests.Response, **options: Any) -> None:
        if options.get("stream"):
            return
        response._content = read_answer(response.raw, limit_bytes, timeout_s)  # `requests` reads it after the hooks

    session.hooks["response"].append(read)


class BoundedPool:
    """Limits all answers of a pool of urllib3, for clients that make their requests with it."""

    def __init__(self, pool: urllib3.PoolManager, timeout_s: float, limit_bytes: int = ANSWER_BYTES) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes

    def request(self, method: str, url: str, **options: Any) -> urllib3.HTTPResponse:
        """Return the response with its whole body. Raises AnswerError, and the errors of urllib3."""
        from urllib3 import HTTPResponse

        response = self._pool.request(method, url, **{**options, "preload_content": False})
        body = read_answer(response, self._limit_bytes, self._timeout_s)
        return HTTPResponse(body, response.headers, response.status, reason=response.reason)

    def clear(self) -> None:
        """Close the idle connections."""
        self._pool.clear()
