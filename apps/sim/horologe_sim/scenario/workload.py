"""Draws the requests of the clients by seed: open loops (Poisson, bursts, even, traces) and closed loops.

An open loop sends at given times and does not wait for answers, so it shows overload. A client of a closed loop sends
its next request after its last answer.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import s
from horologe_common.status import InvalidInput
from horologe_sim.engine.number_types import Duration, Fraction, LoadDuration, Number, Positive, Rate, Skew

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

CHUNK = 1024
"""Random numbers drawn at a time."""
OPEN = -1
"""`PlannedRequest.loop` of a request that belongs to no closed loop."""


class LoadPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One phase of load, `[[load]]`. Phases may overlap; their requests add up."""

    kind: Literal["poisson", "bursts", "even", "trace", "closed"] = "poisson"
    """bursts: Poisson arrivals with `rate`, but with `burst_rate` in the first `burst_ns` of every `every_ns`."""
    rate: Rate = 0.0
    """Requests per second."""
    burst_rate: Rate = 0.0
    every_ns: LoadDuration = s(1)
    burst_ns: Duration = s(1) // 10
    times_ns: tuple[Duration, ...] = ()
    """trace: arrival times, relative to `from_ns`."""
    clients: Positive = 1
    """closed: number of clients. Each has one open request at a time."""
    think_ns: Duration = 0
    """closed: time between an answer and the next request of a client."""
    models: tuple[str, ...] = ()
    """Names, or prefixes of names followed by `*`. Empty: all models."""
    application: str = ""
    """Application to query, instead of models."""
    contexts: Number = 0
    """Number of contexts of the application ("0", "1", ...), drawn evenly. 0: requests have no context."""
    skew: Skew = 0.0
    """The popularity of the k-th model is proportional to k^-skew. 0: all models are equally popular."""
    client: str = ""
    """Client that the requests count for, where clients share devices (`Report.clients`). Empty: the simulated one."""
    rows: Positive = 1
    slo_ns: Duration = 0
    """Budget of a request. 0: the model's SLO, or best effort if the model has none."""
    best_effort: bool = False
    """Send without a deadline, even if the model has an SLO. Only with `path = "direct"`."""
    cancel_share: Fraction = 0.0
    """Share of requests that are cancelled `cancel_ns` after sending."""
    cancel_ns: Duration = 0
    from_ns: Duration = 0
    for_ns: Duration = 0
    """Duration of the phase. 0: until the load ends."""


class PlannedRequest(NamedTuple):
    """A future request to a model or an application. `loop`: index of its closed loop, or OPEN."""

    at_ns: int
    model: str
    rows: int
    slo_ns: int
    best_effort: bool
    cancel_ns: int
    """Time from sending to cancellation. 0: the request is not cancelled."""
    loop: int = OPEN
    application: str = ""
    context: str = ""
    client: str = ""

    @property
    def name(self) -> str:
        """Return the name of the application or model."""
        return self.application or self.model


class ScenarioLoad:
    """All requests of a scenario in order of time. Times are relative to the start of the load."""

    def __init__(self, loads: Sequence[LoadPhase], models: Sequence[str], seed: int, duration_ns: int) -> None:
        self._loads = [_Phase(load, models, [seed, 3, index], duration_ns) for index, load in enumerate(loads)]
        streams = [phase.requests(phase.times(), OPEN) for phase in self._loads if phase.load.kind != "closed"]
        self._open = heapq.merge(*streams)
        self._next = next(self._open, None)
        self._closed: list[PlannedRequest] = []
        for index, phase in enumerate(self._loads):
            if phase.load.kind == "closed":
                for _ in range(phase.load.clients):
                    self._push_closed_request(index, phase.load.from_ns)

    def next_ns(self) -> int | None:
        """Return the time of the next request. None: the next request waits for an answer, or there is none."""
        heads = (self._next, self._closed[0] if self._closed else None)
        return min((request.at_ns for request in heads if request is not None), default=None)

    def pop_due(self, now_ns: int) -> Iterator[PlannedRequest]:
        """Remove and yield the requests up to `now_ns`."""
        while self._next is not None and self._next.at_ns <= now_ns:
            yield self._next
            self._next = next(self._open, None)
        while self._closed and self._closed[0].at_ns <= now_ns:
            yield heapq.heappop(self._closed)

    def schedule_next(self, now_ns: int, loop: int) -> None:
        """Schedule the next request of a closed loop after an answer."""
        if loop != OPEN:
            self._push_closed_request(loop, now_ns + self._loads[loop].load.think_ns)

    def _push_closed_request(self, loop: int, at_ns: int) -> None:
        if at_ns < self._loads[loop].end_ns:
            heapq.heappush(self._closed, next(self._loads[loop].requests(iter((at_ns,)), loop)))


