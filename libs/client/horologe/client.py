"""The blocking client."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from horologe.core.client_feedback import feedback_messages, find_application, raise_first_error
from horologe.core.encoding import Signature
from horologe.core.pending_requests import GRACE_MS, MANY, PredictOptions
from horologe.core.retry_budget import RETRY_SHARE, RetryBudget
from horologe.core.session import Session
from horologe.item_streams import ItemStream
from horologe.transport.blocking_link import Handle, ThreadLinks
from horologe.transport.dealer import Dealer, curve_keys, parse_endpoints
from horologe_common import wire
from horologe_common.clock import ms
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Unpack

    from horologe.core.encoding import Signatures
    from horologe.core.pending_requests import AskOptions, Options, StreamOptions
    from horologe.core.reply import Reply
    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, ApplicationState, Description, ModelState, PipelineState


class Client:
    """Predictions from a Horologe frontend, in the calling thread.

    Threads may share a client. Each thread gets its own connection on first use and reads it while it waits, so no
    thread waits for another. So does a forked process; requests of its parent are `Cancelled` in it. A connection is
    restored when the frontend returns. Every request ends exactly once, with its answer or a `HorologeError`: with
    `Lost` once its deadline and `grace_ms` have passed.

    `endpoint`: the frontend's endpoint for clients, `tcp://host:8003` or `ipc://path`. Of several endpoints, separated
    by commas, the client uses one at a time, and the next one when the frontend stops or is lost. `keys`: a folder
    written by `horologe keys`, or `server_key` (the server's public key, Z85) and `client_key` (a secret key, Z85).
    At most `max_open` requests with `max_bytes` of inputs are pending per thread; others are `Refused`. `retry_budget`:
    share of the requests of a thread that may be sent once more, if they are lost and `idempotent`; 0 switches it off.
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
        RetryBudget(retry_budget)  # raises `InvalidInput` here, and not at the first request
        signatures: Signatures = {}
        curve = curve_keys(server_key, client_key, keys)
        self._many = max(1, min(MANY, max_open - 1))  # a query for the signature is pending as well
        self._links = ThreadLinks(
            partial(Session, signatures, ms(grace_ms), max_open, max_bytes, retry_budget),
            lambda: Dealer(parse_endpoints(endpoint), curve),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def predict(self, model: str, inputs: Any, **options: Unpack[Options]) -> Any:
        """Run `model` on `inputs` and return its outputs.

        `inputs`: a dict of arrays by tensor name, or the array of the only input. The first dimension counts rows: one
        28x28 image has shape (1, 28, 28). Lists and float64 arrays are converted to the model's dtype, other arrays
        only if no value can change. Returns an array if one array was passed and the model has one output, else a dict
        by tensor name.

        A tensor of torch, an image of PIL, or a list of either counts as an array.

        `options`: `version`, `outputs` (names, default all), `application`, `slo_ms` (milliseconds) and `timeout`
        (seconds). The smaller of the last two is the deadline. Without either, the SLO of the model applies. If it has
        none, the request is best effort and answered within 30 s. `idempotent`: the request may run twice, so it is
        sent again within its deadline if it is lost.

        Raises `InvalidInput` (with field, value and expectation), `UnknownModel`, `TooLarge`, `Unauthenticated`;
        `Refused` before any work if the deadline cannot be met (`retry_after_ns`: how much later it could be), `Late`
        (`reply`: the late answer), `Lost`, `ModelFailed`, `ProtocolMismatch`, `Cancelled`.
        """
        handle = self.submit(model, inputs, **options)
        return handle.result().value

    def predict_full(self, model: str, inputs: Any, **options: Unpack[Options]) -> Reply:
        """Run `predict` and return the whole `Reply`: outputs, version, times and batch size."""
        handle = self.submit(model, inputs, **options)
        reply: Reply = handle.result()
        return reply

    def predict_many(
        self, model: str, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> list[Any]:
        """Send one request per item. Return the results in order.

        At most 1,000 requests are pending at the same time, or fewer than `max_open`, so `inputs` may be a generator of
        any length. Raises the first error and cancels the other requests. With `return_exceptions`, errors are items of
        the list.
        """
        handles: list[Handle] = []
        values: list[Any] = []
        try:
            for item in inputs:
                if len(handles) >= self._many and not handles[-self._many].wait() and not return_exceptions:
                    break
                handles.append(self.submit(model, item, **options))
            for handle in handles:
                try:
                    values.append(handle.result().value)
                except HorologeError as error:
                    if not return_exceptions:
                        raise
                    values.append(error)
        finally:
            for handle in handles[len(values) :]:
                handle.cancel()
        return values

    def submit(self, model: str, inputs: Any, **options: Unpack[Options]) -> Handle:
        """Start a prediction and return its `Handle`. The arrays may be reused at once.

        All errors are raised by the handle's `result`, which also reads the answer.
        """
        link = self._links.current()
        handle = Handle(link)
        with link.lock:
            now_ns = time.monotonic_ns()
            handle.request_id = link.session.predict(now_ns, handle, model, inputs, PredictOptions(**options))
            link.post(now_ns)
        return handle

    def stream(self, model: str, inputs: Any, **options: Unpack[StreamOptions]) -> ItemStream:
        """Start a stream, and return an iterator over its items, each as `predict` returns outputs.

        `options`: those of `predict`, where `slo_ms` and `timeout` are the deadline of the whole stream;
        `first_item_ms` and `gap_ms`, the time until the first item and between two. The server makes a few items ahead
        of the caller, and waits until the caller takes them. A model that does not stream gives one item.

        The iterator raises what `predict` does, after the items that came before: `Late` if an item is not there in
        time, `Lost` if its worker dies. `close()`, or the end of a `with` block, cancels the stream.
        """
        link = self._links.current()
        items = ItemStream(link)
        with link.lock:
            now_ns = time.monotonic_ns()
            items.request_id = link.session.stream(now_ns, items, model, inputs, PredictOptions(**options))
            link.post(now_ns)
        return items

    def models(self, name: str | None = None, *, timeout: float = 5.0) -> list[ModelState]:
        """Return the models of the repository, or all versions of one. Raises `UnknownModel`."""
        return list(self._ask(partial(wire.ModelInfo, model=name or ""), timeout))

    def admit(self, model: str, version: str = "", admitted: bool = True, *, timeout: float = 30.0) -> list[ModelState]:
        """Load a model from the repository, or unload it (`admitted=False`). Return its new state.

        Raise `Lost` after `timeout` seconds. The model then continues to load.
        """
        return list(self._ask(partial(wire.Admit, model=model, version=version, admitted=admitted), timeout))

    def rollout(
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
        return list(self._ask(call, timeout))

    def describe(self, model: str = "", *, timeout: float = 5.0) -> Description:
        """Return the state of the cluster; with a `model` (`name/version`) also its expected times on each share."""
        description: Description = self._ask(partial(wire.Describe, model=model), timeout)
        return description

    def pipeline(self, name: str, *, timeout: float = 5.0) -> PipelineState:
        """Return the structure and the measurements of a pipeline. Raises `UnknownModel`."""
        state: PipelineState = self._ask(partial(wire.PipelineInfo, name=name), timeout)
        return state

    def tune(
        self,
        command: Literal["apply", "withdraw", "status", "arrivals"],
        document: bytes = b"",
        *,
        dry_run: bool = False,
        timeout: float = 5.0,
    ) -> dict[str, Any]:
        """Apply a plan, withdraw that of a pipeline, or return the status of the tuner (`TunerStatus`, as a dict).

        arrivals: return the recent arrivals of a pipeline with a plan instead (`ArrivalCounts`, as a dict).

        `document`: the plan in JSON, or the pipeline's name. `dry_run`: only report the decisions of this plan. Raises
        `InvalidInput`, `UnknownModel`, `Forbidden`; `Lost` if no tuner is connected.
        """
        call = partial(wire.Tune, command=command, document=document, dry_run=dry_run)
        status: dict[str, Any] = self._ask(call, timeout)
        return status

    def ask(self, application: str, inputs: Any, **options: Unpack[AskOptions]) -> Reply:
        """Return an application's answer, with `prediction`, `confidence`, `models`, `missing`, `prediction_id`.

        `inputs` as for `predict`. `options`: `context`, `slo_ms`, `timeout` and `outputs`. Without a deadline the
        application's SLO applies. Raises what `predict` does; `UnknownModel` if the application is not declared.
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
        """Send the true values of a prediction to an application. They are stored when this returns.

        `prediction`: a `Reply` or its `prediction_id`; None if `inputs` identify it. With `inputs`, a prediction that
        is not in the cache is made again. `truth`: a number for each row. `context`: that of the request. For several
        predictions at once, pass lists of the same length. Raises `InvalidInput`, `UnknownModel`; `Refused`: retry;
        `Lost`: it is not certain whether the feedback was used.
        """
        signature = None if inputs is None else self._signature(application, timeout)
        for question, buffers in feedback_messages(application, prediction, truth, context, inputs, signature):
            raise_first_error(self._ask(question, timeout, buffers))

    def declare(self, application: Application, *, timeout: float = 5.0) -> ApplicationState:
        """Create an application or replace the one of this name. Raises `InvalidInput`."""
        states = self._ask(partial(wire.Declare, application=application), timeout)
        return find_application(states, application.name)

    def applications(self, *, timeout: float = 5.0) -> list[ApplicationState]:
        """Return all declared applications."""
        return list(self._ask(wire.ApplicationInfo, timeout))

    def application(self, name: str, context: str = "", *, timeout: float = 5.0) -> ApplicationState:
        """Return an application with `statistics` of its models, weights in this `context`. Raises `UnknownModel`."""
        return find_application(self._ask(partial(wire.ApplicationInfo, name=name, context=context), timeout), name)

    def withdraw(self, name: str, *, timeout: float = 5.0) -> None:
        """Delete an application and all that it has learned. Raises `UnknownModel`."""
        self._ask(partial(wire.Withdraw, name=name), timeout)

    def rollback(self, name: str, *, timeout: float = 5.0) -> ApplicationState:
        """Restore the declaration before the last change. Raises `UnknownModel`, `InvalidInput`."""
        return find_application(self._ask(partial(wire.Rollback, name=name), timeout), name)

    def close(self) -> None:
        """Close the connections of all threads. Pending requests end with `Cancelled`."""
        self._links.close()

    def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        link = self._links.current()
        handle = Handle(link)
        with link.lock:
            now_ns = time.monotonic_ns()
            handle.request_id = link.session.query(now_ns, handle, question, timeout, buffers)
            link.post(now_ns)
        return handle.result()

    def _signature(self, application: str, timeout: float) -> Signature:
        (state,) = self._ask(partial(wire.ModelInfo, application=application), timeout)
        return Signature(state.spec)
