"""Runs that determine the coefficients of a GPU type and of models on it (iGniter sections 3.1 and 5.1).

A model has 11 runs: three batch sizes at three shares, one more alone, and one beside a copy of itself. One model also
runs in several copies, and models run in pairs.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from horologe_common.interference.measured_runs import ShareLoad
from horologe_planning.interference.model_measurements import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Run: TypeAlias = tuple[ShareLoad, ...]


class RunSizes(NamedTuple):
    """Shares and numbers of copies of the runs. The defaults are those of the paper."""

    shares: tuple[float, ...] = (10.0, 50.0, 100.0)
    """Of the runs alone. The largest one of at most 50% is that of a run beside a copy."""
    copies: int = 5
    """Most copies of one model. Each has an equal share."""
    splits: tuple[float, ...] = (20.0, 50.0, 80.0)
    """Shares of the first model of a pair; the second one has the rest."""

    def validate(self) -> None:
        """Raise ProfileError that names the field, its value and the value wanted."""
        if len(set(self.shares)) < 2 or not all(0 < share <= 100 for share in self.shares):
            raise ProfileError(f"shares: got {self.shares}, wanted at least two different ones, up to 100%")
        if min(self.shares) > 50:
            raise ProfileError(f"shares: got {self.shares}, wanted one of at most 50%, for a run beside a copy")
        if not 2 <= self.copies <= 40:
            raise ProfileError(f"copies: got {self.copies}, wanted 2 to 40")
        if not all(0 < split < 100 for split in self.splits):
            raise ProfileError(f"splits: got {self.splits}, wanted numbers between 0 and 100%")


def profiled_batches(model: str, batch_sizes: Sequence[int]) -> tuple[int, int, int]:
    """Return the smallest batch size, the one nearest to half of the largest, and the largest.

    Raises ProfileError if there are fewer than three: they do not determine Eq. 11.
    """
    sizes = sorted(set(batch_sizes))
    if len(sizes) < 3:
        raise ProfileError(f"{model}: batch_sizes: got {sizes}, wanted at least three (model.toml)")
    middle = min(sizes[1:-1], key=lambda size: (abs(2 * size - sizes[-1]), size))
    return sizes[0], middle, sizes[-1]


def model_runs(model: str, batch_sizes: Sequence[int], sizes: RunSizes) -> list[Run]:
    """Return the runs of a model alone, ordered by share, and the runs that determine alpha_cache."""
    batches = profiled_batches(model, batch_sizes)
    shares = sorted(sizes.shares)
    alone: list[Run] = [(ShareLoad(model, batch, share),) for share in shares for batch in batches]
    contended = ShareLoad(model, batches[1], max(share for share in shares if share <= 50))
    return [*alone, (contended,), (contended, contended)]


def copies_runs(model: str, batch_sizes: Sequence[int], sizes: RunSizes) -> list[Run]:
    """Return runs of one to `sizes.copies` copies with the largest batch, which needs the most power."""
    load = ShareLoad(model, max(batch_sizes), 100 / sizes.copies)
    return [(load,) * copies for copies in range(1, sizes.copies + 1)]


def pair_runs(batch_sizes: Mapping[str, Sequence[int]], sizes: RunSizes) -> list[Run]:
    """Return runs of every pair of different models, with the middle and the largest batch at every split."""
    runs: list[Run] = []
    for first, second in combinations(sorted(batch_sizes), 2):
        batches = [profiled_batches(model, batch_sizes[model])[1:] for model in (first, second)]
        runs += [
            (ShareLoad(first, one, split), ShareLoad(second, other, 100 - split))
            for split in sizes.splits
            for one, other in zip(*batches, strict=True)
        ]
    return runs
