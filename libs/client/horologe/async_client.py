"""The client for asyncio and uvloop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from horologe.async_application_calls import AsyncApplicationCalls
from horologe.core.session import Session
from horologe.transport.dealer import Dealer, curve_keys
from horologe.transport.loop_link import LoopLink
from horologe_common.clock import ms
from horologe_common.wire import Admit, Describe, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Unpack

    from horologe.core.call import Options
    from horologe.core.reply import Reply
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, Description, ModelState


class Request(asyncio.Future[Any]):
    """An open request; cancelling it (or the task that awaits it) makes the server forget it."""

    __slots__ = ("link", "request_id")

    def __init__(self, loop: asyncio.AbstractEventLoop, link: LoopLink) -> None:
        super().__init__(loop=loop)
        self.link = link
        self.request_id = 0

    def cancel(self, msg: Any | None = None) -> bool:
        """True unless it has ended already."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.link.session.cancel(self.request_id)
            self.link.post()
        return cancelled


class AsyncClient(AsyncApplicationCalls):
    """Predictions from a Horologe frontend, for one event loop.

    Connects by itself on first use and again whenever the frontend comes back. All requests made in one turn of
    the loop leave in one packet. Every request ends exactly once: with its answer, or with the `HorologeError`
    that says why not, `Lost` at the latest when its deadline and `grace_ms` have passed.

    `endpoint`: where the frontend binds for clients, `tcp://host:8003` or `ipc://path`. `keys`: a folder made by
    `horologe keys`, or `server_key` (the server's public key, Z85) and `client_key` (a secret key, Z85).
    At most `max_open` requests with `max_bytes` of inputs are open at a time; more are `Refused`.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:8003",
        *,
        server_key: str | bytes | None = None,
        client_key: str | bytes | None = None,
        keys: str | Path | None = None,
        grace_ms: float = 50,
        max_open: int = 10_000,
        max_bytes: int = 512 << 20,
    ) -> None:
        self._session = Session({}, ms(grace_ms), max_open, max_bytes)
        self._link = LoopLink(self._session, Dealer(endpoint, curve_keys(server_key, client_key, keys)))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def predict(self, model: str, inputs: Any, **options: Unpack[Options]) -> Any:
        """Run `model` on `inputs` and return its outputs.

        `inputs`: a dict of arrays by tensor name; or, for a model with one input, that array. The first dimension
        counts rows and is never added for you: one 28x28 image has shape (1, 28, 28). Lists and float64 arrays
        are converted to the model's dtype, other arrays where that is safe (no value can change).
        Returns an array if one array was given and the model has one output, else a dict by tensor name.
        `options`: `version`, `outputs` (names; default all), `slo_ms` (milliseconds) and `timeout` (seconds), of which
        the smaller is the deadline; without either the model's own SLO holds, or, where it has none, the request is
        best effort and answered within 30 s; `application`, on whose behalf (execution times are learned for each).

        Raises `InvalidInput` (naming field, got and wanted), `UnknownModel`, `TooLarge`, `Unauthenticated`;
        `Refused` before any work if the deadline cannot be met (`retry_after_ns`: when it could have been), `Late`
        (`reply`: what came nevertheless), `Lost`, `ModelFailed`, `ProtocolMismatch`, `Cancelled`.
        """
        reply = await self.submit(model, inputs, **options)
        return reply.value

    async def predict_full(self, model: str, inputs: Any, **options: Unpack[Options]) -> Reply:
        """Like `predict`, with the version that answered, times and batch size."""
        return await self.submit(model, inputs, **options)

    async def predict_many(
        self, model: str, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> list[Any]:
        """One request per item, all at once; what `predict` returns for each, in order.

        The first error is raised and the other requests are cancelled; or, with `return_exceptions`, errors stand
        in their places of the list.
        """
        requests = [self.submit(model, item, **options) for item in inputs]
        try:
            replies = await asyncio.gather(*requests, return_exceptions=return_exceptions)
        finally:
            for request in requests:
                request.cancel()
        return [reply if isinstance(reply, BaseException) else reply.value for reply in replies]

    def submit(self, model: str, inputs: Any, **options: Unpack[Options]) -> asyncio.Future[Reply]:
        """Start a prediction; the future of its `Reply`. Must be called on the loop. The arrays may be reused at once.

        Cheaper than a task around `predict`. Everything that goes wrong comes through the future.
        """
        request = Request(self._link.attach(), self._link)
        request.request_id = self._session.predict(time.monotonic_ns(), request, model, inputs, **options)
        self._link.post()
        return request

    async def models(self, name: str | None = None, *, timeout: float = 5.0) -> list[ModelState]:
        """The models of the repository, or every version of one. Raises `UnknownModel`."""
        return list(await self._ask(lambda request_id: ModelInfo(request_id, name or ""), timeout))

    async def admit(
        self, model: str, version: str = "", admitted: bool = True, *, timeout: float = 30.0
    ) -> list[ModelState]:
        """Load a model from the repository, or withdraw it (`admitted=False`); its state afterwards."""
        return list(await self._ask(lambda request_id: Admit(request_id, model, version, admitted), timeout))

    async def describe(self, model: str = "", *, timeout: float = 5.0) -> Description:
        """The state of the cluster; with a `model` (`name/version`) also what each share is expected to take for it."""
        description: Description = await self._ask(lambda request_id: Describe(request_id, model), timeout)
        return description

    async def close(self) -> None:
        """Close the connection; what is open ends with `Cancelled`."""
        self._session.close()
        self._link.close()

    async def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        request = Request(self._link.attach(), self._link)
        request.request_id = self._session.ask(time.monotonic_ns(), request, question, timeout, buffers)
        self._link.post()
        return await request
