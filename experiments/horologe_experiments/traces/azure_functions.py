"""The Azure Functions trace mapped to Clockwork's 4,026 model instances (section 6.5): rates by minute and model.

The sample has 500 functions, the trace of the paper about 17,000. Functions become *workloads*, streams of calls:

- The function with 63% of all calls is split evenly.
- Each of the next functions becomes one workload.
- Each of the rest is copied. The copies are shifted by whole hours, so that peaks at full hours stay there.

Workloads are assigned to instances round robin, the largest first.
"""

from __future__ import annotations

import csv
import functools
import gzip
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from horologe_experiments.clockwork.catalogue_models import CatalogueModel, catalogue_models

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_sim.engine.simulated_device import SimModel

MINUTES, HOUR = 480, 60
FIRST_COLUMN = 4


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules that turn functions into workloads and assign workloads to models."""

    left_out: tuple[str, ...]
    """Lines of the table that are not used. The paper uses 61 of 64 models and does not say which."""
    copies: int = 66
    """Instances of each model."""
    shares: int = 12
    """Workloads of the largest function."""
    whole: int = 19
    """Functions after the largest that become one workload each."""
    duplicates: int = 34
    """Copies of each remaining function. Each copy has the calls divided by this number."""
    order: Literal["table", "cheapest"] = "cheapest"
    """Order in which models receive workloads. table: as in the table of models. cheapest: models sorted by execution
    time of a request in the best batch, from index `start` down to the cheapest, then the more expensive ones. The
    largest workloads, which fill batches, then run on more expensive models than medium ones."""
    first_minute: int = 0
    """First minute of the trace."""
    start: int = 0
    """Index of the model that gets the largest workload."""
    minutes_of_hour: int = 60
    """First minutes of each hour that are used. Peaks are at full hours."""


class Replay(msgspec.Struct, frozen=True):
    """Models, and their rates in requests per second: `rates[minute, model]`."""

    models: list[SimModel]
    rates: NDArray[np.float64]
    best_row_s: NDArray[np.float64]

    @property
    def offered_devices(self) -> float:
        """Return the device seconds of work per second if every batch has the most efficient size."""
        return float((self.rates.mean(0) * self.best_row_s).sum())


def replay(mapping: Mapping, rate: float, minutes: int) -> Replay:
    """Map `minutes` of the trace to models, scaled to `rate` requests per second. After 480 minutes it repeats."""
    whole = [minute // mapping.minutes_of_hour * HOUR + minute % mapping.minutes_of_hour for minute in range(minutes)]
    used = [model for model in catalogue_models() if model.name not in mapping.left_out]
    if mapping.order == "cheapest":
        used.sort(key=lambda model: model.best_row_ms)
        used = used[mapping.start :: -1] + used[mapping.start + 1 :]
    instances = [(variety, number) for number in range(mapping.copies) for variety in used]
    rates = np.zeros((minutes, len(instances)))
    functions = read_calls()
    for index, workload in enumerate(workloads(mapping)):
        series = workload.series(functions, mapping.first_minute, whole[-1] + 1)
        rates[:, index % len(instances)] += series[whole]
    rates *= rate / rates.sum(1).mean()
    best_s = np.array([variety.best_row_ms / 1e3 for variety, _ in instances])
    return Replay([_instance(*instance) for instance in instances], rates, best_s)


class Workload(NamedTuple):
    """The calls of a function (its row) divided by `parts` and shifted by `later` minutes."""

    calls: float
    """Calls in the whole trace."""
    row: int
    parts: int
    later: int

    def series(self, functions: NDArray[np.float64], first: int, minutes: int) -> NDArray[np.float64]:
        """Return the calls by minute."""
        return np.resize(np.roll(functions[self.row], -self.later - first), minutes) / self.parts


def workloads(mapping: Mapping) -> list[Workload]:
    """Return all workloads, the largest first."""
    totals = read_calls().sum(1)
    largest, *others = np.argsort(-totals, kind="stable").tolist()
    result = [Workload(totals[largest] / mapping.shares, largest, mapping.shares, 0)] * mapping.shares
    result += [Workload(totals[row], row, 1, 0) for row in others[: mapping.whole]]
    parts = mapping.duplicates
    for row in others[mapping.whole :]:
        result += [Workload(totals[row] / parts, row, parts, HOUR * copy % MINUTES) for copy in range(parts)]
    return sorted(result, key=lambda workload: -workload.calls)


@functools.cache
def read_calls() -> NDArray[np.float64]:
    """Read the invocations by function and minute: 500 x 480."""
    data = resources.files("horologe_experiments").joinpath("data", "azure_functions_500.csv.gz").read_bytes()
    rows = list(csv.reader(gzip.decompress(data).decode().splitlines()))[1:]
    return np.array([[float(cell or 0) for cell in row[FIRST_COLUMN:]] for row in rows])


def _instance(variety: CatalogueModel, number: int) -> SimModel:
    return variety.copies(1, number)[0]
