"""Fair turns: the clients of a server share the time of its loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from horologe_common.clock import monotonic_ns, ms

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_NS = ms(2)
"""Time that a server takes of one iteration of the loop, plus its last call: a request of another client waits for this
time once per iteration that it needs."""
PAUSE_S = 0.002
"""Pause after an iteration whose time is used up while calls wait and there are other clients. A loop that always runs
also loses its processor to other processes."""
LONG_CALL_NS, REST = ms(10), 100
"""After a call that takes more CPU time, such as parsing 16 MB of JSON, its client rests for 100 times the excess while
there are other clients: it delays one in a hundred of their requests. JSON of 2 MB takes less."""
T = TypeVar("T")


class FairTurns:
    """Calls functions until the time of an iteration is used up. The rest runs in later iterations.

    Clients take turns, with one call each. The calls of one client keep their order.
    """

    def __init__(self, pause_s: Callable[[], float] = lambda: 0.0, turn_ns: int = TURN_NS) -> None:
        self.pause_s = pause_s
        """Returns the pause in seconds after an iteration whose time is used up. 0: there are no other clients."""
        self.waiting: dict[object, deque[Callable[[], Any]]] = {}
        """Clients with calls that wait, in the order of their turns."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that gives turns. None: the one that runs."""
        self.turn_ns = turn_ns
        self._used_ns = self._begin_cpu_ns = 0
        self._scheduled = False
        self._resting: dict[object, int] = {}
        """Clients after a long call, and the time until which their calls wait."""
        self._rest_timer: asyncio.TimerHandle | None = None

    @property
    def is_contended(self) -> bool:
        """Return whether there are other clients."""
        return self.pause_s() > 0

    def use(self, time_ns: int) -> None:
        """Count time that a client has used outside of a call, such as that of a read."""
        self._used_ns += time_ns

    def is_open(self, client: object) -> bool:
        """Return whether this iteration has time left, no earlier call of the client waits, and it does not rest."""
        return self._used_ns < self.turn_ns and client not in self.waiting and client not in self._resting

    def run(self, client: object, function: Callable[..., T], *arguments: Any) -> T:
        """Call the function of a client at once, and count its time."""
        if not self._scheduled:
            self._begin_cpu_ns = time.thread_time_ns()
        begin_ns = monotonic_ns()
        try:
            return function(*arguments)
        finally:
            took_ns = monotonic_ns() - begin_ns
            self._used_ns += took_ns
            if took_ns > LONG_CALL_NS and self.is_contended:
                self._let_rest(client, begin_ns + took_ns)
            self._schedule()

    def _let_rest(self, client: object, now_ns: int) -> None:
        """Let the client rest if its call was long, and not only interrupted by other processes."""
        excess_ns = time.thread_time_ns() - self._begin_cpu_ns - LONG_CALL_NS
        if excess_ns > 0:
            self._resting[client] = now_ns + REST * excess_ns

    def defer(self, client: object, function: Callable[[], object]) -> None:
        """Call the function when it is the client's turn. The function must not raise."""
        self.waiting.setdefault(client, deque()).append(function)
        self._schedule()

    def drop(self, client: object) -> None:
        """Drop the calls of a client that is lost."""
        self.waiting.pop(client, None)

    def call(self, client: object, function: Callable[[], object]) -> None:
        """Call the function at once if `is_open`, otherwise when it is the client's turn."""
        if self.is_open(client):
            self.run(client, function)
        else:
            self.defer(client, function)

    async def in_turn(self, client: object, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of the function, called when it is the client's turn. If cancelled, it is not called."""
        if self.is_open(client):
            return self.run(client, function, *arguments)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.defer(client, partial(_complete, [future], function, arguments))
        try:
            return await future
        finally:
            del future  # see `_complete`

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            (self.loop or asyncio.get_running_loop()).call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        if self._used_ns >= self.turn_ns and self.waiting and (pause_s := self.pause_s()):
            (self.loop or asyncio.get_running_loop()).call_later(pause_s, self.begin_iteration)
        else:
            self.begin_iteration()

    def begin_iteration(self) -> None:
        """Call functions that wait, until the time of an iteration is used up."""
        self._used_ns, self._scheduled = 0, False
        now_ns = monotonic_ns()
        self._resting = {client: until_ns for client, until_ns in self._resting.items() if until_ns > now_ns}
        while client := next((client for client in self.waiting if client not in self._resting), None):
            calls = self.waiting.pop(client)
            function = calls.popleft()
            if calls:
                self.waiting[client] = calls  # behind the other clients
            self.run(client, function)
            if self._used_ns >= self.turn_ns:
                return
        if self._resting and self._rest_timer is None:
            rest_s = (min(self._resting.values()) - now_ns) / 1e9
            self._rest_timer = (self.loop or asyncio.get_running_loop()).call_later(
                max(PAUSE_S, rest_s), self._end_rest
            )

    def _end_rest(self) -> None:
        self._rest_timer = None
        self._schedule()


def _complete(waiting: list[asyncio.Future[T]], function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    """Call the function for the future in the list, and remove it from there.

    An exception holds the frames that it has passed, and the future holds the exception. If a frame held the future,
    this cycle would keep the arguments, such as bodies of requests, until the next garbage collection.
    """
    future = waiting.pop()
    if future.done():
        return
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    finally:
        del future
