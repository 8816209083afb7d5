"""Requests of several calls, given to the core in one turn.

gRPC accepts one call in each iteration of the loop. If each iteration ran a turn of the core, a turn would serve one
request, and most of the time would be spent on turns.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns, ms, us
from horologe_common.transport.alarm import Alarm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.gateway import Gateway

    Answered = tuple[Answer, Sequence[Buffer]]

GATHERED_MAX = 32
"""Requests that are given to the core together at most."""
GAP_NS = us(300)
"""Requests wait for others until none has come for this time."""
WAIT_NS = ms(2)
"""Longest wait of a request for others."""


class GatheredRequests:
    """Sends Predicts through the gateway. Used on the loop of the gateway only."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._waiting: list[tuple[Predict, Sequence[Buffer], asyncio.Future[Answered], str, int]] = []
        self._alarm: Alarm | None = None
        self._first_ns = 0
        self._keys: dict[asyncio.Future[Answered], int] = {}
        """Futures of the requests that the core has, with their keys at the gateway."""
        self._last_ns = 0

    async def predict(self, predict: Predict, buffers: Sequence[Buffer], client: str) -> Answered:
        """Return the answer, as `Gateway.predict` does. If the task is cancelled, the request is cancelled too."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answered] = loop.create_future()
        self._last_ns = now_ns = monotonic_ns()
        self._waiting.append((predict, buffers, future, client, now_ns))
        if len(self._waiting) >= GATHERED_MAX or (not self._keys and len(self._waiting) == 1):
            self._send()
        elif len(self._waiting) == 1:
            self._first_ns = now_ns
            if self._alarm is None:
                self._alarm = Alarm(loop, self._on_alarm)
            self._alarm.set(now_ns + GAP_NS)
        try:
            return await future
        except asyncio.CancelledError:
            if key := self._keys.pop(future, 0):
                self._gateway.cancel(key)
            raise

    def _on_alarm(self) -> None:
        if not self._waiting or self._alarm is None:
            return
        send_ns = min(self._last_ns + GAP_NS, self._first_ns + WAIT_NS)
        if monotonic_ns() >= send_ns:
            self._send()
        else:
            self._alarm.set(send_ns)

    def _send(self) -> None:
        """Send the requests that wait and were not cancelled."""
        waiting, self._waiting = self._waiting, []
        for predict, buffers, future, client, sent_ns in waiting:
            if future.done():
                continue
            try:
                on_reply = partial(self._on_reply, future)
                self._keys[future] = self._gateway.send(predict, buffers, on_reply, client, sent_ns)
            except Exception as error:  # the other requests must still be sent
                future.set_exception(error)

    def close(self) -> None:
        """Release the timer. No request may be sent any more."""
        if self._alarm is not None:
            self._alarm.close()

    def _on_reply(self, future: asyncio.Future[Answered], answer: Any, buffers: Sequence[Buffer]) -> None:
        self._keys.pop(future, None)
        if not future.done():
            future.set_result((answer, buffers))
