"""The blocking client."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import zmq

from horologe.application_calls import ApplicationCalls
from horologe.core.session import Session
from horologe.handle import Handle
from horologe.transport.blocking_link import BlockingLink
from horologe.transport.dealer import Dealer, curve_keys
from horologe_common.clock import ms
from horologe_common.status import Cancelled, HorologeError
from horologe_common.wire import Admit, Describe, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Unpack

    from horologe.core.call import Options
    from horologe.core.reply import Reply
    from horologe.core.signature_cache import Signatures
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, Description, ModelState


class Client(ApplicationCalls):
    """Predictions from a Horologe frontend, in the calling thread.

    Any number of threads may share a client: each gets a connection of its own, on first use, which it reads
    itself while it waits; no thread waits for another. Connections are made again whenever the frontend comes
    back. Every request ends exactly once: with its answer, or with the `HorologeError` that says why not, `Lost` at
    the latest when its deadline and `grace_ms` have passed.

    `endpoint`: where the frontend binds for clients, `tcp://host:8003` or `ipc://path`. `keys`: a folder made by
    `horologe keys`, or `server_key` (the server's public key, Z85) and `client_key` (a secret key, Z85).
    At most `max_open` requests with `max_bytes` of inputs are open per thread; more are `Refused`.
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
        self._endpoint = endpoint
        self._keys = curve_keys(server_key, client_key, keys)
        self._limits = (ms(grace_ms), max_open, max_bytes)
        self._signatures: Signatures = {}
        self._mine = threading.local()
        self._links: weakref.WeakSet[BlockingLink] = weakref.WeakSet()
        self._opening = threading.Lock()
        self._context: zmq.Context[Any] | None = None
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def predict(self, model: str, inputs: Any, **options: Unpack[Options]) -> Any:
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
        handle = self.submit(model, inputs, **options)
        return handle.result().value

    def predict_full(self, model: str, inputs: Any, **options: Unpack[Options]) -> Reply:
        """Like `predict`, with the version that answered, times and batch size."""
        handle = self.submit(model, inputs, **options)
        reply: Reply = handle.result()
        return reply

    def predict_many(
        self, model: str, inputs: Iterable[Any], *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> list[Any]:
        """One request per item, all at once; what `predict` returns for each, in order.

        The first error is raised and the other requests are cancelled; or, with `return_exceptions`, errors stand
        in their places of the list.
        """
        handles = [self.submit(model, item, **options) for item in inputs]
        values: list[Any] = []
        try:
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
        """Start a prediction; its `Handle`. The arrays may be reused at once.

        Everything that goes wrong comes through the handle. Its `result` is also what reads its answer.
        """
        link = self._link()
        handle = Handle(link)
        with link.lock:
            now_ns = time.monotonic_ns()
            handle.request_id = link.session.predict(now_ns, handle, model, inputs, **options)
            link.post(now_ns)
        return handle

    def models(self, name: str | None = None, *, timeout: float = 5.0) -> list[ModelState]:
        """The models of the repository, or every version of one. Raises `UnknownModel`."""
        return list(self._ask(lambda request_id: ModelInfo(request_id, name or ""), timeout))

    def admit(self, model: str, version: str = "", admitted: bool = True, *, timeout: float = 30.0) -> list[ModelState]:
        """Load a model from the repository, or withdraw it (`admitted=False`); its state afterwards."""
        return list(self._ask(lambda request_id: Admit(request_id, model, version, admitted), timeout))

    def describe(self, model: str = "", *, timeout: float = 5.0) -> Description:
        """The state of the cluster; with a `model` (`name/version`) also what each share is expected to take for it."""
        description: Description = self._ask(lambda request_id: Describe(request_id, model), timeout)
        return description

    def close(self) -> None:
        """Close the connections of all threads; what is open ends with `Cancelled`."""
        with self._opening:
            self._closed = True
            links, context, self._context = list(self._links), self._context, None
        for link in links:
            link.close()
        if context is not None:
            context.term()

    def _ask(self, question: Callable[[int], AnyMessage], timeout: float, buffers: Sequence[Buffer] = ()) -> Any:
        link = self._link()
        handle = Handle(link)
        with link.lock:
            now_ns = time.monotonic_ns()
            handle.request_id = link.session.ask(now_ns, handle, question, timeout, buffers)
            link.post(now_ns)
        return handle.result()

    def _link(self) -> BlockingLink:
        if self._closed:
            raise Cancelled("the client is closed")
        link: BlockingLink | None = getattr(self._mine, "link", None)
        if link is None:
            link = self._mine.link = self._connect()
        return link

    def _connect(self) -> BlockingLink:
        with self._opening:
            if self._closed:
                raise Cancelled("the client is closed")
            if self._context is None:
                self._context = zmq.Context()
            link = BlockingLink(
                Session(self._signatures, *self._limits), Dealer(self._endpoint, self._keys), self._context
            )
            link.open()
            self._links.add(link)
            return link
