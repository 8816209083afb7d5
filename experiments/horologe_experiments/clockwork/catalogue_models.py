"""The models of Clockwork's appendix A, as emulated models of the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_sim.engine.simulated_device import SimModel
from horologe_sim.scenario.scenario import read_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1 << 20


class CatalogueModel(msgspec.Struct, frozen=True):
    """A row of the table. `exec_ms`: execution time by batch size."""

    name: str
    weights_mb: float
    load_ms: float
    exec_ms: dict[int, float]

    @property
    def best_row_ms(self) -> float:
        """Return the execution time of a request in the most efficient batch."""
        return min(time_ms / size for size, time_ms in self.exec_ms.items())

    def copies(self, count: int, first: int = 0, name: str = "") -> list[SimModel]:
        """Return models `name-0`, `name-1`, ... with separate weights: their requests cannot share a batch."""
        profile = Profile({size: ms(time_ms) for size, time_ms in self.exec_ms.items()}, ms(self.load_ms))
        return [
            SimModel(ModelReport(_spec(f"{name or self.name}-{number}", self), profile))
            for number in range(first, first + count)
        ]


def catalogue_models(names: Iterable[str] = ()) -> list[CatalogueModel]:
    """Return all rows of the table, or the rows called `names` in that order. Raises KeyError."""
    table = {
        name: CatalogueModel(name, entry.weights_mb, entry.load_ms, entry.exec_ms)
        for name, entry in read_catalogue().items()
    }
    return [table[name] for name in names] if names else list(table.values())


def batch_limited_rate(model: CatalogueModel, slo_ms: float) -> float:
    """Return the requests per second of a device that runs only the best batch within the SLO: max of b / exec(b)."""
    return max((1e3 * size / time_ms for size, time_ms in model.exec_ms.items() if time_ms <= slo_ms), default=0.0)


def _spec(name: str, model: CatalogueModel) -> ModelSpec:
    return ModelSpec(
        name,
        "1",
        "emulated",
        (TensorSpec("x", "FP32", (-1, 1)),),
        (TensorSpec("y", "FP32", (-1, 1)),),
        tuple(model.exec_ms),
        weights_bytes=round(model.weights_mb * MIB),
        content_hash=name,
    )
