"""Sweep: a latency profile measured on a running system, batch sizes x lengths, one batch at a time. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from horologe_profiler.core.batch_fit import Point, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.models import ModelSpec
    from horologe_profiler.core.batch_fit import Fit

LENGTHS = (16, 64, 256)
"""Default lengths of variable dimensions."""


class SweepCell(NamedTuple):
    """A batch of `size` rows of `length` (0: all dimensions of the model are fixed)."""

    size: int
    length: int


class SweepRow(NamedTuple):
    """Times of a cell: the median, shortest and longest of its `runs`, and the fitted time."""

    cell: SweepCell
    runs: int
    took_ns: int
    least_ns: int
    most_ns: int
    fitted_ns: float


def has_variable_dimensions(spec: ModelSpec) -> bool:
    """Return True if any dimension except the rows is variable."""
    return any(-1 in tensor.shape[1 if spec.batched else 0 :] for tensor in spec.inputs)


def default_lengths(spec: ModelSpec) -> tuple[int, ...]:
    """Return `LENGTHS`, limited to the model's `max_length`; (0,) if all dimensions are fixed."""
    if not has_variable_dimensions(spec):
        return (0,)
    return tuple(dict.fromkeys(min(length, spec.max_length or length) for length in LENGTHS))


def input_shapes(spec: ModelSpec, cell: SweepCell) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs by name. All variable dimensions get the cell's length."""
    shapes = {}
    for tensor in spec.inputs:
        rest = tensor.shape[1:] if spec.batched else tensor.shape
        rows = (cell.size,) if spec.batched else ()
        shapes[tensor.name] = (*rows, *(cell.length if dim < 0 else dim for dim in rest))
    return shapes


class Sweep:
    """Cells of one model, measured in `runs` passes, so that a change of load affects all cells alike."""

    def __init__(self, spec: ModelSpec, lengths: Sequence[int] = (), runs: int = 5) -> None:
        self.spec = spec
        self._runs = runs
        sizes = spec.batch_sizes if spec.batched else (1,)
        lengths = lengths if has_variable_dimensions(spec) else ()
        self._times: dict[SweepCell, list[int]] = {
            SweepCell(size, length): [] for length in (lengths or default_lengths(spec)) for size in sizes
        }
        self.failed: dict[SweepCell, str] = {}
        """Cell -> reason why it could not run."""

    def __len__(self) -> int:
        return self._runs * len(self._times)

    def iter_cells(self) -> Iterator[SweepCell]:
        """Yield the cells in the order of their runs. A failed cell is skipped."""
        for _ in range(self._runs):
            for cell in self._times:
                if cell not in self.failed:
                    yield cell

    def record_time(self, cell: SweepCell, took_ns: int) -> None:
        self._times[cell].append(took_ns)

    def record_failure(self, cell: SweepCell, reason: str) -> None:
        self.failed[cell] = reason

    def result(self) -> tuple[list[SweepRow], Fit | None]:
        """Return a row for each measured cell, and c0 and c1 fitted to the medians (see `fit`)."""
        medians = {cell: round(median(times)) for cell, times in self._times.items() if times}
        fitted = fit(Point(cell.size, cell.length, took_ns) for cell, took_ns in medians.items())
        rows = []
        for cell, took_ns in medians.items():
            times = self._times[cell]
            fitted_ns = fitted.base_ns + fitted.slope_ns * cell.size * (cell.length or 1) if fitted else 0.0
            rows.append(SweepRow(cell, len(times), took_ns, min(times), max(times), fitted_ns))
        return rows, fitted
