"""Finds the number of devices that a scenario needs: doubles it until the target is reached, then bisects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import HorologeError
from horologe_sim.scenario import scenario as scenarios

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_sim.report.report import Report
    from horologe_sim.scenario.scenario import Scenario

MAX_DEVICES = 1024


class SizingRun(msgspec.Struct, frozen=True):
    """One run of the search. `attainment`, `utilisation` and `cold_share` are between 0 and 1."""

    devices: int
    attainment: float
    goodput: float
    utilisation: float
    cold_share: float


class ClusterSize(msgspec.Struct, frozen=True):
    """The fewest devices that reach the target, the report of that run, and all runs of the search."""

    target: float
    devices: int
    report: Report
    probes: tuple[SizingRun, ...]


def find_cluster_size(
    scenario: Scenario, target: float, progress: Callable[[float, str], None] | None = None
) -> ClusterSize:
    """Return the fewest devices that answer at least the share `target` of the requests in time.

    `progress(done, phase)` is called during each run. Raises HorologeError if `MAX_DEVICES` devices are too few, or if
    more devices do not increase attainment: a request may take longer than its SLO on any device.
    """
    reports: dict[int, Report] = {}

    def is_reached(devices: int) -> bool:
        phase = f"{devices} device{'s' if devices > 1 else ''}"
        on_progress = (lambda done: progress(done, phase)) if progress else None
        sized = msgspec.structs.replace(scenario, workers=devices)
        reports[devices] = scenarios.run_scenario(sized, progress=on_progress)
        return reports[devices].attainment >= target

    most = 1
    while not is_reached(most):
        last = reports.get(most // 2)
        if most >= MAX_DEVICES or (last and reports[most].attainment <= last.attainment and most > 4):
            best = max(report.attainment for report in reports.values())
            raise HorologeError(f"target: got {target:.3%}, wanted at most what {most} devices reach: {best:.3%}")
        most *= 2
    least = most // 2 + 1
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if is_reached(middle) else (middle + 1, most)
    return ClusterSize(
        target, most, reports[most], tuple(_sizing_run(devices, reports[devices]) for devices in sorted(reports))
    )


def _sizing_run(devices: int, report: Report) -> SizingRun:
    total = report.total
    cold = round(total.cold / max(1, total.sent), 5)
    return SizingRun(devices, round(report.attainment, 6), total.goodput, round(report.utilisation, 4), cold)
