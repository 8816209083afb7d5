"""Workers of shares: each size of a placement on a device has a worker process with a name. Sizes of shadows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_planning.plan import ROUNDING, WHOLE_PERCENT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from horologe_planning.plan import Placement
    from horologe_tuner.core.standby.running_stage import RunningStage
    from horologe_tuner.core.standby.shadow_rules import ShadowRules


DEVICE_LENGTH = 12
"""Characters of the end of a device's id in the name of a worker."""


def worker_name(placement: Placement) -> str:
    """Return the instance name of the share's worker."""
    return f"{placement.stage}.{placement.device[-DEVICE_LENGTH:]}.{round(placement.percent * 10)}"


def place_of(placement: Placement) -> tuple[str, str]:
    """Return stage and device: what stays when the share is resized."""
    return placement.stage, placement.device


def resized(placement: Placement, percent: float) -> Placement:
    """Return the share with another size, for which no times are predicted."""
    return msgspec.structs.replace(placement, percent=percent, exec_ns=())


def percent_by_device(placements: Iterable[Placement]) -> dict[str, float]:
    """Return the sum of the shares of each device."""
    totals: dict[str, float] = {}
    for placement in placements:
        totals[placement.device] = totals.get(placement.device, 0.0) + placement.percent
    return totals


def find_shadows(stages: Collection[RunningStage], rules: ShadowRules) -> dict[str, Placement]:
    """Return the shadow of each active share, min(10%, what is left of the device) larger, by the share's worker.

    Room that a move needs counts as taken. A stage that moves has no shadow, nor a share on a device without room.
    """
    active = percent_by_device(share for stage in stages for share in stage.active())
    planned = percent_by_device(share for stage in stages for share in stage.target.shares)
    shadows = {}
    for stage in stages:
        for share in stage.active() if not stage.is_moving else ():
            taken = max(active.get(share.device, 0.0), planned.get(share.device, 0.0))
            steps = int((min(rules.extra_percent, WHOLE_PERCENT - taken) + ROUNDING) / rules.unit_percent)
            if steps > 0:
                shadows[worker_name(share)] = resized(share, share.percent + steps * rules.unit_percent)
    return shadows
