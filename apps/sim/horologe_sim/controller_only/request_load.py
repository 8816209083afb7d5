"""Requests for the controller alone: open-loop streams drawn in chunks, and closed loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import NEVER_NS, s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Rates = Callable[[int], NDArray[np.float64]]

BEST_EFFORT = 0


class DynamicRequest(NamedTuple):
    """A request of a dynamic model. Only the device knows `solo_ns`, its execution time alone."""

    solo_ns: int
    application: str = ""
    length: int = 0
    rows: int = 1


STATIC = DynamicRequest(0)


class Chunk(NamedTuple):
    """Requests in order of time, relative to the start of the load. `models`: indices in the list of models.

    `requests` is empty if all models are static.
    """

    times_ns: Sequence[int]
    models: Sequence[int]
    slos_ns: Sequence[int]
    groups: Sequence[int]
    requests: Sequence[DynamicRequest] = ()


class OpenLoop:
    """The requests of chunks, in the order in which they arrive at the controller."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self.next_ns = NEVER_NS
        """When the next request arrives. `NEVER_NS` before `start` and after the last one."""
        self._chunks = iter(chunks)
        self._chunk = Chunk((), (), (), ())
        self._place = self._offset_ns = 0

    def start(self, offset_ns: int) -> None:
        """Let a request of time t arrive at `offset_ns` + t."""
        self._offset_ns = offset_ns
        self._next_chunk()

    def _next_chunk(self) -> None:
        for chunk in self._chunks:
            if chunk.times_ns:
                self._chunk, self._place = chunk, 0
                self.next_ns = self._offset_ns + chunk.times_ns[0]
                return
        self.next_ns = NEVER_NS

    def pop_arrived(self, now_ns: int) -> Iterator[tuple[int, int, int, int, DynamicRequest]]:
        """Yield (time, model, SLO, group, traits) of each request that has arrived."""
        while self.next_ns <= now_ns:
            times_ns, models, slos_ns, groups, requests = self._chunk
            place, end = self._place, len(times_ns)
            while place < end and (sent_ns := times_ns[place]) + self._offset_ns <= now_ns:
                yield sent_ns, models[place], slos_ns[place], groups[place], requests[place] if requests else STATIC
                place += 1
            if place == end:
                self._next_chunk()
            else:
                self._place, self.next_ns = place, times_ns[place] + self._offset_ns


class Loop(NamedTuple):
    """A closed-loop client: sends a request after each answer, or `resend_ns` after a refusal."""

    model: int
    slo_ns: int
    group: int = 0
    resend_ns: int = 0


class Open(msgspec.Struct, frozen=True, gc=False):
    """A request in flight. `slo_ns` 0: best effort. `loop`: index of its closed loop, or -1."""

    sent_ns: int
    slo_ns: int
    group: int
    loop: int


class PoissonStream(NamedTuple):
    """A Poisson stream whose rates change by step: `rates(step)` returns requests per second of each model."""

    rates: Rates
    step_ns: int
    slo_ns: Callable[[int], int]
    """SLO of the requests of a step."""
    group: int = 0


def poisson(
    streams: Sequence[PoissonStream], duration_ns: int, seed: Sequence[int], chunk_ns: int = s(1)
) -> Iterator[Chunk]:
    """Yield the requests of all streams in chunks of `chunk_ns`, which must divide every step."""
    rng = np.random.default_rng(seed)
    for begin_ns in range(0, duration_ns, chunk_ns):
        end_ns = min(begin_ns + chunk_ns, duration_ns)
        yield _sorted([_draw(rng, stream, begin_ns, end_ns) for stream in streams])


def _draw(rng: np.random.Generator, stream: PoissonStream, begin_ns: int, end_ns: int) -> tuple[NDArray[np.int64], ...]:
    step = begin_ns // stream.step_ns
    edges = np.cumsum(stream.rates(step))
    count = rng.poisson(edges[-1] * (end_ns - begin_ns) / 1e9) if edges.size else 0
    times = rng.integers(begin_ns, end_ns, count)
    models = np.searchsorted(edges, rng.random(count) * edges[-1], side="right") if count else times
    return times, models, np.full(count, stream.slo_ns(step)), np.full(count, stream.group)


def _sorted(parts: Sequence[tuple[NDArray[np.int64], ...]]) -> Chunk:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Chunk(*(column[order].tolist() for column in columns))
