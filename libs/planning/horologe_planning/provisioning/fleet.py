"""GPUs of one type with the workloads on them, as arrays: candidates for a workload, placing and removing it.

On a GPU with `vgg19` at 14 steps of 2.5%, `resnet50` fits with 12 steps if `vgg19` gets 15. Then the GPU is a candidate
for `resnet50` that adds 13 steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import ms
from horologe_planning.plan import Placement
from horologe_planning.provisioning.share_tables import NO_WORKLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Index
    from horologe_planning.provisioning.share_tables import ShareTables
    from horologe_planning.provisioning.workloads import Workload


SLOTS = 8
"""Initial width of the arrays, which grows as needed."""


class FittingGpus(NamedTuple):
    """GPUs on which a workload fits, with the slots that each would have."""

    gpus: Index
    members: Index
    units: Index
    added: Index
    """Steps of r_unit that the workload would add: its own share and r_inter of all on the GPU."""


class Fleet:
    """GPUs of one type. Invariant: every GPU meets the SLOs of its workloads; an empty GPU costs nothing."""

    def __init__(self, tables: ShareTables) -> None:
        self.tables = tables
        self.members = np.full((0, SLOTS), NO_WORKLOAD, np.intp)
        self.units = np.zeros((0, SLOTS), np.intp)
        self.used = np.zeros(0, np.intp)
        """Sum of the shares of each GPU."""

    @property
    def price(self) -> float:
        """Dollars per hour of one GPU."""
        return self.tables.kind.gpu.price_per_hour

    @property
    def cost(self) -> float:
        """Dollars per hour of the GPUs that are not empty."""
        return float(np.count_nonzero(self.used)) * self.price

    def candidates(self, row: int, without: int = NO_WORKLOAD) -> FittingGpus:
        """Return the GPUs in use, but `without`, on which Algorithm 2 finds shares for the workload of `row`."""
        least = self.tables.least[row]
        open_gpus = (self.used > 0) & (self.used + least <= self.tables.kind.whole)
        if without != NO_WORKLOAD:
            open_gpus[without] = False
        gpus = np.flatnonzero(open_gpus)
        if not len(gpus):
            return FittingGpus(gpus, self.members[:0], self.units[:0], gpus)
        members, units = self._with(gpus, row)
        allocation = self.tables.allocate(members, units)
        fits = np.flatnonzero(allocation.fits)
        added = allocation.units[fits].sum(axis=1) - self.used[gpus[fits]]
        return FittingGpus(gpus[fits], members[fits], allocation.units[fits], added)

    def open_gpu(self, row: int) -> int:
        """Put the workload on an empty GPU, a new one if there is none, and return the GPU."""
        units = self.least_units([row])
        if units is None:
            raise ValueError(f"{self.tables.workloads[row].name}: does not fit on an empty GPU")
        empty = np.flatnonzero(self.used == 0)
        if not len(empty):
            self.members = np.vstack([self.members, np.full((1, self.members.shape[1]), NO_WORKLOAD, np.intp)])
            self.units = np.vstack([self.units, np.zeros((1, self.units.shape[1]), np.intp)])
            self.used = np.append(self.used, 0)
        gpu = int(empty[0]) if len(empty) else len(self.used) - 1
        self.set_gpu(gpu, [row], units)
        return gpu

    def least_units(self, rows: Sequence[int]) -> Index | None:
        """Return the least shares with which these workloads meet their SLOs on one GPU. None: there are none."""
        members = np.array([rows], np.intp)
        allocation = self.tables.allocate(members, self.tables.least[members])
        return allocation.units[0] if allocation.fits[0] else None

    def set_gpu(self, gpu: int, members: Sequence[int] | Index, units: Sequence[int] | Index) -> None:
        """Replace the workloads and shares of a GPU."""
        self._widen(len(members))
        self.members[gpu], self.units[gpu] = NO_WORKLOAD, 0
        self.members[gpu, : len(members)], self.units[gpu, : len(units)] = members, units
        self.used[gpu] = sum(units)

    def rows_of(self, gpu: int) -> list[int]:
        """Return the workloads on a GPU."""
        return [int(row) for row in self.members[gpu] if row != NO_WORKLOAD]

    def remove(self, row: int, gpu: int) -> None:
        """Take a workload off a GPU. The others get the least shares that meet their SLOs without it."""
        kept = [other for other in self.rows_of(gpu) if other != row]
        units = self.least_units(kept) if kept else np.zeros(0, np.intp)
        self.set_gpu(gpu, kept, self.units[gpu][np.isin(self.members[gpu], kept)] if units is None else units)

    def used_gpus(self) -> list[int]:
        """Return the GPUs that are not empty."""
        return [int(gpu) for gpu in np.flatnonzero(self.used)]

    def placements(self, devices: Sequence[str]) -> list[tuple[Workload, Placement]]:
        """Return each share with the prediction for it. `devices`: ids of `used_gpus()`, in their order."""
        predicted = self.tables.predict(self.members, self.units)
        gpu, placed = self.tables.kind.gpu, []
        for place, device in zip(self.used_gpus(), devices, strict=True):
            for slot in np.flatnonzero(self.members[place] != NO_WORKLOAD):
                row = self.members[place, slot]
                workload = self.tables.workloads[row]
                latency_ms = float(predicted.latency_ms[place, slot])
                error = self.tables.kind.models[workload.model].relative_error
                placement = Placement(
                    workload.name,
                    workload.name,
                    gpu.name,
                    int(self.tables.batch[row]),
                    device=device,
                    percent=float(self.units[place, slot] * gpu.share_unit_percent),
                    throughput=float(predicted.throughput[place, slot]),
                    slo_ns=workload.slo_ns,
                    latency_ns=ms(latency_ms),
                    deviation_ns=ms(latency_ms * error),
                    coefficients=workload.model,
                )
                placed.append((workload, placement))
        return placed

    def _with(self, gpus: Index, row: int) -> tuple[Index, Index]:
        """Return the slots of the GPUs with the workload added at its least share."""
        counts = np.count_nonzero(self.members[gpus] != NO_WORKLOAD, axis=1)
        width = int(counts.max()) + 1
        self._widen(width)
        members, units = self.members[gpus, :width].copy(), self.units[gpus, :width].copy()
        lines = np.arange(len(gpus))
        members[lines, counts], units[lines, counts] = row, self.tables.least[row]
        return members, units

    def _widen(self, slots: int) -> None:
        missing = slots - self.members.shape[1]
        if missing > 0:
            self.members = np.pad(self.members, ((0, 0), (0, missing)), constant_values=NO_WORKLOAD)
            self.units = np.pad(self.units, ((0, 0), (0, missing)))
