"""Calls of the client for asyncio for applications."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from horologe.core.feedback import feedback_messages, find_application, raise_first_error
from horologe.core.signature import Signature
from horologe_common.wire import ApplicationInfo, Declare, ModelInfo, Rollback, Withdraw

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from horologe.core.call import AskOptions, Options
    from horologe.core.reply import Reply
    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, ApplicationState


class AsyncApplicationCalls:
    """Part of `AsyncClient`."""

    def submit(self, model: str, inputs: Any, **options: Unpack[Options]) -> asyncio.Future[Reply]:
        raise NotImplementedError

    async def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        raise NotImplementedError

    async def ask(self, application: str, inputs: Any, **options: Unpack[AskOptions]) -> Reply:
        """Return an application's answer, with `prediction`, `confidence`, `models`, `missing`, `prediction_id`.

        `inputs` as for `predict`. `options`: `context`, `slo_ms`, `timeout` and `outputs`. Without a deadline the
        application's SLO applies. Raises what `predict` does; `UnknownModel` if the application is not declared.
        """
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
        """Send the true values of a prediction to an application. They are stored when this returns.

        `prediction`: a `Reply` or its `prediction_id`; None if `inputs` identify it. With `inputs`, a prediction that
        is not in the cache is made again. `truth`: a number for each row. `context`: that of the request. For several
        predictions at once, pass lists of the same length. Raises `InvalidInput`, `UnknownModel`; `Refused`: retry;
        `Lost`: it is not certain whether the feedback was used.
        """
        signature = None if inputs is None else await self._signature(application, timeout)
        for question, buffers in feedback_messages(application, prediction, truth, context, inputs, signature):
            raise_first_error(await self._ask(question, timeout, buffers))

    async def declare(self, application: Application, *, timeout: float = 5.0) -> ApplicationState:
        """Create an application or replace the one of this name. Raises `InvalidInput`."""
        states = await self._ask(partial(Declare, application=application), timeout)
        return find_application(states, application.name)

    async def applications(self, *, timeout: float = 5.0) -> list[ApplicationState]:
        """Return all declared applications."""
        return list(await self._ask(ApplicationInfo, timeout))

    async def application(self, name: str, context: str = "", *, timeout: float = 5.0) -> ApplicationState:
        """Return an application with `statistics` of its models, weights in this `context`. Raises `UnknownModel`."""
        return find_application(await self._ask(partial(ApplicationInfo, name=name, context=context), timeout), name)

    async def withdraw(self, name: str, *, timeout: float = 5.0) -> None:
        """Delete an application and all that it has learned. Raises `UnknownModel`."""
        await self._ask(partial(Withdraw, name=name), timeout)

    async def rollback(self, name: str, *, timeout: float = 5.0) -> ApplicationState:
        """Restore the declaration before the last change. Raises `UnknownModel`, `InvalidInput`."""
        return find_application(await self._ask(partial(Rollback, name=name), timeout), name)

    async def _signature(self, application: str, timeout: float) -> Signature:
        (state,) = await self._ask(partial(ModelInfo, application=application), timeout)
        return Signature(state.spec)
