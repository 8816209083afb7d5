"""Responses as bytes of HTTP/1.1."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_frontend.http.exchange import Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class Date:
    """The Date header of the current second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second, self._line = second, b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


def head_of(response: Response, date: bytes, connection: bytes) -> bytes:
    """Status line and headers; `connection` is that header's value, or empty where the version's default holds."""
    parts = [
        _STATUS_LINES[response.status],
        b"content-length: %d\r\ncontent-type: %s\r\n" % (len(response.body), response.content_type),
        date,
    ]
    parts += [b"%s: %s\r\n" % header for header in response.headers]
    if connection:
        parts.append(b"connection: %s\r\n" % connection)
    parts.append(b"\r\n")
    return b"".join(parts)
