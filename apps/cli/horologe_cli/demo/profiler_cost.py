"""Compares the system with the same system without a profiler, in turn, after both have had traffic.

The profiler and what it has learned must not slow down models whose execution time does not depend on the input.
"""

from __future__ import annotations

import statistics
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_load.mixed_traffic import dynamic_models
from horologe_load.model_inputs import random_inputs
from horologe_load.targets import ModelLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe import AsyncClient
    from horologe_common.models import ModelSpec

CLIENTS = 64
ROUNDS = 9
ROUND_S = 0.25
PAGE_BYTES = 64 << 20
WARM_UP_S = 0.5
TRIES = 3
"""Another program may occupy the machine for a moment, so a share below `MIN_SHARE` is measured twice more."""
MIN_SHARE = 0.95
"""Least throughput, of that without a profiler."""
ROWS = 256


class ProfilerCost(msgspec.Struct):
    """Throughput of a model with 64 requests in flight, in requests per second: medians of `ROUNDS`."""

    model: str
    rate: float
    rate_without: float
    share: float
    """Median of the rounds' ratios."""


async def compare_rates(
    client: AsyncClient,
    without: AsyncClient,
    specs: Sequence[ModelSpec],
    rng: np.random.Generator,
    on_model: Callable[[str], None],
) -> list[ProfilerCost]:
    """Measure each model on the system of `client`, and `without` a profiler, in turn."""
    costs = []
    for spec in specs:
        on_model(spec.name)
        loads = []
        for side in (client, without):
            rows = [next(iter(random_inputs(spec, rng).values())) for _ in range(ROWS)]
            loads.append(ModelLoad(side, spec.name, np.concatenate(rows), 0, 1))
            await loads[-1].saturate(CLIENTS, WARM_UP_S)
        for _ in range(TRIES):
            cost = await _compare(spec.name, loads)
            if cost.share >= MIN_SHARE:
                break
        costs.append(cost)
    return costs


async def _compare(model: str, loads: Sequence[ModelLoad]) -> ProfilerCost:
    """Measure both systems in turn."""
    rounds = [[(await load.saturate(CLIENTS, ROUND_S)).throughput for load in loads] for _ in range(ROUNDS)]
    own, beside = (statistics.median(column) for column in zip(*rounds, strict=True))
    share = statistics.median(rate / yard if yard else 0.0 for rate, yard in rounds)
    return ProfilerCost(model, own, beside, share)


def read_dynamic(urls: Iterable[str]) -> list[str]:
    """Return the dynamic models, `name/version`, from the metrics pages `urls`."""
    pages = []
    for url in urls:
        with suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:
            pages.append(response.read(PAGE_BYTES).decode(errors="replace"))
    return sorted(key for key, dynamic in (dynamic_models(pages) or {}).items() if dynamic)
