"""The gateway to the frontend core in the same process: calls become messages. `core` is also read directly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.service.log import logger
from horologe_common.status import HorologeError, UnknownModel
from horologe_common.wire import Answer, Cancel, ItemsTaken, Predict, RefusedAgain
from horologe_frontend.console.traffic import Totals, read_totals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.transport.reactor import Reactor
    from horologe_frontend.core.frontend import Frontend

    OnReply = Callable[[Any, Sequence[Buffer]], None]

REPORT_S = 0.01
"""Time until the core gets the number of refused requests."""
log = logger("http")


class Gateway:
    """The way of a protocol translation such as HTTP to `core`. Used on the loop of the core's reactor only."""

    def __init__(self, reactor: Reactor, address: str, core: Frontend) -> None:
        self._reactor = reactor
        self._address = address
        self.core = core
        self._last_id = 0
        self._refused: dict[str, int] = {}
        """Requests by model that were refused without a Predict, and that the core does not know of yet."""
        self.callbacks: dict[int, OnReply] = {}
        """Callbacks of the calls in flight, by id."""

    @property
    def is_traced(self) -> bool:
        """Return whether requests with a `traceparent` belong to its trace."""
        return self.core.tracer is not None

    def open(self) -> None:
        """Register this address, so that the core's replies are delivered."""
        self._reactor.attach(self._address, self.deliver)

    def deliver(self, message: Any, buffers: Sequence[Buffer]) -> None:
        """Complete the call with the id of this message. Replies to cancelled calls are dropped.

        Items of a stream come before its Answer, and do not complete the call.
        """
        is_item = isinstance(message, Answer) and message.more
        on_reply = self.callbacks.get(message.id) if is_item else self.callbacks.pop(message.id, None)
        if on_reply is None:
            return
        try:
            on_reply(message, buffers)
        except Exception:  # the other replies of the turn must still be delivered
            log.exception("reply fault", message=type(message).__name__)

    def send(self, predict: Predict, buffers: Sequence[Buffer], on_reply: OnReply, client: str) -> int:
        """Send a Predict for a client under a new id, which is returned. `on_reply` gets the Answer in a later turn.

        An inference over HTTP uses this instead of `call`, because a task and a future cost 6 us.
        """
        key = self._register(on_reply)
        predict = msgspec.structs.replace(predict, id=key, client=client)
        self._reactor.post(self._address, self.core.address, predict, buffers)
        return key

    def count_refused(self, model: str) -> None:
        """Count a request for a model (a key) that was refused without a Predict. The core gets the counts later."""
        if not self._refused:
            asyncio.get_running_loop().call_later(REPORT_S, self.report_refused)
        self._refused[model] = self._refused.get(model, 0) + 1

    def report_refused(self) -> None:
        """Send the counts of refused requests to the core."""
        if self._refused:
            counts, self._refused = tuple(self._refused.items()), {}
            self._reactor.post(self._address, self.core.address, RefusedAgain(counts))

    def _register(self, on_reply: OnReply) -> int:
        self._last_id += 1  # ids are positive: 0 marks announcements
        self.callbacks[self._last_id] = on_reply
        return self._last_id

    def cancel(self, key: int) -> None:
        """Drop the reply to a Predict. The core gets a Cancel, unless the reply has been delivered."""
        if self.callbacks.pop(key, None):
            self._reactor.post(self._address, self.core.address, Cancel((key,)))

    def take_items(self, key: int, items: int) -> None:
        """Report to the core how many items of a stream its receiver has taken so far."""
        self._reactor.post(self._address, self.core.address, ItemsTaken(key, items))

    async def predict(
        self, predict: Predict, buffers: Sequence[Buffer], client: str
    ) -> tuple[Answer, Sequence[Buffer]]:
        """Return the answer, whatever its status. The id of `predict` is ignored. `client`: for whom it is sent."""
        predict = msgspec.structs.replace(predict, client=client)
        answer: tuple[Answer, Sequence[Buffer]] = await self.call(predict, buffers)
        return answer

    async def call(self, message: Any, buffers: Sequence[Buffer] = ()) -> Any:
        """Send the message under a new id and return the reply with that id, an Answer with its buffers.

        If the task is cancelled while a Predict is in flight, the core gets a Cancel.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Any, reply_buffers: Sequence[Buffer]) -> None:
            if not future.done():
                future.set_result((reply, reply_buffers) if isinstance(reply, Answer) else reply)

        key = self._register(on_reply)
        self._reactor.post(self._address, self.core.address, msgspec.structs.replace(message, id=key), buffers)
        try:
            return await future
        except asyncio.CancelledError:
            if isinstance(message, Predict):
                self.cancel(key)
            else:
                self.callbacks.pop(key, None)
            raise

    def find_spec(self, model: str, version: str) -> ModelSpec:
        """Return the model. If there is none with this name, return the signature of the application."""
        try:
            return self.core.catalogue.find_model(model, version)
        except UnknownModel as unknown:
            if version:
                raise
            try:
                return self.core.declared.find_with_signature(model)[1]
            except HorologeError:
                raise unknown from None

    def is_ready(self) -> bool:
        """Return whether requests can be served: selector and controller are connected, and it is not stopping."""
        return self.core.is_ready() and not self._reactor.is_stopping

    def traffic_totals(self, since_ns: int = 0) -> list[Totals]:
        """Return the requests so far, of models only those with an answer since `since_ns` (see `read_totals`)."""
        return read_totals(self.core, since_ns)
