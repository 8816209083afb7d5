"""What models take by their profiles, whatever device they run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.cluster.estimates import profiled_ns
from horologe_controller.core.cluster.share import LOAD_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.models import Profile
    from horologe_controller.core.cluster.share import Share

    Seed = dict[int, int]
    """Durations by batch size, LOAD under `LOAD_SIZE`."""


class Profiles:
    """By model key, the profiles of the shares that could run it, as they differ; the last while there are none."""

    def __init__(self) -> None:
        self._seeds: dict[str, dict[tuple[tuple[int, int], ...], Seed]] = {}

    def __contains__(self, model: str) -> bool:
        return model in self._seeds

    def enter(self, model: str, profile: Profile) -> Seed:
        """The profile's durations, one object for all shares that have the same."""
        seed = {LOAD_SIZE: max(1, profile.load_ns), **profile.exec_ns}
        return self._seeds.setdefault(model, {}).setdefault(tuple(seed.items()), seed)

    def keep(self, model: str, capable: Iterable[Share]) -> None:
        """Forget those that are of none of these shares, but for the last."""
        seeds = self._seeds[model]
        for key, seed in list(seeds.items()):
            if len(seeds) > 1 and not any(share.estimates[model].seed_ns is seed for share in capable):
                del seeds[key]

    def forget(self, model: str) -> None:
        del self._seeds[model]

    def shortest_ns(self, model: str, size: int) -> int:
        """The least that a batch of `size` takes by any of them; 0 if none ever could run it."""
        seeds = self._seeds.get(model)
        return min([profiled_ns(seed, size) for seed in seeds.values()]) if seeds else 0


def unmeasured(profile: Profile, sizes: tuple[int, ...]) -> list[int]:
    """The batch sizes among `sizes` that the profile says nothing of."""
    return [size for size in sizes if size not in profile.exec_ns]
