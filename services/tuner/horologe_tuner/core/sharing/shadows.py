"""Sizes of shadows: what is left of each device, and the larger standby share of each workload there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_tuner.core.sharing.targets import ROUNDING, WHOLE, percent_by_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_tuner.core.sharing.running_workload import RunningWorkload
    from horologe_tuner.core.sharing.shadow_rules import ShadowRules
    from horologe_tuner.core.sharing.targets import DeviceShare


def percent_left(workloads: Iterable[RunningWorkload]) -> dict[str, float]:
    """Return the percent of each device that no active share has. Room that a move needs counts as taken."""
    running = list(workloads)
    active = percent_by_device(share for workload in running for share in workload.active())
    planned = percent_by_device(share for workload in running for share in workload.target.shares)
    return {device: WHOLE - max(active.get(device, 0.0), planned.get(device, 0.0)) for device in (active | planned)}


def find_shadow(share: DeviceShare, left: Mapping[str, float], rules: ShadowRules) -> DeviceShare | None:
    """Return the shadow of an active share: min(10%, what is left of the device) larger. None without room."""
    room = min(rules.extra_percent, left[share.device])
    steps = int((room + ROUNDING) / rules.unit_percent)
    return share.resized(share.percent + steps * rules.unit_percent) if steps > 0 else None


def collect_shadows(
    workloads: Iterable[RunningWorkload], left: Mapping[str, float], rules: ShadowRules
) -> dict[DeviceShare, DeviceShare]:
    """Return the shadow of each active share that has room for one. A workload that moves has none."""
    shadows = {}
    for workload in workloads:
        for share in workload.active() if not workload.is_moving else ():
            if (shadow := find_shadow(share, left, rules)) is not None:
                shadows[share] = shadow
    return shadows
