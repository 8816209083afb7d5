"""The door between the HTTP gateway and the frontend core of the same process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from horologe_common.wire import Admit, Answer, Cancel, Describe, Description, Models, Predict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelState
    from horologe_frontend.core.applications import Declared
    from horologe_frontend.core.catalogue import Catalogue
    from horologe_frontend.core.stats import ModelStats, Statistics


class Port(Protocol):
    """What the gateway asks of the frontend."""

    async def predict(self, predict: Predict, buffers: Sequence[Buffer]) -> tuple[Answer, Sequence[Buffer]]:
        """The one answer, whatever its status; the id of `predict` is ignored. Cancelling the task cancels it."""

    def find(self, model: str, version: str = "") -> ModelSpec:
        """The version that a request would get. Raises `UnknownModel`."""

    def models(self, model: str = "") -> Sequence[ModelState]:
        """All versions of a model, or of every model, in whatever state; none if it is unknown."""

    async def admit(self, model: str, version: str, admitted: bool) -> Models:
        """Repository load or unload; the status says how it went."""

    async def describe(self) -> Description:
        """The state of the cluster."""

    def application(self, name: str) -> tuple[Application, ModelSpec]:
        """An application and its signature. Raises `UnknownModel`, or `Refused` while it cannot be known."""

    async def ask(self, question: Any, buffers: Sequence[Buffer] = ()) -> Any:
        """The one answer to a Declare, Withdraw, Rollback, ApplicationInfo or Feedback, whose id is ignored."""

    def ready(self) -> bool:
        """Whether requests can be served: every service of the path is there."""

    def live(self) -> bool:
        """Whether this process works at all."""

    def stats(self, key: str) -> ModelStats:
        """Counts of the model `name/version`."""


class Mailroom(Protocol):
    """The part of the reactor that a port uses, on the loop's thread."""

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None: ...

    def post(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None: ...


class FrontendCore(Protocol):
    """The part of the frontend core that may be read without a message, being on the same loop."""

    address: str
    catalogue: Catalogue
    declared: Declared
    statistics: Statistics

    def ready(self) -> bool: ...


class ReactorPort:
    """The Port over a reactor that hosts the frontend core; used on the reactor's loop only."""

    def __init__(self, reactor: Mailroom, address: str, core: FrontendCore) -> None:
        self._reactor = reactor
        self._address = address
        self._core = core
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def open(self) -> None:
        """Be reachable for the frontend's answers."""
        self._reactor.attach(self._address, self.deliver)

    def __len__(self) -> int:
        return len(self._waiting)

    def deliver(self, message: Any, buffers: Sequence[Buffer]) -> None:
        """An Out of the core to this address; answers nobody waits for any more are dropped."""
        future = self._waiting.pop(message.id, None)
        if future is None or future.done():
            return
        future.set_result((message, buffers) if isinstance(message, Answer) else message)

    async def predict(self, predict: Predict, buffers: Sequence[Buffer]) -> tuple[Answer, Sequence[Buffer]]:
        answer: tuple[Answer, Sequence[Buffer]] = await self.ask(predict, buffers)
        return answer

    def find(self, model: str, version: str = "") -> ModelSpec:
        return self._core.catalogue.find(model, version)

    def models(self, model: str = "") -> Sequence[ModelState]:
        return self._core.catalogue.states(model)

    async def admit(self, model: str, version: str, admitted: bool) -> Models:
        answer = await self.ask(Admit(0, model, version, admitted))
        assert isinstance(answer, Models)
        return answer

    async def describe(self) -> Description:
        answer = await self.ask(Describe(0))
        assert isinstance(answer, Description)
        return answer

    def application(self, name: str) -> tuple[Application, ModelSpec]:
        return self._core.declared.find(name)

    async def ask(self, question: Any, buffers: Sequence[Buffer] = ()) -> Any:
        """The answer with the same id. A cancelled request is withdrawn at the core too."""
        message = msgspec.structs.replace(question, id=self._next_id())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[message.id] = future
        self._reactor.post(self._address, self._core.address, message, buffers)
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(message.id, None) and isinstance(message, Predict):
                self._reactor.post(self._address, self._core.address, Cancel((message.id,)))
            raise

    def _next_id(self) -> int:
        """Ids are positive: 0 marks announcements."""
        self._last_id += 1
        return self._last_id

    def ready(self) -> bool:
        return self._core.ready()

    def live(self) -> bool:
        return True

    def stats(self, key: str) -> ModelStats:
        return self._core.statistics.of(key)
