"""Layouts: devices with the shares of stages on them, and changes of a layout that keep its devices.

A V100 that two stages share, and the same layout in one phrase:

    (PlannedDevice("v100", (StageShare("fast", 40.0, 8), StageShare("slow", 60.0, 8))),)
    1 x v100 (fast 40% batch 8, slow 60% batch 8)

Its changes, for batch sizes 4 and 8:

    transfers of 10%   fast 30%, slow 70%            fast 50%, slow 50%
    batch changes      fast batch 4, slow batch 8    fast batch 8, slow batch 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_planning.plan import WHOLE_PERCENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from horologe_planning.hardware import HardwareType
    from horologe_planning.plan import Placement


LEAST_PERCENT = 10.0
"""Smallest share. iGniter measured no smaller ones."""
SHARES_LIMIT = int(WHOLE_PERCENT / LEAST_PERCENT)
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
        return len(self.shares) == 1 and self.shares[0].percent == WHOLE_PERCENT

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
        PlannedDevice(stage.hardware, (StageShare(stage.stage, WHOLE_PERCENT, stage.max_batch),))
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
    if len(weights) > SHARES_LIMIT:
        raise ValueError(f"shares of a device: got {len(weights)}, wanted at most {SHARES_LIMIT}")
    if not weights:
        return {}
    percent = dict.fromkeys(weights, LEAST_PERCENT)
    steps = round((WHOLE_PERCENT - LEAST_PERCENT * len(weights)) / STEP_PERCENT)
    total = sum(weights.values())
    for _ in range(steps):
        # The share that is furthest below its part of the device gets the next step.
        neediest = min(percent, key=lambda key: (percent[key] - WHOLE_PERCENT * weights[key] / total, key))
        percent[neediest] += STEP_PERCENT
    return percent


def batch_changes(layout: Layout, sizes_of: Callable[[str, str], Sequence[int]]) -> Iterator[Layout]:
    """Yield the layout with another batch size of a stage on all devices of a type. `sizes_of`: of hardware, stage."""
    present = {(device.hardware, share.stage): share.batch for device in layout for share in device.shares}
    for (hardware, stage), batch in sorted(present.items()):
        for size in sizes_of(hardware, stage):
            if size != batch:
                yield make_layout(
                    device._replace(shares=_with_batch(device.shares, stage, size))
                    if device.hardware == hardware
                    else device
                    for device in layout
                )


def _with_batch(shares: Iterable[StageShare], stage: str, size: int) -> tuple[StageShare, ...]:
    return tuple(share._replace(batch=size) if share.stage == stage else share for share in shares)


def transfers(layout: Layout, percent: float) -> Iterator[Layout]:
    """Yield the layout with `percent` of a device taken from one share and given to another.

    Equal devices are changed together, and one of them alone.
    """
    for device in sorted(set(layout)):
        for giver in range(len(device.shares)):
            if device.shares[giver].percent - percent < LEAST_PERCENT:
                continue
            for taker in range(len(device.shares)):
                if taker != giver and device.shares[taker][0::2] != device.shares[giver][0::2]:
                    shares = list(device.shares)
                    shares[giver] = shares[giver]._replace(percent=shares[giver].percent - percent)
                    shares[taker] = shares[taker]._replace(percent=shares[taker].percent + percent)
                    yield from _replaced(layout, device, device._replace(shares=tuple(shares)))


def placements(layout: Layout, can_share: Callable[[str, str], bool]) -> Iterator[Layout]:
    """Yield the layout with a share added, removed, or moved to another device. `can_share`: hardware and stage.

    The shares of a changed device are scaled to the whole device. A stage has one share of a device: they would have
    one queue, and the tuner knows a share by its stage and device.
    """
    stages = {share.stage: share.batch for device in layout for share in device.shares}
    for device in sorted(set(layout)):
        mean = device.percent / len(device.shares)
        for stage, batch in sorted(stages.items()):
            if _has_room(device, stage, can_share):
                added = StageShare(stage, mean, batch)
                yield from _replaced(layout, device, _filled(device.hardware, (*device.shares, added)))
        for place, share in enumerate(device.shares):
            if can_share(device.hardware, share.stage):
                left = _filled(device.hardware, (*device.shares[:place], *device.shares[place + 1 :]))
                yield from _replaced(layout, device, left)
                rest = _without(layout, device)
                for other in sorted(set(rest)):
                    if _has_room(other, share.stage, can_share):
                        target = _filled(other.hardware, (*other.shares, share))
                        yield make_layout((*_without(rest, other), left, target))


def _has_room(device: PlannedDevice, stage: str, can_share: Callable[[str, str], bool]) -> bool:
    """Return whether a device can have a share of a stage that it has not."""
    others = {share.stage for share in device.shares}
    return (
        all(can_share(device.hardware, name) for name in (stage, *others))
        and stage not in others
        and (len(others) < SHARES_LIMIT)
    )


def _filled(hardware: str, shares: Sequence[StageShare]) -> PlannedDevice:
    percent = fill_device({place: share.percent for place, share in enumerate(shares)})
    filled = tuple(share._replace(percent=percent[place]) for place, share in enumerate(shares))
    return PlannedDevice(hardware, filled)


def _replaced(layout: Layout, device: PlannedDevice, changed: PlannedDevice) -> Iterator[Layout]:
    """Yield the layout with one of the equal devices changed, and with all of them changed."""
    yield make_layout((*_without(layout, device), changed))
    if layout.count(device) > 1:
        yield make_layout(changed if other == device else other for other in layout)


def _without(layout: Sequence[PlannedDevice], device: PlannedDevice) -> list[PlannedDevice]:
    """Return the layout without one of the devices that are equal to this one."""
    rest = list(layout)
    rest.remove(device)
    return rest
