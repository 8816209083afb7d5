"""Sizes of shadows: what is left of each device, and the larger standby share of each stage there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.plan import ROUNDING, WHOLE_PERCENT
from horologe_tuner.core.standby.share_workers import percent_by_device, resized, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_planning.plan import Placement
    from horologe_tuner.core.standby.running_stage import RunningStage
    from horologe_tuner.core.standby.shadow_rules import ShadowRules


def percent_left(stages: Iterable[RunningStage]) -> dict[str, float]:
    """Return the percent of each device that no active share has. Room that a move needs counts as taken."""
    running = list(stages)
    active = percent_by_device(share for stage in running for share in stage.active())
    planned = percent_by_device(share for stage in running for share in stage.target.shares)
    return {
        device: WHOLE_PERCENT - max(active.get(device, 0.0), planned.get(device, 0.0)) for device in (active | planned)
    }


def find_shadow(share: Placement, left: Mapping[str, float], rules: ShadowRules) -> Placement | None:
    """Return the shadow of an active share: min(10%, what is left of the device) larger. None without room."""
    room = min(rules.extra_percent, left[share.device])
    steps = int((room + ROUNDING) / rules.unit_percent)
    return resized(share, share.percent + steps * rules.unit_percent) if steps > 0 else None


def collect_shadows(
    stages: Iterable[RunningStage], left: Mapping[str, float], rules: ShadowRules
) -> dict[str, Placement]:
    """Return the shadow of each active share that has room for one, by the worker of the active share.

    A stage that moves has none.
    """
    shadows = {}
    for stage in stages:
        for share in stage.active() if not stage.is_moving else ():
            if (shadow := find_shadow(share, left, rules)) is not None:
                shadows[worker_name(share)] = shadow
    return shadows
