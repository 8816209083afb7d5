"""The drain of a frontend: it moves its clients to another frontend, and serves their requests meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.protocol import Out
from horologe_common.status import Refused
from horologe_common.wire import Drain

if TYPE_CHECKING:
    from collections.abc import Callable

SERVE_NS = s(1)
"""Time in which clients that do not answer Drain are served. The SDK answers within a round trip."""


class ClientDrain:
    """Sends Drain to each client once, at the latest with its next request. The client replies behind its last request.

    Requests are refused `SERVE_NS` after the first call of `expire`. Clients of HTTP get no message: the HTTP server
    ends their connections.
    """

    def __init__(self, post: Callable[[Out], None]) -> None:
        self._post = post
        self._moved: dict[str, bool] = {}
        """Client -> whether it has replied."""
        self._refuse_ns = 0

    def notify_client(self, client: str) -> None:
        """Send Drain to a client that has not got it yet."""
        if client not in self._moved and not client.startswith("http/"):
            self._moved[client] = False
            self._post(Out(client, Drain()))

    def admit_request(self, now_ns: int, client: str) -> None:
        """Accept a request of a client that has not moved yet. Raises `Refused` after `SERVE_NS`."""
        if 0 < self._refuse_ns <= now_ns and not client.startswith("http/"):
            raise Refused("draining", retry_after_ns=ms(1000))
        self.notify_client(client)

    def on_client_moved(self, client: str) -> None:
        """Record the reply of a client."""
        self._moved[client] = True

    def remove_client(self, client: str) -> None:
        """Remove a client that has disconnected."""
        self._moved.pop(client, None)

    def is_complete(self) -> bool:
        """Return whether no client sends further requests here, as far as they reply."""
        return all(self._moved.values())

    def next_ns(self) -> int | None:
        """Return when to call `expire`."""
        return None if self._refuse_ns == NEVER_NS else self._refuse_ns

    def expire(self, now_ns: int) -> None:
        """Start the time of `SERVE_NS`; when it has passed, wait for no client any more."""
        if not self._refuse_ns:
            self._refuse_ns = now_ns + SERVE_NS
        elif now_ns >= self._refuse_ns:
            self._moved = dict.fromkeys(self._moved, True)
