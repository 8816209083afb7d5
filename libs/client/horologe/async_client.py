"""The client for asyncio and uvloop."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from horologe.core.client_feedback import feedback_messages, find_application, raise_first_error
from horologe.core.encoding import Signature
from horologe.core.pending_requests import GRACE_MS, MANY, PredictOptions
from horologe.core.retry_budget import RETRY_SHARE
from horologe.core.session import Session
from horologe.item_streams import AsyncItemStream
from horologe.transport.dealer import Dealer, curve_keys, parse_endpoints
from horologe.transport.loop_link import LoopLink
from horologe_common import wire
from horologe_common.clock import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Unpack

    from horologe.core.pending_requests import AskOptions, Options, StreamOptions
    from horologe.core.reply import Reply
    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, ApplicationState, Description, ModelState, PipelineState


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


class AsyncClient:
    """Predictions from a Horologe frontend, for one event loop.

    Connects on first use, and again when the frontend returns. All requests of one turn of the loop are sent in one
    packet. Every request ends exactly once, with its answer or a `HorologeError`: with `Lost` once its deadline and
    `grace_ms` have passed.

    The arguments are those of `Client`, and `max_open` and `max_bytes` bound the requests of all tasks together.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:8003",
        *,
        server_key: str | bytes | None = None,
        client_key: str | bytes | None = None,
        keys: str | Path | None = None,
        grace_ms: float = GRACE_MS,
        max_open: int = 10_000,
        max_bytes: int = 512 << 20,
        retry_budget: float = RETRY_SHARE,
    ) -> None:
        self._many = max(1, min(MANY, max_open - 1))  # a query for the signature is pending as well
        self._session = Session({}, ms(grace_ms), max_open, max_bytes, retry_budget)
        dealer = Dealer(parse_endpoints(endpoint), curve_keys(server_key, client_key, keys))
        self._link = LoopLink(self._session, dealer)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def predict(self, model: str, inputs: Any, **options: Unpack[Options]) -> Any:
        """Run `model` on `inputs` and return its outputs. See `Client.predict` for arguments and errors."""
        reply = await self.submit(model, inputs, **options)
        return reply.value

    async def predict_full(self, model: str, inputs: Any, **options: Unpack[Options]) -> Reply:
        """Run `predict` and return the whole `Reply`: outputs, version, times and batch size."""
        return await self.submit(model, inputs, **options)

    async def predict_many(
        self, model: str, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> list[Any]:
        """Send one request per item. Return the results in order. See `Client.predict_many`."""
        requests: list[asyncio.Future[Reply]] = []
        try:
            for item in inputs:
                if len(requests) >= self._many:
                    oldest = requests[-self._many]
                    await asyncio.wait([oldest])
                    if oldest.exception() and not return_exceptions:
                        break
                requests.append(self.submit(model, item, **options))
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
        now_ns = time.monotonic_ns()
        request.request_id = self._session.predict(now_ns, request, model, inputs, PredictOptions(**options))
        self._link.post()
        return request

    def stream(self, model: str, inputs: Any, **options: Unpack[StreamOptions]) -> AsyncItemStream:
        """Start a stream, and return an asynchronous iterator over its items. See `Client.stream`."""
        self._link.attach()
        items, now_ns = AsyncItemStream(self._link), time.monotonic_ns()
        items.request_id = self._session.stream(now_ns, items, model, inputs, PredictOptions(**options))
        self._link.post()
        return items

    async def models(self, name: str | None = None, *, timeout: float = 5.0) -> list[ModelState]:
        """Return the models of the repository, or all versions of one. Raises `UnknownModel`."""
        return list(await self._ask(partial(wire.ModelInfo, model=name or ""), timeout))

    async def admit(
        self, model: str, version: str = "", admitted: bool = True, *, timeout: float = 30.0
    ) -> list[ModelState]:
        """Load a model from the repository, or unload it (`admitted=False`). Return its new state.

        Raise `Lost` after `timeout` seconds. The model then continues to load.
        """
        return list(await self._ask(partial(wire.Admit, model=model, version=version, admitted=admitted), timeout))

    async def rollout(
        self,
        model: str,
        command: Literal["promote", "rollback", "canary"],
        version: str = "",
        weight: float = 0.0,
        *,
        timeout: float = 60.0,
    ) -> list[ModelState]:
        """Change which version answers requests without a version. Return the states of all versions.

        A version that is not READY is loaded before. When this returns, no request gets the answer of a version that
        lost its requests, and that version is unloaded. promote: to `version`; empty: to the newest, and to newer ones
        when they are ready. rollback: end the canary, else return to the version before. canary: give a `version` the
        part `weight` of the requests. Raise `InvalidInput`, `UnknownModel`, `ModelFailed` if the version cannot be
        served; `Lost` after `timeout` seconds, when the change may still come.
        """
        call = partial(wire.Admit, model=model, version=version, admitted=True, rollout=command, weight=float(weight))
        return list(await self._ask(call, timeout))

    async def describe(self, model: str = "", *, timeout: float = 5.0) -> Description:
        """Return the state of the cluster; with a `model` (`name/version`) also its expected times on each share."""
        description: Description = await self._ask(partial(wire.Describe, model=model), timeout)
        return description

    async def pipeline(self, name: str, *, timeout: float = 5.0) -> PipelineState:
        """Return the structure and the measurements of a pipeline. Raises `UnknownModel`."""
        state: PipelineState = await self._ask(partial(wire.PipelineInfo, name=name), timeout)
        return state

    async def tune(
        self,
        command: Literal["apply", "withdraw", "status", "arrivals"],
        document: bytes = b"",
        *,
        dry_run: bool = False,
        timeout: float = 5.0,
    ) -> dict[str, Any]:
        """Apply or withdraw a plan, or return the status of the tuner. See `Client.tune`."""
        call = partial(wire.Tune, command=command, document=document, dry_run=dry_run)
        status: dict[str, Any] = await self._ask(call, timeout)
        return status

    async def ask(self, application: str, inputs: Any, **options: Unpack[AskOptions]) -> Reply:
        """Return an application's answer. See `Client.ask` for arguments and errors."""
        return await self.submit("", inputs, application=application, **options)

    async def feedback(
        self,
        application: str,
        prediction: Any,
        truth: Any,
        *,
        context: str = "",
        inputs: Any = None,
        timeout: float = 5.0,
    ) -> None:
        """Send the true values of a prediction to an application. See `Client.feedback` for arguments and errors."""
        signature = None if inputs is None else await self._signature(application, timeout)
        for question, buffers in feedback_messages(application, prediction, truth, context, inputs, signature):
            raise_first_error(await self._ask(question, timeout, buffers))

    async def declare(self, application: Application, *, timeout: float = 5.0) -> ApplicationState:
        """Create an application or replace the one of this name. Raises `InvalidInput`."""
        states = await self._ask(partial(wire.Declare, application=application), timeout)
        return find_application(states, application.name)

    async def applications(self, *, timeout: float = 5.0) -> list[ApplicationState]:
        """Return all declared applications."""
        return list(await self._ask(wire.ApplicationInfo, timeout))

    async def application(self, name: str, context: str = "", *, timeout: float = 5.0) -> ApplicationState:
        """Return an application with `statistics` of its models, weights in this `context`. Raises `UnknownModel`."""
        states = await self._ask(partial(wire.ApplicationInfo, name=name, context=context), timeout)
        return find_application(states, name)

    async def withdraw(self, name: str, *, timeout: float = 5.0) -> None:
        """Delete an application and all that it has learned. Raises `UnknownModel`."""
        await self._ask(partial(wire.Withdraw, name=name), timeout)

    async def rollback(self, name: str, *, timeout: float = 5.0) -> ApplicationState:
        """Restore the declaration before the last change. Raises `UnknownModel`, `InvalidInput`."""
        return find_application(await self._ask(partial(wire.Rollback, name=name), timeout), name)

    async def close(self) -> None:
        """Close the connection. Pending requests end with `Cancelled`."""
        self._session.close()
        self._link.close()

    async def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        request = RequestFuture(self._link.attach(), self._link)
        request.request_id = self._session.query(time.monotonic_ns(), request, question, timeout, buffers)
        self._link.post()
        return await request

    async def _signature(self, application: str, timeout: float) -> Signature:
        (state,) = await self._ask(partial(wire.ModelInfo, application=application), timeout)
        return Signature(state.spec)
