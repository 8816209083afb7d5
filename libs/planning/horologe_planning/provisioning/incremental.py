"""Change the workloads of a running plan with few moves: arrivals, departures, changes of rates.

`ssd` and `alexnet` are on `v100-1`, `vgg19` and `resnet50` on `v100-2`. When `ssd` leaves, `alexnet` moves to `v100-2`,
and the cost falls from $6.12 to $3.06 per hour. When `alexnet` there grows from 500 to 900 requests per second, its
share grows from 12.5% to 15% in place.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING

import msgspec

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_planning.provisioning.device_shares import shares_by_device
from horologe_planning.provisioning.occupancy import Occupancy
from horologe_planning.provisioning.placement import GpuPlace, split_workloads
from horologe_planning.provisioning.provisioner import empty_fleets, place_all, plan_of, with_report
from horologe_planning.provisioning.workloads import (
    DEFAULT_OPTIONS,
    ProvisioningError,
    ProvisioningOptions,
    Workload,
    check_workloads,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_planning.plan import Plan
    from horologe_planning.provisioning.workloads import GpuType
    from horologe_planning.report import SharedPlans


RATE_DIFFERENCE = 1e-6
"""Relative difference of rates that counts as a change. Rates of parts add up to the rate only to rounding."""


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
        self.occupancy = Occupancy(self.fleets)
        self._rows: dict[str, list[int]] = {}
        self._devices: dict[GpuPlace, str] = {}
        """Ids of the GPUs of an earlier plan."""
        for row, workload in enumerate(self.fleets[0].tables.workloads):
            self._rows.setdefault(workload.name, []).append(row)

    @classmethod
    def resume(
        cls,
        plans: Sequence[Plan],
        workloads: Sequence[Workload],
        kinds: Sequence[GpuType],
        options: ProvisioningOptions = DEFAULT_OPTIONS,
    ) -> RunningProvision:
        """Return the provision with the GPUs of plans, for those workloads that are in `workloads`.

        A share keeps its part of the workload's rate, and gets the model, the SLO and the batch sizes of `workloads`. A
        workload that no longer fits on its GPUs is left out.
        """
        check_workloads(workloads, kinds)
        running, wanted = cls((), kinds, options), {workload.name: workload for workload in workloads}
        places = {kind.gpu.name: place for place, kind in enumerate(kinds)}
        devices = shares_by_device(planned for planned in plans if planned.name in wanted)
        parts = [
            msgspec.structs.replace(wanted[share.workload], rate=share.rate)
            for shares in devices.values()
            for share in shares
        ]
        for fleet in running.fleets:
            fleet.tables.append(parts)
        for row, part in enumerate(parts):
            running._rows.setdefault(part.name, []).append(row)
        rows = iter(range(len(parts)))
        for device, shares in devices.items():
            own, hardware = list(islice(rows, len(shares))), shares[0].placement.hardware
            if hardware in places and (location := running.occupancy.fill_gpu(places[hardware], own)):
                running._devices[location] = device
        placed = running.occupancy.locations
        for name in [name for name, rows in running._rows.items() if not placed.keys() >= set(rows)]:
            for row in running._rows.pop(name):
                if row in placed:
                    running.occupancy.take_off(row)
        return running

    def rate(self, name: str) -> float:
        """Return the requests per second of a workload, 0 for a name that is not placed."""
        return sum(self.fleets[0].tables.workloads[row].rate for row in self._rows.get(name, ()))

    def plan(self) -> SharedPlans:
        """Return the present plans. GPUs of earlier plans keep their ids, others get the next free number."""
        taken, devices = set(self._devices.values()), list[list[str]]([] for _ in self.fleets)
        for location in self.occupancy.used_gpus():
            if location not in self._devices:
                hardware = self.fleets[location.fleet].tables.kind.gpu.name
                names = (f"{hardware}-{number}" for number in count(1))
                self._devices[location] = next(name for name in names if name not in taken)
                taken.add(self._devices[location])
            devices[location.fleet].append(self._devices[location])
        return plan_of(self.fleets, devices=devices)

    def add(self, workload: Workload) -> list[str]:
        """Place a workload that arrives, and return the others that moved.

        Raises ProvisioningError and changes nothing if it is invalid.
        """
        if workload.name in self._rows:
            raise ProvisioningError(f"workload {workload.name!r}: got the name twice, wanted each once")
        moved: list[str] = []
        for part in self._parts(workload):
            row = self._new_row(part)
            self._rows.setdefault(part.name, []).append(row)
            moved += self.occupancy.place(row)
        return moved

    def remove(self, name: str) -> list[str]:
        """Take a workload off that leaves, and empty its GPU where few workloads are left on it.

        Return the others that moved.
        """
        moved: list[str] = []
        for row in self._rows_of(name):
            location = self.occupancy.take_off(row)
            moved += self.occupancy.evacuate(location)
        del self._rows[name]
        return moved

    def change_rate(self, name: str, rate: float) -> list[str]:
        """Give a workload another rate in requests per second, on its GPU if it still fits. Return the others moved."""
        rows = self._rows_of(name)
        old = self.fleets[0].tables.workloads[rows[0]]
        parts = self._parts(msgspec.structs.replace(old, rate=rate))
        if len(rows) > 1 or len(parts) > 1:
            return self.remove(name) + self.add(msgspec.structs.replace(old, rate=rate))
        (row,) = rows
        location = self.occupancy.locations[row]
        for fleet in self.fleets:
            fleet.tables.replace(row, parts[0])
        if self.occupancy.reallocate(location):
            return self.occupancy.evacuate(location)
        self.occupancy.take_off(row)
        return self.occupancy.place(row)

    def check(self) -> None:
        """Assert that each workload is placed with all its parts, and meets its SLO within 100% of each GPU."""
        self.occupancy.check()
        assert sorted(self.occupancy.locations) == sorted(row for rows in self._rows.values() for row in rows)

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
        for fleet in self.fleets:
            fleet.tables.append([part])
        return len(self.fleets[0].tables.workloads) - 1


def update_plan(
    plans: Sequence[Plan],
    workloads: Sequence[Workload],
    kinds: Sequence[GpuType],
    options: ProvisioningOptions = DEFAULT_OPTIONS,
    margin: float = 0.0,
) -> tuple[SharedPlans, tuple[str, ...]]:
    """Return the plans for `workloads` that keep shares on their GPUs where they fit, and the workloads that moved.

    They keep the `margin` of the earlier plans, or have the one that is wanted if that is cheaper. Raises
    ProvisioningError as `provision` does.
    """
    margins = sorted({options.margin, max(options.margin, margin)}, reverse=True)
    found = []
    for wanted in margins:
        try:
            found.append(_updated(plans, workloads, kinds, msgspec.structs.replace(options, margin=wanted)))
        except ProvisioningError:
            if wanted == options.margin:
                raise
    changed = min(found, key=lambda plan: round(plan.report.cost_per_hour, 6))
    before, after = _devices(plans), _devices(changed.plans)
    return changed, tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name]))


def _updated(
    plans: Sequence[Plan], workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions
) -> SharedPlans:
    running = RunningProvision.resume(plans, workloads, kinds, options)
    for workload in workloads:
        rate = running.rate(workload.name)
        if not rate:
            running.add(workload)
        elif abs(rate - workload.rate) > RATE_DIFFERENCE * workload.rate:
            running.change_rate(workload.name, workload.rate)
    running.occupancy.consolidate()
    return with_report(running.plan(), margin=options.margin)


def _devices(plans: Iterable[Plan]) -> dict[str, set[str]]:
    return {plan.name: {placement.device for placement in plan.shares} for plan in plans}
