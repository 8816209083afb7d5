"""Change one workload of a running plan with few moves: arrival, departure, change of rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_tuner.core.provisioning.placement import Location, cheapest_type, fullest, split_workloads
from horologe_tuner.core.provisioning.provisioner import (
    DEFAULT_OPTIONS,
    ProvisioningOptions,
    empty_fleets,
    place_all,
    plan_of,
)
from horologe_tuner.core.provisioning.share_tables import check_workloads
from horologe_tuner.core.provisioning.workloads import ProvisioningError, SharingPlan, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Index
    from horologe_tuner.core.provisioning.share_tables import GpuType

EXCHANGES_LIMIT = 12
"""GPUs tried for moving one workload off to make room. Each try costs two runs of Algorithm 2."""
EVACUATED_LIMIT = 2
"""Most workloads that are moved to empty a GPU."""


class PlanChange(NamedTuple):
    """Result of a change: other workloads that moved to another GPU, and the cost per hour before and after."""

    moved: tuple[str, ...]
    cost_before: float
    cost_after: float


class RunningProvision:
    """Workloads on GPUs, changed one at a time. Invariant: `check()`."""

    def __init__(
        self, workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions = DEFAULT_OPTIONS
    ) -> None:
        """Place the workloads by Algorithm 1, on all GPU types. Raises ProvisioningError as `provision` does."""
        options.validate()
        check_workloads(workloads, kinds)
        self._kinds, self._options = kinds, options
        self.fleets = place_all(empty_fleets(workloads, kinds, options), "least-interference")
        self._rows: dict[str, list[int]] = {}
        self._free_rows: list[int] = []
        self._locations: dict[int, Location] = {}
        for row, workload in enumerate(self.fleets[0].tables.workloads):
            self._rows.setdefault(workload.name, []).append(row)
        for place, fleet in enumerate(self.fleets):
            for gpu in range(len(fleet.used)):
                self._locations |= dict.fromkeys(fleet.rows_of(gpu), Location(place, gpu))

    @property
    def cost(self) -> float:
        """Dollars per hour."""
        return sum(fleet.cost for fleet in self.fleets)

    def plan(self) -> SharingPlan:
        """Return the present plan."""
        return plan_of(self.fleets)

    def add(self, workload: Workload) -> PlanChange:
        """Place a workload that arrives. Raises ProvisioningError and changes nothing if it is invalid."""
        if workload.name in self._rows:
            raise ProvisioningError(f"workload {workload.name!r}: got the name twice, wanted each once")
        parts = self._parts(workload)
        before, moved = self.cost, list[str]()
        for part in parts:
            row = self._new_row(part)
            self._rows.setdefault(part.name, []).append(row)
            moved += self._place(row)
        return PlanChange(tuple(moved), before, self.cost)

    def remove(self, name: str) -> PlanChange:
        """Take a workload off that leaves, and empty its GPU where few workloads are left on it."""
        before, moved = self.cost, list[str]()
        for row in self._rows_of(name):
            location = self._take_off(row)
            self._free_rows.append(row)
            moved += self._evacuate(location)
        del self._rows[name]
        return PlanChange(tuple(moved), before, self.cost)

    def change_rate(self, name: str, rate: float) -> PlanChange:
        """Give a workload another rate in requests per second, on its GPU if it still fits there."""
        rows = self._rows_of(name)
        old = self.fleets[0].tables.workloads[rows[0]]
        parts = self._parts(Workload(name, old.model, rate, old.slo_ms))
        if len(rows) > 1 or len(parts) > 1:
            removed, added = self.remove(name), self.add(Workload(name, old.model, rate, old.slo_ms))
            return PlanChange(removed.moved + added.moved, removed.cost_before, added.cost_after)
        before, (row,) = self.cost, rows
        location = self._locations[row]
        for fleet in self.fleets:
            fleet.tables.replace(row, parts[0])
        if self._reallocate(location):
            return PlanChange(tuple(self._evacuate(location)), before, self.cost)
        self._take_off(row)
        moved = self._place(row)
        return PlanChange(tuple(moved), before, self.cost)

    def check(self) -> None:
        """Assert that each workload is on one GPU, within 100%, and meets its SLO there."""
        seen: list[int] = []
        for fleet in self.fleets:
            used = np.flatnonzero(fleet.used)
            assert (fleet.used == fleet.units.sum(axis=1)).all()
            assert (fleet.used <= fleet.tables.kind.whole).all()
            allocation = fleet.tables.allocate(fleet.members[used], fleet.units[used])
            assert allocation.fits.all()
            assert (allocation.units == fleet.units[used]).all()
            seen += [row for gpu in used for row in fleet.rows_of(int(gpu))]
        assert sorted(seen) == sorted(row for rows in self._rows.values() for row in rows)

    def _parts(self, workload: Workload) -> list[Workload]:
        """Return the checked workload, split where it exceeds a GPU."""
        check_workloads([workload], self._kinds)
        model = INTERFERENCE_MODELS[self._options.model]
        return split_workloads([workload], self._kinds, model, self._options.margin)

    def _rows_of(self, name: str) -> list[int]:
        if name not in self._rows:
            raise ProvisioningError(f"workload {name!r}: got an unknown name, wanted one of the plan")
        return self._rows[name]

    def _new_row(self, part: Workload) -> int:
        """Return a row of the tables for the workload."""
        if self._free_rows:
            row = self._free_rows.pop()
            for fleet in self.fleets:
                fleet.tables.replace(row, part)
            return row
        for fleet in self.fleets:
            fleet.tables.append([part])
        return len(self.fleets[0].tables.workloads) - 1

    def _place(self, row: int) -> list[str]:
        """Put a workload on an open GPU, make room for it by one move, or open a GPU. Return the workloads moved."""
        if self._place_open(row):
            return []
        for place, fleet in enumerate(self.fleets):
            for gpu in np.argsort(fleet.used, kind="stable")[:EXCHANGES_LIMIT]:
                if fleet.used[gpu] and (other := self._exchange(row, Location(place, int(gpu)))) is not None:
                    return [fleet.tables.workloads[other].name]
        place = cheapest_type(self.fleets, row)
        self._locations[row] = Location(place, self.fleets[place].open_gpu(row))
        return []

    def _place_open(self, row: int, without: Location | None = None) -> bool:
        """Put a workload on the open GPU that it fills most, of the type where its share costs least."""
        best: tuple[float, Location, Index, Index] | None = None
        for place, fleet in enumerate(self.fleets):
            left_out = without.gpu if without is not None and without.fleet == place else -1
            candidates = fleet.candidates(row, without=left_out)
            if not len(candidates.gpus):
                continue
            choice = fullest(candidates, fleet)
            cost = float(candidates.added[choice]) / fleet.tables.kind.whole * fleet.price
            if best is None or cost < best[0]:
                location = Location(place, int(candidates.gpus[choice]))
                best = (cost, location, candidates.members[choice], candidates.units[choice])
        if best is None:
            return False
        _, location, members, units = best
        self.fleets[location.fleet].set_gpu(location.gpu, members, units)
        self._locations[row] = location
        return True

    def _exchange(self, row: int, location: Location) -> int | None:
        """Put a workload in the place of another that fits on some other open GPU. Return the other."""
        fleet = self.fleets[location.fleet]
        rows = fleet.rows_of(location.gpu)
        smallest = sorted(rows, key=lambda other: int(fleet.tables.least[other]))
        for other in smallest:
            kept = np.array([*(kept for kept in rows if kept != other), row], np.intp)
            allocation = fleet.tables.allocate(kept[None], fleet.tables.least[kept][None])
            if allocation.fits[0] and self._place_open(other, without=location):
                fleet.set_gpu(location.gpu, kept, allocation.units[0])
                self._locations[row] = location
                return other
        return None

    def _take_off(self, row: int) -> Location:
        """Take a workload off its GPU."""
        location = self._locations.pop(row)
        self.fleets[location.fleet].remove(row, location.gpu)
        return location

    def _reallocate(self, location: Location) -> bool:
        """Give the workloads of a GPU the least shares that meet their SLOs. Return False if there are none."""
        fleet = self.fleets[location.fleet]
        rows = np.array(fleet.rows_of(location.gpu), np.intp)
        allocation = fleet.tables.allocate(rows[None], fleet.tables.least[rows][None])
        if allocation.fits[0]:
            fleet.set_gpu(location.gpu, rows, allocation.units[0])
        return bool(allocation.fits[0])

    def _evacuate(self, location: Location) -> list[str]:
        """Move the workloads off a GPU if they are few and all fit elsewhere. Return the workloads moved."""
        fleet = self.fleets[location.fleet]
        rows = fleet.rows_of(location.gpu)
        if not 0 < len(rows) <= EVACUATED_LIMIT:
            return []
        saved = [(kept, kept.members.copy(), kept.units.copy(), kept.used.copy()) for kept in self.fleets]
        locations = {row: self._locations[row] for row in rows}
        for row in rows:
            if not self._place_open(row, without=location):
                for kept, members, units, used in saved:
                    kept.members, kept.units, kept.used = members, units, used
                self._locations |= locations
                return []
        fleet.set_gpu(location.gpu, np.zeros(0, np.intp), np.zeros(0, np.intp))
        return [fleet.tables.workloads[row].name for row in rows]
