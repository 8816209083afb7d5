"""Workloads on GPUs of several types: placing one, taking one off, and moving a few others to make or save room.

`ssd` and `alexnet` are on `v100-1`, `vgg19` and `resnet50` on `v100-2`. `take_off` of `ssd` leaves `alexnet` alone, and
`evacuate` moves it to `v100-2`: then `v100-1` is empty and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_planning.provisioning.placement import GpuPlace, fullest, place_new, place_open

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            if (units := fleet.least_units([*kept, row])) is not None:
                kept.append(row)
                location = location or GpuPlace(place, fleet.open_gpu(row))
                fleet.set_gpu(location.gpu, kept, units)
                self.locations[row] = location
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
        self.locations[row] = place_new(self.fleets, row)
        return []

    def _place_open(self, row: int, without: GpuPlace | None = None) -> bool:
        """Put a workload on the open GPU that it fills most, of the type where its share costs least."""
        location = place_open(self.fleets, row, fullest, without)
        if location is not None:
            self.locations[row] = location
        return location is not None

    def _exchange(self, row: int, location: GpuPlace) -> int | None:
        """Put a workload in the place of another that fits on some other open GPU. Return the other."""
        fleet = self.fleets[location.fleet]
        rows = fleet.rows_of(location.gpu)
        for other in sorted(rows, key=lambda other: int(fleet.tables.least[other])):
            kept = [*(kept for kept in rows if kept != other), row]
            units = fleet.least_units(kept)
            if units is not None and self._place_open(other, without=location):
                fleet.set_gpu(location.gpu, kept, units)
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
        rows = fleet.rows_of(location.gpu)
        if (units := fleet.least_units(rows)) is not None:
            fleet.set_gpu(location.gpu, rows, units)
        return units is not None

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
        fleet.set_gpu(location.gpu, [], [])
        return [fleet.tables.workloads[row].name for row in rows]
