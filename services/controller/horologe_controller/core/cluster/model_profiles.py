"""Profiled durations of models, and the batch sizes that are worth running by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import ms, us

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_common.models import Profile
    from horologe_controller.core.cluster.share import Share

    ProfiledDurations = dict[int, int]
    """Durations in ns by batch size, LOAD under `LOAD_SIZE`."""

LOAD_SIZE = 0
"""Key of LOAD among the batch sizes of a profile."""
BATCH_SAVING = 0.02
"""A larger batch must save this part of a row's time. Otherwise smaller batches serve as many rows, the first of them
earlier, and the next request waits for less."""
BATCH_COST_NS = {"device": us(200), "cpu": ms(1)}
"""What a batch costs besides its execution: on a device of its own, and on the CPU, where services share the cores with
models and take them their caches (benchmarks/results/capacity.md)."""


def efficient_sizes(seed_ns: Mapping[int, int], batch_cost_ns: int) -> frozenset[int]:
    """Return the batch sizes whose rows take less time than in every smaller size, by at least `BATCH_SAVING`.

    A batch costs `batch_cost_ns` besides its execution.
    """
    sizes: list[int] = []
    best_row_ns = math.inf
    for size in sorted(size for size in seed_ns if size != LOAD_SIZE):
        row_ns = (seed_ns[size] + batch_cost_ns) / size
        if row_ns <= (1 - BATCH_SAVING) * best_row_ns:
            best_row_ns = row_ns
            sizes.append(size)
    return frozenset(sizes)


class ModelProfiles:
    """Distinct profiles of the shares that can run each model. The last one is kept when no share can."""

    def __init__(self) -> None:
        self.of_model: dict[str, dict[tuple[tuple[int, int], ...], ProfiledDurations]] = {}
        """Durations of each model by their items."""
        self._shortest_ns: dict[tuple[str, int], int] = {}
        """Results of `shortest_ns` since the last change."""

    def add_profile(self, model: str, profile: Profile) -> ProfiledDurations:
        """Return the profile's durations, as one object for all shares with an equal profile."""
        self._shortest_ns.clear()
        seed = {LOAD_SIZE: max(1, profile.load_ns), **profile.exec_ns}
        return self.of_model.setdefault(model, {}).setdefault(tuple(seed.items()), seed)

    def discard_unused(self, model: str, capable: Iterable[Share]) -> None:
        """Discard the profiles that none of the capable shares uses, but for the last."""
        seeds = self.of_model[model]
        for key, seed in list(seeds.items()):
            if len(seeds) > 1 and not any(share.estimates[model].seed_ns is seed for share in capable):
                del seeds[key]
                self._shortest_ns.clear()

    def discard_model(self, model: str) -> None:
        self._shortest_ns.clear()
        del self.of_model[model]

    def shortest_ns(self, model: str, size: int) -> int:
        """Return the shortest profiled duration of a batch of `size`; 0 if no share could ever run the model."""
        shortest_ns = self._shortest_ns.get((model, size))
        if shortest_ns is None:
            seeds = self.of_model.get(model, {}).values()
            shortest_ns = min([profiled_ns(seed, size) for seed in seeds], default=0)
            self._shortest_ns[model, size] = shortest_ns
        return shortest_ns


def profiled_ns(seed_ns: Mapping[int, int], size: int) -> int:
    """Return the profiled duration of a batch of `size`; that of the largest size if the profile lacks this one."""
    duration_ns = seed_ns.get(size)
    return seed_ns[max(seed_ns)] if duration_ns is None else duration_ns
