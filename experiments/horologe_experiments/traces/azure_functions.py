"""The Azure Functions trace laid over Clockwork's 4,026 model instances (section 6.5), as rates by minute and model.

The sample has 500 functions, the paper's trace about 17,000. Functions become *workloads*, one stream of calls each:
the one that makes 63% of all calls is shared out evenly, large ones stay whole, and each of the others is copied, the
copies hours apart in the trace so that the peaks at full hours stay where they are. Workloads are then dealt to
instances, the largest first, one to each, and from the first instance again when all have one.
"""

from __future__ import annotations

import csv
import functools
import gzip
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from horologe_sim.scenario.clockwork_models import CatalogueModel, catalogue_models

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_sim.engine.virtual_worker import SimModel

MINUTES, HOUR = 480, 60
FIRST_COLUMN = 4


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How functions become workloads, and workloads meet models."""

    left_out: tuple[str, ...]
    """Lines of the table that are not used: 61 of 64 are, and the paper does not say which."""
    copies: int = 66
    """Instances of each variety."""
    shares: int = 12
    """The largest function is shared out over so many workloads."""
    whole: int = 19
    """So many of the next functions stay one workload each."""
    duplicates: int = 34
    """Each of the rest becomes so many workloads, with so many times fewer calls."""
    order: Literal["table", "cheapest"] = "cheapest"
    """cheapest: varieties by execution time of a request in the best batch, from place `start` to ever cheaper ones,
    then the dearer ones. So the largest workloads, which fill batches, are on dearer models than middling ones, which
    do not."""
    first_minute: int = 0
    """Of the trace, to begin with."""
    start: int = 0
    """The place of the variety that the largest workload goes to."""


class Replay(msgspec.Struct, frozen=True):
    """Models, and what each is asked for: `rates[minute, model]` in requests a second."""

    models: list[SimModel]
    rates: NDArray[np.float64]
    best_row_s: NDArray[np.float64]

    @property
    def offered_devices(self) -> float:
        """Execution time asked for in a second, were all batches the most efficient ones."""
        return float((self.rates.mean(0) * self.best_row_s).sum())


def replay(mapping: Mapping, rate: float, minutes: int) -> Replay:
    """The first `minutes` of the trace (again from its beginning after 480), scaled to `rate` requests a second."""
    used = [one for one in catalogue_models() if one.name not in mapping.left_out]
    if mapping.order == "cheapest":
        used.sort(key=lambda one: one.best_row_ms)
        used = used[mapping.start :: -1] + used[mapping.start + 1 :]
    instances = [(variety, number) for number in range(mapping.copies) for variety in used]
    rates = np.zeros((minutes, len(instances)))
    functions = calls()
    for place, workload in enumerate(workloads(mapping)):
        rates[:, place % len(instances)] += workload.series(functions, mapping.first_minute, minutes)
    rates *= rate / rates.sum(1).mean()
    best_s = np.array([variety.best_row_ms / 1e3 for variety, _ in instances])
    return Replay([_instance(*one) for one in instances], rates, best_s)


class Workload(NamedTuple):
    """`1 / parts` of the calls of a function (its row), as they are `later` minutes later in the trace."""

    calls: float
    """In the whole trace."""
    row: int
    parts: int
    later: int

    def series(self, functions: NDArray[np.float64], first: int, minutes: int) -> NDArray[np.float64]:
        """Calls by minute."""
        return np.resize(np.roll(functions[self.row], -self.later - first), minutes) / self.parts


def workloads(mapping: Mapping) -> list[Workload]:
    """All workloads, the largest first."""
    totals = calls().sum(1)
    largest, *others = np.argsort(-totals, kind="stable").tolist()
    found = [Workload(totals[largest] / mapping.shares, largest, mapping.shares, 0)] * mapping.shares
    found += [Workload(totals[row], row, 1, 0) for row in others[: mapping.whole]]
    parts = mapping.duplicates
    for row in others[mapping.whole :]:
        found += [Workload(totals[row] / parts, row, parts, HOUR * copy % MINUTES) for copy in range(parts)]
    return sorted(found, key=lambda one: -one.calls)


@functools.cache
def calls() -> NDArray[np.float64]:
    """Invocations by function and minute: 500 x 480."""
    data = resources.files("horologe_experiments").joinpath("data", "azure_functions_500.csv.gz").read_bytes()
    rows = list(csv.reader(gzip.decompress(data).decode().splitlines()))[1:]
    return np.array([[float(cell or 0) for cell in row[FIRST_COLUMN:]] for row in rows])


def _instance(variety: CatalogueModel, number: int) -> SimModel:
    return variety.copies(1, number)[0]
