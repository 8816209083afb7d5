"""Changes of a layout that keep its devices: batch sizes, sizes of shares, and where the shares are.

For one V100 with `fast` 40% batch 8 and `slow` 60% batch 8, and batch sizes 4 and 8:

    transfers of 10%   fast 30%, slow 70%            fast 50%, slow 50%
    batch changes      fast batch 4, slow batch 8    fast batch 8, slow batch 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.joint_planning.layouts import (
    LEAST_PERCENT,
    WHOLE,
    Layout,
    PlannedDevice,
    StageShare,
    fill_device,
    make_layout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SHARES_LIMIT = int(WHOLE / LEAST_PERCENT)


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
