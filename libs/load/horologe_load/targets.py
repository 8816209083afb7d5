"""Receivers of load: a target sends request `index` and reports its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from horologe import AsyncClient
from horologe_common.status import HorologeError, Late, Refused
from horologe_load.arrivals import poisson
from horologe_load.load_loops import closed_loop, open_loop
from horologe_load.samples import ClientOutcome, LoadSummary, Samples, no_garbage_collection, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from horologe import Reply
    from horologe.core.pending_requests import Options

OnAnswer: TypeAlias = "Callable[[int, int, int, object], None]"
"""`on_answer(index, now_ns, outcome, answer)`, called exactly once for each request that ends."""
TIMEOUT_S = 30.0
"""Timeout of requests without an SLO."""
MAX_OPEN = 100_000
"""Requests in flight of an SDK client. An overloaded server without deadlines may hold many."""


class Target(Protocol):
    """A server under load."""

    async def start(self, clients: int, on_answer: OnAnswer) -> None:
        """Open `clients` connections. `on_answer` gets the outcome of each request from then on."""

    def send(self, index: int, due_ns: int) -> None:
        """Send request `index`. Its deadline counts from `due_ns`."""


class ServerTarget(Target, Protocol):
    """A target with connections of its own."""

    @property
    def cached(self) -> int:
        """Return the answers from the server's prediction cache, as far as answers say it."""

    @property
    def held_back(self) -> int:
        """Return the requests that waited in the generator because all of its connections were in use."""

    async def stop(self) -> None:
        """Close every connection. Requests in flight stay unanswered."""


class ModelInput(NamedTuple):
    """The arguments of one request through the SDK."""

    model: str
    inputs: NDArray[Any] | Mapping[str, NDArray[Any]]
    application: str = ""
    version: str = ""


class SdkTarget:
    """Sends requests through one `AsyncClient`. `input_at(index)` returns the model and its input.

    With `from_due`, the SLO counts from the due time: a request gets what remains of it, and is UNSENT if nothing
    remains. Otherwise the SLO counts from sending. With `slo_ns` 0, requests have no deadline.
    """

    def __init__(
        self, client: AsyncClient, input_at: Callable[[int], ModelInput], slo_ns: int, from_due: bool = True
    ) -> None:
        self._client = client
        self._input_at = input_at
        self._slo_ns = slo_ns
        self._from_due = from_due
        self._on_answer: OnAnswer
        self.cached = 0
        """Answers from the server's prediction cache."""

    async def start(self, clients: int, on_answer: OnAnswer) -> None:
        """See `Target`. One client carries any number of requests in flight."""
        self._on_answer = on_answer

    def send(self, index: int, due_ns: int) -> None:
        """See `Target`."""
        model, inputs, application, version = self._input_at(index)
        options: Options = {"application": application, "version": version}
        if self._slo_ns:
            remaining_ns = self._slo_ns
            if self._from_due:
                now_ns = time.monotonic_ns()
                remaining_ns += due_ns - now_ns
                if remaining_ns <= 0:
                    self._on_answer(index, now_ns, ClientOutcome.UNSENT, None)
                    return
            options["slo_ms"] = remaining_ns / 1e6
        else:
            options["timeout"] = TIMEOUT_S
        future = self._client.submit(model, inputs, **options)
        future.add_done_callback(lambda ended: self._on_reply(index, ended))

    def _on_reply(self, index: int, future: asyncio.Future[Reply]) -> None:
        now_ns = time.monotonic_ns()
        if future.cancelled():
            return
        match future.exception():
            case None:
                reply = future.result()
                self.cached += reply.cached
                self._on_answer(index, now_ns, ClientOutcome.OK, reply)
            case Refused() as error:
                self._on_answer(index, now_ns, ClientOutcome.REFUSED, error)
            case Late() as error:
                self._on_answer(index, now_ns, ClientOutcome.LATE, error)
            case error:
                self._on_answer(index, now_ns, ClientOutcome.FAILED, error)


class SdkServerTarget:
    """Sends requests through an `AsyncClient` of its own. See `SdkTarget` for the other arguments."""

    held_back = 0

    def __init__(
        self,
        endpoint: str,
        input_at: Callable[[int], ModelInput],
        slo_ns: int,
        from_due: bool = True,
        keys: str = "",
    ) -> None:
        self._endpoint, self._keys = endpoint, keys
        self._input_at, self._slo_ns, self._from_due = input_at, slo_ns, from_due
        self._client: AsyncClient
        self._target: SdkTarget
        self.send: Callable[[int, int], None]
        """See `Target`. Set by `start`."""

    async def start(self, clients: int, on_answer: OnAnswer) -> None:
        """Connect, and wait for one answer: the handshake and the model's signature are not measured."""
        self._client = AsyncClient(self._endpoint, keys=self._keys or None, max_open=MAX_OPEN)
        self._target = SdkTarget(self._client, self._input_at, self._slo_ns, self._from_due)
        self.send = self._target.send
        await self._target.start(clients, on_answer)
        model, inputs, application, version = self._input_at(-1)
        with contextlib.suppress(HorologeError):
            await self._client.predict(model, inputs, application=application, version=version)

    @property
    def cached(self) -> int:
        return self._target.cached

    async def stop(self) -> None:
        """See `ServerTarget`."""
        await self._client.close()


class ModelLoad:
    """Offers load to one model: one-row requests made from `rows`, all distinct."""

    def __init__(self, client: AsyncClient, model: str, rows: NDArray[np.float32], slo_ms: float, seed: int) -> None:
        self._client = client
        self._model = model
        self._rows = rows
        self._slo_ms = slo_ms
        self._seed = seed

    async def offer_rate(self, rate: float, seconds: float) -> LoadSummary:
        """Send Poisson arrivals at `rate` requests per second and wait for every answer."""
        self._seed += 1
        arrivals, samples = poisson(rate, seconds, self._seed), Samples()
        target = self._target(len(arrivals), round(self._slo_ms * 1e6))
        with no_garbage_collection():
            await open_loop(target, samples, arrivals, drain_s=TIMEOUT_S)
        return summarize(samples, seconds, self._slo_ms, rate, target.cached)

    async def saturate(self, clients: int, seconds: float) -> LoadSummary:
        """Keep `clients` requests in flight, without a deadline."""
        samples = Samples()
        with no_garbage_collection():
            took_s = await closed_loop(self._target(len(self._rows), 0), samples, clients, seconds)
        return summarize(samples, took_s)

    def _target(self, count: int, slo_ns: int) -> SdkTarget:
        rows = distinct_rows(self._rows, count, self._seed)

        def input_at(index: int) -> ModelInput:
            row = index % count
            return ModelInput(self._model, rows[row : row + 1])

        return SdkTarget(self._client, input_at, slo_ns)


def distinct_rows(rows: NDArray[np.float32], count: int, seed: int) -> NDArray[np.float32]:
    """Draw `count` of the rows and add noise of at most 0.001, so that no two requests have the same input."""
    rng = np.random.default_rng(seed)
    drawn = rows[rng.integers(0, len(rows), size=count)]
    return np.ascontiguousarray(drawn + rng.uniform(0, 1e-3, size=drawn.shape).astype(np.float32))
