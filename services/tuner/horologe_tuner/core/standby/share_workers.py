"""Workers of shares: each size of a placement on a device has a worker process, and a name for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_planning.plan import Placement

DEVICE_LENGTH = 12
"""Characters of the end of a device's id in the name of a worker."""


def worker_name(placement: Placement, percent: float | None = None) -> str:
    """Return the instance name of the share's worker, with the planned percent unless another is given."""
    size = placement.percent if percent is None else percent
    return f"{placement.stage}.{placement.device[-DEVICE_LENGTH:]}.{round(size * 10)}"


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
