"""Requests of several calls, given to the core in one turn.

gRPC accepts one call in each iteration of the loop. If each iteration ran a turn of the core, a turn would serve one
request, and most of the time would be spent on turns.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
WAIT_NS = ms(3)
"""Longest wait of a request for others."""
INTERVALS = 4
"""Requests wait for the next one for this many times the mean interval between those that have gathered."""
WEIGHT = 1 / 16
"""Weight of the last interval in the mean."""


class Waiting(NamedTuple):
    """A request that the core has not got yet."""

    predict: Predict
    buffers: Sequence[Buffer]
    future: asyncio.Future[Answered]
    client: str
    arrival_ns: int


class GatheredRequests:
    """Sends Predicts through the gateway. Used on the loop of the gateway only.

    Requests wait only while the core has others: a request that is alone is sent at once.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._waiting: list[Waiting] = []
        self._sent: dict[asyncio.Future[Answered], int] = {}
        """Futures of the requests that the core has, with their keys at the gateway."""
        self._interval_ns: float = us(100)
        """Mean interval between requests that have gathered."""
        self._alarm: Alarm | None = None

    async def predict(self, predict: Predict, buffers: Sequence[Buffer], client: str) -> Answered:
        """Return the answer, as `Gateway.predict` does. If the task is cancelled, the request is cancelled too."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answered] = loop.create_future()
        now_ns, waiting = monotonic_ns(), self._waiting
        if waiting:
            self._interval_ns += (now_ns - waiting[-1].arrival_ns - self._interval_ns) * WEIGHT
        waiting.append(Waiting(predict, buffers, future, client, now_ns))
        if not self._sent or len(waiting) >= GATHERED_MAX:
            self._send()
        elif len(waiting) == 1:
            self._alarm = self._alarm or Alarm(loop, self._on_alarm)
            self._alarm.set(self._send_ns())
        try:
            return await future
        except asyncio.CancelledError:
            if key := self._sent.pop(future, 0):
                self._gateway.cancel(key)
            raise

    def _send_ns(self) -> int:
        """Return when to send those that wait: when the next one is overdue, or the first one has waited too long."""
        overdue_ns = self._waiting[-1].arrival_ns + round(INTERVALS * self._interval_ns)
        return min(overdue_ns, self._waiting[0].arrival_ns + WAIT_NS)

    def _on_alarm(self) -> None:
        if not self._waiting or self._alarm is None:
            return
        if monotonic_ns() >= (send_ns := self._send_ns()):
            self._send()
        else:
            self._alarm.set(send_ns)

    def _send(self) -> None:
        """Send the requests that wait and were not cancelled."""
        waiting, self._waiting = self._waiting, []
        for predict, buffers, future, client, arrival_ns in waiting:
            if future.done():
                continue
            try:
                on_reply = partial(self._on_reply, future)
                self._sent[future] = self._gateway.send(predict, buffers, on_reply, client, arrival_ns)
            except Exception as error:  # the other requests must still be sent
                future.set_exception(error)

    def _on_reply(self, future: asyncio.Future[Answered], answer: Any, buffers: Sequence[Buffer]) -> None:
        self._sent.pop(future, None)
        if not future.done():
            future.set_result((answer, buffers))
        if not self._sent and self._waiting:
            self._send()

    def close(self) -> None:
        """Release the timer. No request may be sent any more."""
        if self._alarm is not None:
            self._alarm.close()
