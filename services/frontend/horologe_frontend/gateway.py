"""The gateway to the frontend core: calls of coroutines become messages to the core in the same process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.wire import Admit, Answer, Cancel, Models, Predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.transport.reactor import Reactor
    from horologe_common.wire import ModelState
    from horologe_frontend.core.frontend import Frontend
    from horologe_frontend.core.stats import ModelStats


class Gateway:
    """The frontend core as a protocol translation such as HTTP sees it. Used on the loop of the core's reactor only."""

    def __init__(self, reactor: Reactor, address: str, core: Frontend) -> None:
        self._reactor = reactor
        self._address = address
        self._core = core
        self._last_id = 0
        self.futures: dict[int, asyncio.Future[Any]] = {}
        """The calls in flight, by id."""

    def open(self) -> None:
        """Register this address, so that the core's replies are delivered."""
        self._reactor.attach(self._address, self.deliver)

    def deliver(self, message: Any, buffers: Sequence[Buffer]) -> None:
        """Complete the call with the id of this message. Replies to cancelled calls are dropped."""
        future = self.futures.pop(message.id, None)
        if future is None or future.done():
            return
        future.set_result((message, buffers) if isinstance(message, Answer) else message)

    async def predict(self, predict: Predict, buffers: Sequence[Buffer]) -> tuple[Answer, Sequence[Buffer]]:
        """Return the answer, whatever its status. The id of `predict` is ignored."""
        answer: tuple[Answer, Sequence[Buffer]] = await self.call(predict, buffers)
        return answer

    def find_model(self, model: str, version: str = "") -> ModelSpec:
        """Return the version that a request would get. Raise `UnknownModel` if there is none."""
        return self._core.catalogue.find_model(model, version)

    def model_states(self, model: str = "") -> Sequence[ModelState]:
        """Return all versions of a model, or of all models, in any state. Empty if the model is unknown."""
        return self._core.catalogue.model_states(model)

    async def set_admitted(self, model: str, version: str, admitted: bool) -> Models:
        """Load or unload a model of the repository. The status of the reply reports success."""
        reply = await self.call(Admit(0, model, version, admitted))
        assert isinstance(reply, Models)
        return reply

    def find_application(self, name: str) -> tuple[Application, ModelSpec]:
        """Return an application and its signature.

        Raise `UnknownModel` if it is not declared, `Refused` while the applications are not known yet.
        """
        return self._core.declared.find_with_signature(name)

    async def call(self, message: Any, buffers: Sequence[Buffer] = ()) -> Any:
        """Send the message under a new id and return the reply with that id.

        If the task is cancelled while a Predict is in flight, the core gets a Cancel.
        """
        self._last_id += 1  # ids are positive: 0 marks announcements
        key = self._last_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.futures[key] = future
        self._reactor.post(self._address, self._core.address, msgspec.structs.replace(message, id=key), buffers)
        try:
            return await future
        except asyncio.CancelledError:
            if self.futures.pop(key, None) and isinstance(message, Predict):
                self._reactor.post(self._address, self._core.address, Cancel((key,)))
            raise

    def is_ready(self) -> bool:
        """Return whether requests can be served: selector and controller are connected."""
        return self._core.is_ready()

    def model_stats(self, key: str) -> ModelStats:
        """Return the statistics of the model `name/version`."""
        return self._core.stats_by_model.find_stats(key)
