"""Readiness of a frontend: from the start until the models are settled, and from its drain until clients have moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.protocol import Out
from horologe_common.status import Refused
from horologe_common.wire import Drain

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_frontend.core.model_versions import ModelVersions

SERVE_NS = s(1)
"""Time in which clients that do not answer Drain are served. The SDK answers within a round trip."""


class Readiness:
    """Whether the models have been settled once: each READY or UNAVAILABLE, and no worker missing.

    Later loads and restarts of workers do not count: the other models are served meanwhile, and requests for a model
    that is loading are answered with the reason. `wait_ns`: longest wait after the first announcement of models.
    """

    def __init__(self, catalogue: ModelVersions, wait_ns: int) -> None:
        self.is_settled = False
        self._catalogue = catalogue
        self._wait_ns = wait_ns
        self.timer_ns: int | None = None
        """Time at which the wait ends at the latest; None if nothing is waited for."""

    def update(self, now_ns: int) -> None:
        """Update `is_settled` by the models that were announced last."""
        if self.is_settled or not self._catalogue.is_announced:
            return
        if self.timer_ns is None:
            self.timer_ns = now_ns + self._wait_ns
        if self._catalogue.is_settled or now_ns >= self.timer_ns:
            self.is_settled, self.timer_ns = True, None


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
