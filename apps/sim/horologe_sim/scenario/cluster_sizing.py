"""How many devices a scenario needs: doubled until the target is reached, then bisected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import HorologeError
from horologe_sim.scenario import scenario as scenarios

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_sim.report.report import Report
    from horologe_sim.scenario.scenario import Scenario

MOST_DEVICES = 1024


class SizingRun(msgspec.Struct, frozen=True):
    """One run of the search. Shares are between 0 and 1."""

    devices: int
    attainment: float
    goodput: float
    utilisation: float
    cold_share: float


class ClusterSize(msgspec.Struct, frozen=True):
    """The fewest devices that reach the target, the report of that run, and every run on the way."""

    target: float
    devices: int
    report: Report
    probes: tuple[SizingRun, ...]


def find_cluster_size(
    scenario: Scenario, target: float, progress: Callable[[float, str], None] | None = None
) -> ClusterSize:
    """The fewest devices with which at least `target` (a share) of the requests is answered in time.

    Raises `HorologeError` where not even `MOST_DEVICES` do: more devices do not help what one alone is too slow for.
    """
    reports: dict[int, Report] = {}

    def reached(devices: int) -> bool:
        what = f"{devices} device{'s' if devices > 1 else ''}"
        told = (lambda done: progress(done, what)) if progress else None
        reports[devices] = scenarios.run_scenario(msgspec.structs.replace(scenario, workers=devices), progress=told)
        return reports[devices].attainment >= target

    most = 1
    while not reached(most):
        last = reports.get(most // 2)
        if most >= MOST_DEVICES or (last and reports[most].attainment <= last.attainment and most > 4):
            best = max(report.attainment for report in reports.values())
            raise HorologeError(f"target: got {target:.3%}, wanted at most what {most} devices reach: {best:.3%}")
        most *= 2
    least = most // 2 + 1
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if reached(middle) else (middle + 1, most)
    return ClusterSize(
        target, most, reports[most], tuple(_sizing_run(devices, reports[devices]) for devices in sorted(reports))
    )


def _sizing_run(devices: int, report: Report) -> SizingRun:
    total = report.total
    cold = round(total.cold / max(1, total.sent), 5)
    return SizingRun(devices, round(report.attainment, 6), total.goodput, round(report.utilisation, 4), cold)
