"""The requests that are open, by their own ids and by those of their clients. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_frontend.core.requests import Request


class Book:
    """Law: every request has one timer, and its client one id for it."""

    def __init__(self) -> None:
        self._deadlines = Timers()
        self._requests: dict[int, Request] = {}
        self._by_client: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, key: int) -> bool:
        return key in self._requests

    def add(self, request: Request) -> None:
        """Open it; its timer is at `give_up_ns`."""
        self._requests[request.id] = request
        self._by_client.setdefault(request.client, {})[request.client_id] = request.id
        self._deadlines.arm(request.id, request.give_up_ns)

    def get(self, key: int) -> Request | None:
        return self._requests.get(key)

    def of(self, client: str, client_id: int) -> Request | None:
        """What this client calls so."""
        return self._requests.get(self._by_client.get(client, {}).get(client_id, 0))

    def ids_of(self, client: str) -> tuple[int, ...]:
        """What this client calls its open requests."""
        return tuple(self._by_client.get(client, ()))

    def remove(self, request: Request) -> None:
        del self._requests[request.id]
        open_ids = self._by_client[request.client]
        del open_ids[request.client_id]
        if not open_ids:
            del self._by_client[request.client]
        self._deadlines.cancel(request.id)

    def due(self, now_ns: int) -> list[Request]:
        """Whose time has come; each must be removed now."""
        return [self._requests[key] for key in self._deadlines.pop_expired(now_ns)]

    def next_ns(self) -> int | None:
        return self._deadlines.next_ns()

    def check(self) -> None:
        self._deadlines.check()
        assert len(self._requests) == len(self._deadlines) == sum(map(len, self._by_client.values()))
