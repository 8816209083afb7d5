"""What waits for its turn on a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import httptools

if TYPE_CHECKING:
    from horologe_frontend.http.exchange import Request, Response


class Exchange(NamedTuple):
    """A request whose turn will come, or the response that it gets without a turn."""

    request: Request | None
    response: Response | None
    keep_alive: bool
    connection: bytes
    body_wanted: bool
    held: int = 0
    read: bool = True
    """Whether all of the request has been read."""


def path_of(url: bytes) -> str:
    """Path of an absolute-form target; anything else stays what it is, and is unknown."""
    try:
        return (httptools.parse_url(url).path or b"/").decode("latin-1")
    except httptools.HttpParserError:
        return url.decode("latin-1")
