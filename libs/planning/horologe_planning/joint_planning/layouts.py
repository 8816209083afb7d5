"""Layouts: devices with the shares of stages on them.

A V100 that two stages share, and the same layout in one phrase:

    (PlannedDevice("v100", (StageShare("fast", 40.0, 8), StageShare("slow", 60.0, 8))),)
    1 x v100 (fast 40% batch 8, slow 60% batch 8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_planning.hardware import HardwareType
    from horologe_planning.plan import Placement

WHOLE = 100.0
LEAST_PERCENT = 10.0
"""Smallest share. iGniter measured no smaller ones."""
STEP_PERCENT = 2.5
"""Shares are multiples of it (r_unit of iGniter section 4.1)."""


class StageShare(NamedTuple):
    """A replica of a stage: a share of a device."""

    stage: str
    percent: float
    batch: int


class PlannedDevice(NamedTuple):
    """A device of a hardware type with its shares, in ascending order."""

    hardware: str
    shares: tuple[StageShare, ...]

    @property
    def is_whole(self) -> bool:
        """True if one replica has the device for itself."""
        return len(self.shares) == 1 and self.shares[0].percent == WHOLE

    @property
    def percent(self) -> float:
        """Sum of the shares."""
        return sum(share.percent for share in self.shares)


Layout = tuple[PlannedDevice, ...]
"""Devices in ascending order, so that equal layouts are equal tuples."""


def make_layout(devices: Iterable[PlannedDevice]) -> Layout:
    """Return the devices and their shares in order, without devices that have no share."""
    return tuple(sorted(PlannedDevice(kind, tuple(sorted(shares))) for kind, shares in devices if shares))


def dedicated_layout(configuration: Iterable[Placement]) -> Layout:
    """Return the layout of a configuration of whole devices."""
    return make_layout(
        PlannedDevice(stage.hardware, (StageShare(stage.stage, WHOLE, stage.max_batch),))
        for stage in configuration
        for _ in range(stage.replicas)
    )


def layout_price(layout: Layout, hardware: Mapping[str, HardwareType]) -> float:
    """Return the dollars per hour of all devices. A device costs the same whatever part of it is used."""
    return sum(hardware[device.hardware].price_per_hour for device in layout)


def describe_layout(layout: Layout) -> str:
    """Return the layout in one phrase: "2 x v100 (fast 30% batch 8, slow 70% batch 4); 1 x cpu (...)"."""
    phrases = []
    for device in sorted(set(layout), key=lambda device: (-device.percent, device)):
        shares = ", ".join(f"{share.stage} {share.percent:g}% batch {share.batch}" for share in device.shares)
        phrases.append(f"{layout.count(device)} x {device.hardware} ({shares})")
    return "; ".join(phrases)


def fill_device(weights: Mapping[int, float]) -> dict[int, float]:
    """Return the percent of a whole device for each key in proportion to its weight, in steps of `STEP_PERCENT`.

    No share is below `LEAST_PERCENT`. Raises ValueError if there are more keys than such shares.
    """
    if len(weights) * LEAST_PERCENT > WHOLE:
        raise ValueError(f"shares of a device: got {len(weights)}, wanted at most {int(WHOLE / LEAST_PERCENT)}")
    if not weights:
        return {}
    percent = dict.fromkeys(weights, LEAST_PERCENT)
    steps = round((WHOLE - LEAST_PERCENT * len(weights)) / STEP_PERCENT)
    total = sum(weights.values())
    for _ in range(steps):
        # The share that is furthest below its part of the device gets the next step.
        neediest = min(percent, key=lambda key: (percent[key] - WHOLE * weights[key] / total, key))
        percent[neediest] += STEP_PERCENT
    return percent