class _Phase:
    """One load phase with its random numbers."""

    def __init__(self, load: LoadPhase, models: Sequence[str], seed: Sequence[int], duration_ns: int) -> None:
        self.load = load
        self.end_ns = min(duration_ns, load.from_ns + load.for_ns if load.for_ns else duration_ns)
        self._rng = np.random.default_rng(seed)
        self._models = select_models(models, load.models)
        weights = np.arange(1, len(self._models) + 1, dtype=float) ** -load.skew
        self._edges: NDArray[Any] = np.cumsum(weights / weights.sum())
        self._draws: list[int] = []

    def requests(self, times: Iterator[int], loop: int) -> Iterator[PlannedRequest]:
        load = self.load
        for at_ns in times:
            cancelled = load.cancel_share and self._rng.random() < load.cancel_share
            cancel_ns = max(1, load.cancel_ns) if cancelled else 0
            model = "" if load.application else self._model()
            context = str(self._rng.integers(load.contexts)) if load.contexts else ""
            yield PlannedRequest(
                at_ns,
                model,
                load.rows,
                load.slo_ns,
                load.best_effort,
                cancel_ns,
                loop,
                load.application,
                context,
                load.client,
            )

    def times(self) -> Iterator[int]:
        load = self.load
        match load.kind:
            case "trace":
                return (at for at in (load.from_ns + time_ns for time_ns in sorted(load.times_ns)) if at < self.end_ns)
            case "even":
                return iter(range(load.from_ns, self.end_ns, round(1e9 / load.rate))) if load.rate else iter(())
            case "bursts":
                return self._bursts()
            case _:
                return self._poisson(load.rate, load.from_ns, self.end_ns)

    def _poisson(self, rate: float, from_ns: int, end_ns: int) -> Iterator[int]:
        at_ns = from_ns
        while rate > 0:
            for time_ns in (at_ns + np.cumsum(self._rng.exponential(1e9 / rate, CHUNK))).astype(int).tolist():
                if time_ns >= end_ns:
                    return
                yield time_ns
            at_ns = time_ns

    def _bursts(self) -> Iterator[int]:
        load, at_ns = self.load, self.load.from_ns
        while at_ns < self.end_ns:
            burst_end_ns = min(at_ns + load.burst_ns, self.end_ns)
            next_ns = min(at_ns + load.every_ns, self.end_ns)
            yield from self._poisson(load.burst_rate, at_ns, burst_end_ns)
            yield from self._poisson(load.rate, burst_end_ns, next_ns)
            at_ns = next_ns

    def _model(self) -> str:
        if len(self._models) == 1:
            return self._models[0]
        if not self._draws:
            self._draws = np.searchsorted(self._edges, self._rng.random(CHUNK) * self._edges[-1]).tolist()
        return self._models[self._draws.pop()]


def select_models(models: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the models that match names and prefixes. Raises InvalidInput for a name without a match."""
    selected: dict[str, None] = {}
    for name in wanted or ("*",):
        matches = [model for model in models if model == name or (name.endswith("*") and model.startswith(name[:-1]))]
        if not matches:
            raise InvalidInput(f"load.models: got {name!r}, wanted one of {', '.join(models[:20])}")
        selected |= dict.fromkeys(matches)
    return list(selected)
