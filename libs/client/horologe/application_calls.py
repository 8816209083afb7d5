"""What the blocking client does with applications."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from horologe.core.feedback import check, one_of, parcels
from horologe.core.signature import Signature
from horologe_common.wire import ApplicationInfo, Declare, ModelInfo, Rollback, Withdraw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from horologe.core.call import AskOptions, Options
    from horologe.core.reply import Reply
    from horologe.handle import Handle
    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, ApplicationState


class ApplicationCalls:
    """Part of `Client`."""

    def submit(self, model: str, inputs: Any, **options: Unpack[Options]) -> Handle:
        raise NotImplementedError

    def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        raise NotImplementedError

    def ask(self, application: str, inputs: Any, **options: Unpack[AskOptions]) -> Reply:
        """What an application answers: `prediction`, `confidence`, `defaulted`, `models`, `missing`, `prediction_id`.

        `inputs` as for `predict`; of the `options` `context`, `slo_ms`, `timeout` and `outputs`. Without a deadline it
        is the application's SLO. Raises what `predict` does; `UnknownModel` for an application that is not declared.
        """
        reply: Reply = self.submit("", inputs, application=application, **options).result()
        return reply

    def feedback(
        self,
        application: str,
        prediction: Any,
        truth: Any,
        *,
        context: str = "",
        inputs: Any = None,
        timeout: float = 5.0,
    ) -> None:
        """Tell an application what turned out to be true; on return it is durable.

        `prediction`: a `Reply` or its `prediction_id`; None where the `inputs` say which one it was. With `inputs` what
        is not in the cache any more is predicted again. `truth`: a number for each row. `context`: that of the request.
        Several at once: lists of the same length. Raises `InvalidInput`, `UnknownModel`; `Refused`: try again;
        `Lost`: it is not known whether it was learned from.
        """
        signature = None if inputs is None else self._signature(application, timeout)
        for question, buffers in parcels(application, prediction, truth, context, inputs, signature):
            check(self._ask(question, timeout, buffers))

    def declare(self, application: Application, *, timeout: float = 5.0) -> ApplicationState:
        """Create an application, or replace the one of this name. Raises `InvalidInput`."""
        states = self._ask(partial(Declare, application=application), timeout)
        return one_of(states, application.name)

    def applications(self, *, timeout: float = 5.0) -> list[ApplicationState]:
        """All that are declared."""
        return list(self._ask(ApplicationInfo, timeout))

    def application(self, name: str, context: str = "", *, timeout: float = 5.0) -> ApplicationState:
        """Return an application with `statistics` of its models, weights in this `context`. Raises `UnknownModel`."""
        return one_of(self._ask(partial(ApplicationInfo, name=name, context=context), timeout), name)

    def withdraw(self, name: str, *, timeout: float = 5.0) -> None:
        """Delete an application and what it has learned. Raises `UnknownModel`."""
        self._ask(partial(Withdraw, name=name), timeout)

    def rollback(self, name: str, *, timeout: float = 5.0) -> ApplicationState:
        """Make an application what it was before it was last changed. Raises `UnknownModel`, `InvalidInput`."""
        return one_of(self._ask(partial(Rollback, name=name), timeout), name)

    def _signature(self, application: str, timeout: float) -> Signature:
        (state,) = self._ask(partial(ModelInfo, application=application), timeout)
        return Signature(state.spec)
