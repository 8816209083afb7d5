"""Load of the fast world: open-loop streams drawn in chunks, and closed loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


class Stream(NamedTuple):
    """A Poisson stream whose rates change by step: `rates(step)` returns requests per second of each model."""

    rates: Rates
    step_ns: int
    slo_ns: Callable[[int], int]
    """SLO of the requests of a step."""
    group: int = 0


def poisson(streams: Sequence[Stream], duration_ns: int, seed: Sequence[int], chunk_ns: int = s(1)) -> Iterator[Chunk]:
    """Yield the requests of all streams in chunks of `chunk_ns`, which must divide every step."""
    rng = np.random.default_rng(seed)
    for begin_ns in range(0, duration_ns, chunk_ns):
        end_ns = min(begin_ns + chunk_ns, duration_ns)
        yield _sorted([_draw(rng, stream, begin_ns, end_ns) for stream in streams])


def _draw(rng: np.random.Generator, stream: Stream, begin_ns: int, end_ns: int) -> tuple[NDArray[np.int64], ...]:
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
