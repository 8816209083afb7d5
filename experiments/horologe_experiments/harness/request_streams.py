"""Poisson streams of requests whose rates change by step, drawn in chunks, and the popularity of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import s
from horologe_sim.controller_only.request_load import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Rates = Callable[[int], NDArray[np.float64]]


def popularity(count: int, skew: float) -> NDArray[np.float64]:
    """Return the shares of `count` models: the n-th gets a share in proportion to n ** -skew (Zipf)."""
    weights: NDArray[np.float64] = np.arange(1, count + 1, dtype=float) ** -skew
    return np.asarray(weights / weights.sum())


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
