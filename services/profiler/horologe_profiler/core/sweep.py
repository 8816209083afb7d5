"""A latency profile measured on a system that runs: batch sizes x lengths, one batch at a time. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from horologe_profiler.core.batch_fit import Point, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.models import ModelSpec
    from horologe_profiler.core.batch_fit import Fit

LENGTHS = (16, 64, 256)
"""Of variable dimensions, where nobody says which."""


class Cell(NamedTuple):
    """A batch of `size` rows, each of `length` (0: the model's dimensions are all fixed)."""

    size: int
    length: int


class Row(NamedTuple):
    """What a cell took: the median of `runs`, the shortest and the longest, and what the fit makes of it."""

    cell: Cell
    runs: int
    took_ns: int
    least_ns: int
    most_ns: int
    fitted_ns: float


def variable(spec: ModelSpec) -> bool:
    """Whether any dimension but that of rows is variable."""
    return any(-1 in tensor.shape[1 if spec.batched else 0 :] for tensor in spec.inputs)


def default_lengths(spec: ModelSpec) -> tuple[int, ...]:
    """`LENGTHS` as far as the model allows; 0 where all dimensions are fixed."""
    if not variable(spec):
        return (0,)
    return tuple(dict.fromkeys(min(length, spec.max_length or length) for length in LENGTHS))


def shapes(spec: ModelSpec, cell: Cell) -> dict[str, tuple[int, ...]]:
    """The inputs' shapes: all variable dimensions are as long."""
    found = {}
    for tensor in spec.inputs:
        rest = tensor.shape[1:] if spec.batched else tensor.shape
        rows = (cell.size,) if spec.batched else ()
        found[tensor.name] = (*rows, *(cell.length if dim < 0 else dim for dim in rest))
    return found


class Sweep:
    """The cells of one model, gone through `runs` times: what changes meanwhile changes for all of them alike."""

    def __init__(self, spec: ModelSpec, lengths: Sequence[int] = (), runs: int = 5) -> None:
        self.spec = spec
        self._runs = runs
        sizes = spec.batch_sizes if spec.batched else (1,)
        lengths = lengths if variable(spec) else ()
        self._took: dict[Cell, list[int]] = {
            Cell(size, length): [] for length in (lengths or default_lengths(spec)) for size in sizes
        }
        self.failed: dict[Cell, str] = {}
        """Why cells could not be run."""

    def __len__(self) -> int:
        return self._runs * len(self._took)

    def cells(self) -> Iterator[Cell]:
        """What to run, one after another. A cell that has failed is not run again."""
        for _ in range(self._runs):
            for cell in self._took:
                if cell not in self.failed:
                    yield cell

    def took(self, cell: Cell, took_ns: int) -> None:
        self._took[cell].append(took_ns)

    def fail(self, cell: Cell, reason: str) -> None:
        self.failed[cell] = reason

    def result(self) -> tuple[list[Row], Fit | None]:
        """A row for each cell that was run, and c0 and c1 of their medians (`fit`: with lengths, or for one row)."""
        medians = {cell: round(median(times)) for cell, times in self._took.items() if times}
        found = fit(Point(cell.size, cell.length, took_ns) for cell, took_ns in medians.items())
        rows = []
        for cell, took_ns in medians.items():
            times = self._took[cell]
            fitted_ns = found.base_ns + found.slope_ns * cell.size * (cell.length or 1) if found else 0.0
            rows.append(Row(cell, len(times), took_ns, min(times), max(times), fitted_ns))
        return rows, found
