"""Faults of a simulation, at times after the start of the load: processes and devices that are lost, stall or slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec

from horologe_common.clock import ms, s
from horologe_sim.engine.number_types import Duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_sim.engine.event_queue import EventQueue

STALL_NS = ms(100)
"""Default duration of a stall or a cut."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[faults]]`: a fault of a process. `at_ns` is relative to the start of the load."""

    at_ns: Duration
    process: str
    """edge, frontend, selector, controller, profiler, client, worker/N, or driver/NAME, which can only be killed."""
    kind: Literal["kill", "stall", "slow", "cut"] = "kill"
    restart_ns: Duration = s(1)
    """kill: time until the process restarts. 0: never."""
    for_ns: Duration | None = None
    """stall, cut, slow: duration. Without one: 100 ms for a stall or a cut, and until the end for slow."""
    factor: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3.0
    """slow: factor on the execution times of the worker's device."""
    void: bool = False
    """kill: packets in flight from the process are lost as well."""

    @property
    def worker(self) -> int:
        """Return the number of the worker. Raises ValueError if it is not a fault of a worker."""
        return int(self.process.removeprefix("worker/"))

    @property
    def duration_ns(self) -> int:
        """Return the duration of a stall, a cut, or a slowness that is not for ever."""
        return STALL_NS if self.for_ns is None else self.for_ns

    @property
    def until_ns(self) -> int:
        """Return the end of a fault that is not for ever."""
        return self.at_ns + (self.restart_ns if self.kind == "kill" else self.duration_ns)


class FaultyWorld(Protocol):
    """A world that can have faults. `slow` sets the factor on the times of a worker's device."""

    @property
    def events(self) -> EventQueue: ...
    def kill(self, name: str, *, void: bool = False) -> None: ...
    def start(self, name: str) -> None: ...
    def slow(self, name: str, factor: float) -> None: ...
    def stall(self, name: str, for_ns: int) -> None: ...
    def cut(self, name: str, for_ns: int) -> None: ...


def schedule_faults(world: FaultyWorld, faults: Iterable[Fault], begin_ns: int) -> None:
    """Schedule faults before a run, whose load starts at `begin_ns`. Those of one process must not overlap."""
    for fault in faults:
        world.events.schedule(begin_ns + fault.at_ns, _begin, world, fault)


def _begin(world: FaultyWorld, fault: Fault) -> None:
    events = world.events
    match fault.kind:
        case "stall":
            world.stall(fault.process, fault.duration_ns)
        case "cut":
            world.cut(fault.process, fault.duration_ns)
        case "slow":
            world.slow(fault.process, fault.factor)
            if fault.for_ns is not None:
                events.schedule(events.now_ns + fault.for_ns, world.slow, fault.process, 1.0)
        case "kill":
            world.kill(fault.process, void=fault.void)
            if fault.restart_ns:
                events.schedule(events.now_ns + fault.restart_ns, world.start, fault.process)
