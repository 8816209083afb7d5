"""Workloads on GPUs of several types: placing one, taking one off, and moving a few others to make or save room.

`ssd` and `alexnet` are on `v100-1`, `vgg19` and `resnet50` on `v100-2`. `take_off` of `ssd` leaves `alexnet` alone, and
`evacuate` moves it to `v100-2`: then `v100-1` is empty and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_planning.provisioning.placement import GpuPlace, cheapest_type, fullest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Index
    from horologe_planning.provisioning.fleet import Fleet

EXCHANGES_LIMIT = 12
"""GPUs tried for moving one workload off to make room. Each try costs two runs of Algorithm 2."""
EVACUATED_LIMIT = 2
"""Most workloads that are moved to empty a GPU."""


class Occupancy:
    """GPU of each row of the tables. Every method keeps the SLOs of all rows that are placed."""

    def __init__(self, fleets: Sequence[Fleet]) -> None:
        self.fleets = fleets
        self.locations = {
            row: GpuPlace(place, gpu)
            for place, fleet in enumerate(fleets)
            for gpu in range(len(fleet.used))
            for row in fleet.rows_of(gpu)
        }

    @property
    def cost(self) -> float:
        """Dollars per hour."""
        return sum(fleet.cost for fleet in self.fleets)

    def used_gpus(self) -> list[GpuPlace]:
        """Return the GPUs that are not empty, in the order of `plan_of`."""
        return [GpuPlace(at, int(gpu)) for at, fleet in enumerate(self.fleets) for gpu in np.flatnonzero(fleet.used)]

    def fill_gpu(self, place: int, rows: Sequence[int]) -> GpuPlace | None:
        """Put rows on a new GPU of a fleet, the largest shares first, as far as they fit. Return the GPU, if any."""
        fleet, kept = self.fleets[place], list[int]()
        location: GpuPlace | None = None
        for row in sorted(rows, key=lambda row: -int(fleet.tables.least[row])):
            members = np.array([*kept, row], np.intp)
            allocation = fleet.tables.allocate(members[None], fleet.tables.least[members][None])
            if allocation.fits[0]:
                location = location or GpuPlace(place, fleet.open_gpu(row))
                fleet.set_gpu(location.gpu, members, allocation.units[0])
                self.locations[row] = location
                kept.append(row)
        return location

    def consolidate(self) -> None:
        """Empty GPUs with few workloads that all fit elsewhere."""
        for location in sorted(self.used_gpus(), key=lambda at: int(self.fleets[at.fleet].used[at.gpu])):
            self.evacuate(location)

    def check(self) -> None:
        """Assert that each row is on its GPU only, within 100%, and meets its SLO there."""
        seen: dict[int, GpuPlace] = {}
        for place, fleet in enumerate(self.fleets):
            used = np.flatnonzero(fleet.used)
            assert (fleet.used == fleet.units.sum(axis=1)).all()
            assert (fleet.used <= fleet.tables.kind.whole).all()
            allocation = fleet.tables.allocate(fleet.members[used], fleet.units[used])
            assert allocation.fits.all()
            assert (allocation.units == fleet.units[used]).all()
            for gpu in used:
                rows = fleet.rows_of(int(gpu))
                assert not seen.keys() & set(rows)
                seen |= dict.fromkeys(rows, GpuPlace(place, int(gpu)))
        assert seen == self.locations

    def place(self, row: int) -> list[str]:
        """Put a workload on an open GPU, make room for it by one move, or open a GPU. Return the workloads moved."""
        if self._place_open(row):
            return []
        for place, fleet in enumerate(self.fleets):
            for gpu in np.argsort(fleet.used, kind="stable")[:EXCHANGES_LIMIT]:
                if fleet.used[gpu] and (other := self._exchange(row, GpuPlace(place, int(gpu)))) is not None:
                    return [fleet.tables.workloads[other].name]
        place = cheapest_type(self.fleets, row)
        self.locations[row] = GpuPlace(place, self.fleets[place].open_gpu(row))
        return []

    def _place_open(self, row: int, without: GpuPlace | None = None) -> bool:
        """Put a workload on the open GPU that it fills most, of the type where its share costs least."""
        best: tuple[float, GpuPlace, Index, Index] | None = None
        for place, fleet in enumerate(self.fleets):
            left_out = without.gpu if without is not None and without.fleet == place else -1
            candidates = fleet.candidates(row, without=left_out)
            if not len(candidates.gpus):
                continue
            choice = fullest(candidates, fleet)
            cost = float(candidates.added[choice]) / fleet.tables.kind.whole * fleet.price
            if best is None or cost < best[0]:
                location = GpuPlace(place, int(candidates.gpus[choice]))
                best = (cost, location, candidates.members[choice], candidates.units[choice])
        if best is None:
            return False
        _, location, members, units = best
        self.fleets[location.fleet].set_gpu(location.gpu, members, units)
        self.locations[row] = location
        return True

    def _exchange(self, row: int, location: GpuPlace) -> int | None:
        """Put a workload in the place of another that fits on some other open GPU. Return the other."""
        fleet = self.fleets[location.fleet]
        rows = fleet.rows_of(location.gpu)
        smallest = sorted(rows, key=lambda other: int(fleet.tables.least[other]))
        for other in smallest:
            kept = np.array([*(kept for kept in rows if kept != other), row], np.intp)
            allocation = fleet.tables.allocate(kept[None], fleet.tables.least[kept][None])
            if allocation.fits[0] and self._place_open(other, without=location):
                fleet.set_gpu(location.gpu, kept, allocation.units[0])
                self.locations[row] = location
                return other
        return None

    def take_off(self, row: int) -> GpuPlace:
        """Take a workload off its GPU."""
        location = self.locations.pop(row)
        self.fleets[location.fleet].remove(row, location.gpu)
        return location

    def reallocate(self, location: GpuPlace) -> bool:
        """Give the workloads of a GPU the least shares that meet their SLOs. Return False if there are none."""
        fleet = self.fleets[location.fleet]
        rows = np.array(fleet.rows_of(location.gpu), np.intp)
        allocation = fleet.tables.allocate(rows[None], fleet.tables.least[rows][None])
        if allocation.fits[0]:
            fleet.set_gpu(location.gpu, rows, allocation.units[0])
        return bool(allocation.fits[0])

    def evacuate(self, location: GpuPlace) -> list[str]:
        """Move the workloads off a GPU if they are few and all fit elsewhere. Return the workloads moved."""
        fleet = self.fleets[location.fleet]
        rows = fleet.rows_of(location.gpu)
        if not 0 < len(rows) <= EVACUATED_LIMIT:
            return []
        saved = [(kept, kept.members.copy(), kept.units.copy(), kept.used.copy()) for kept in self.fleets]
        locations = {row: self.locations[row] for row in rows}
        for row in rows:
            if not self._place_open(row, without=location):
                for kept, members, units, used in saved:
                    kept.members, kept.units, kept.used = members, units, used
                self.locations |= locations
                return []
        fleet.set_gpu(location.gpu, np.zeros(0, np.intp), np.zeros(0, np.intp))
        return [fleet.tables.workloads[row].name for row in rows]
