"""Fair turns: the clients of a server share the time of its loop."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from horologe_common.clock import monotonic_ns, ms

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_NS = ms(2)
"""Time that the server takes of one iteration of the loop, plus its last call: a request of another client waits for
this time once per iteration that it needs."""
PAUSE_S = 0.002
"""Pause after an iteration whose time is used up while calls wait and there are other clients. A loop that always runs
also loses its processor to other processes."""
T = TypeVar("T")


class FairTurns:
    """Calls functions until the time of an iteration is used up. The rest runs in later iterations.

    Clients take turns, with one call each. The calls of one client keep their order.
    """

    def __init__(self) -> None:
        self.is_contended: Callable[[], bool] = lambda: False
        """Returns whether there is more than one client."""
        self._used_ns = 0
        self._scheduled = False
        self._waiting: dict[object, deque[Callable[[], Any]]] = {}

    def is_open(self, client: object) -> bool:
        """Return whether this iteration has time left, and no earlier call of the client waits."""
        return self._used_ns < TURN_NS and client not in self._waiting

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the function at once, and count its time."""
        begin_ns = monotonic_ns()
        try:
            return function(*arguments)
        finally:
            self._used_ns += monotonic_ns() - begin_ns
            self._schedule()

    def defer(self, client: object, function: Callable[[], object]) -> None:
        """Call the function when it is the client's turn. The function must not raise."""
        self._waiting.setdefault(client, deque()).append(function)
        self._schedule()

    def call(self, client: object, function: Callable[[], object]) -> None:
        """Call the function at once if `is_open`, otherwise when it is the client's turn."""
        if self.is_open(client):
            self.run(function)
        else:
            self.defer(client, function)

    async def in_turn(self, client: object, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of the function, called when it is the client's turn. If cancelled, it is not called."""
        if self.is_open(client):
            return self.run(function, *arguments)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.defer(client, partial(_complete, future, function, arguments))
        return await future

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        if self._used_ns >= TURN_NS and self._waiting and self.is_contended():
            asyncio.get_running_loop().call_later(PAUSE_S, self._begin_iteration)
        else:
            self._begin_iteration()

    def _begin_iteration(self) -> None:
        self._used_ns, self._scheduled = 0, False
        while self._waiting:
            client = next(iter(self._waiting))
            calls = self._waiting.pop(client)
            function = calls.popleft()
            if calls:
                self._waiting[client] = calls  # behind the other clients
            self.run(function)
            if self._used_ns >= TURN_NS:
                return


def _complete(future: asyncio.Future[T], function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    if future.done():
        return
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
