"""Faults of devices in the fast world: a device becomes slower for a while, or is lost and comes back empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_sim.fast.fast_world import device_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_sim.fast.fast_world import FastWorld


class DeviceFault(NamedTuple):
    """A device takes `slowness` times as long from `from_ns` to `until_ns` after the start of the load.

    `slowness` 0: it is lost then, with what it holds and runs.
    """

    device: int
    from_ns: int
    until_ns: int
    slowness: float = 0.0


def schedule_faults(world: FastWorld, faults: Iterable[DeviceFault]) -> None:
    """Schedule faults before a run. The faults of one device must not overlap."""
    incarnations: dict[int, int] = {}
    for fault in sorted(faults, key=lambda fault: fault.from_ns):
        incarnation = incarnations.get(fault.device, 1)
        if not fault.slowness:
            incarnations[fault.device] = incarnation + 1
        begin_ns, end_ns = (world.begin_ns + at_ns for at_ns in (fault.from_ns, fault.until_ns))
        world.schedule(begin_ns, _begin, (world, fault, incarnation))
        world.schedule(end_ns, _end, (world, fault, incarnation))


def _begin(now_ns: int, started: tuple[FastWorld, DeviceFault, int]) -> None:
    world, fault, incarnation = started
    if fault.slowness:
        world.devices[device_address(fault.device, incarnation)].slowness = fault.slowness
    else:
        world.disconnect_device(device_address(fault.device, incarnation))


def _end(now_ns: int, ended: tuple[FastWorld, DeviceFault, int]) -> None:
    world, fault, incarnation = ended
    if fault.slowness:
        world.devices[device_address(fault.device, incarnation)].slowness = 1.0
    else:
        world.connect_device(fault.device, incarnation + 1)
