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


class RequestFuture(asyncio.Future[Any]):
    """A pending request. To cancel it, or the task that awaits it, cancels it at the server."""

    __slots__ = ("link", "request_id")

    def __init__(self, loop: asyncio.AbstractEventLoop, link: LoopLink) -> None:
        super().__init__(loop=loop)
        self.link = link
        self.request_id = 0

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request. Return False if it has ended."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.link.session.cancel(self.request_id)
            self.link.post()
        return cancelled


class AsyncClient(AsyncApplicationCalls):
    """Predictions from a Horologe frontend, for one event loop.

    Connects on first use, and again when the frontend returns. All requests of one turn of the loop are sent in one
    packet. Every request ends exactly once, with its answer or a `HorologeError`: with `Lost` once its deadline and
    `grace_ms` have passed.

    `endpoint`: the frontend's endpoint for clients, `tcp://host:8003` or `ipc://path`. `keys`: a folder written by
    `horologe keys`, or `server_key` (the server's public key, Z85) and `client_key` (a secret key, Z85).
    At most `max_open` requests with `max_bytes` of inputs are pending at a time; others are `Refused`.
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

        `inputs`: a dict of arrays by tensor name, or the array of the only input. The first dimension counts rows: one
        28x28 image has shape (1, 28, 28). Lists and float64 arrays are converted to the model's dtype, other arrays
        only if no value can change. Returns an array if one array was passed and the model has one output, else a dict
        by tensor name.

        `options`: `version`, `outputs` (names, default all), `application`, `slo_ms` (milliseconds) and `timeout`
        (seconds). The smaller of the last two is the deadline. Without either, the SLO of the model applies. If it has
        none, the request is best effort and answered within 30 s.

        Raises `InvalidInput` (with field, value and expectation), `UnknownModel`, `TooLarge`, `Unauthenticated`;
        `Refused` before any work if the deadline cannot be met (`retry_after_ns`: how much later it could be), `Late`
        (`reply`: the late answer), `Lost`, `ModelFailed`, `ProtocolMismatch`, `Cancelled`.
        """
        reply = await self.submit(model, inputs, **options)
        return reply.value

    async def predict_full(self, model: str, inputs: Any, **options: Unpack[Options]) -> Reply:
        """Run `predict` and return the whole `Reply`: outputs, version, times and batch size."""
        return await self.submit(model, inputs, **options)

    async def predict_many(
        self, model: str, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> list[Any]:
        """Send one request per item at once. Return the results in order.

        Raises the first error and cancels the other requests. With `return_exceptions`, errors are items of the list.
        """
        requests = [self.submit(model, item, **options) for item in inputs]
        try:
            replies = await asyncio.gather(*requests, return_exceptions=return_exceptions)
        finally:
            for request in requests:
                request.cancel()
        return [reply if isinstance(reply, BaseException) else reply.value for reply in replies]

    def submit(self, model: str, inputs: Any, **options: Unpack[Options]) -> asyncio.Future[Reply]:
        """Start a prediction and return the future of its `Reply`. The arrays may be reused at once.

        Call it on the loop. It is faster than a task around `predict`. All errors are raised by the future.
        """
        request = RequestFuture(self._link.attach(), self._link)
        request.request_id = self._session.predict(time.monotonic_ns(), request, model, inputs, **options)
        self._link.post()
        return request

    async def models(self, name: str | None = None, *, timeout: float = 5.0) -> list[ModelState]:
        """Return the models of the repository, or all versions of one. Raises `UnknownModel`."""
        return list(await self._ask(lambda request_id: ModelInfo(request_id, name or ""), timeout))

    async def admit(
        self, model: str, version: str = "", admitted: bool = True, *, timeout: float = 30.0
    ) -> list[ModelState]:
        """Load a model from the repository, or unload it (`admitted=False`). Return its new state."""
        return list(await self._ask(lambda request_id: Admit(request_id, model, version, admitted), timeout))

    async def describe(self, model: str = "", *, timeout: float = 5.0) -> Description:
        """Return the state of the cluster; with a `model` (`name/version`) also its expected times on each share."""
        description: Description = await self._ask(lambda request_id: Describe(request_id, model), timeout)
        return description

    async def close(self) -> None:
        """Close the connection. Pending requests end with `Cancelled`."""
        self._session.close()
        self._link.close()

    async def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        request = RequestFuture(self._link.attach(), self._link)
        request.request_id = self._session.query(time.monotonic_ns(), request, question, timeout, buffers)
        self._link.post()
        return await request
