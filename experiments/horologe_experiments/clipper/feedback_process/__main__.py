"""A process with the half in it: reads an `Order` from standard input, and writes what it has found, or acknowledged.

python -m horologe_experiments.clipper.feedback_process < order.json
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import Status
from horologe_experiments.clipper.feedback_process.feedback_load import Load, Play
from horologe_experiments.clipper.feedback_process.harness import Half
from horologe_selector.settings import SelectorSettings

if TYPE_CHECKING:
    from horologe_common.wire import Acknowledged

OK = int(Status.OK)


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    load: Load
    settings: SelectorSettings
    seed: int
    cached: bool
    outstanding: int
    """Lists that wait for their acknowledgement at a time."""
    core: int
    """To run on, keeper and all; -1: any."""
    alone: bool = False
    """At real-time priority where that is permitted: other programs do not share the core."""
    tell: bool = False
    """Write the number of each list that is acknowledged, one a line, at once."""


class Found(msgspec.Struct, frozen=True):
    seconds: float
    observations: int
    not_ok: int
    took_ns: list[int]
    """From the packet of each list to that of its acknowledgement."""
    cpu_s: float
    groups: int
    changes: int
    write_ns: list[int]
    predict_ns: float
    """A prediction of one stub model, measured by itself."""
    bytes_resident: int


class Meter:
    """When each list was sent and acknowledged."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.sent_ns: dict[int, int] = {}
        self.took_ns: dict[int, int] = {}
        self.not_ok = 0

    def told(self, message: Acknowledged) -> None:
        """An acknowledgement."""
        self.took_ns[message.id] = time.perf_counter_ns() - self.sent_ns[message.id]
        self.not_ok += sum(status != OK for status in message.statuses)
        if self.order.tell and not any(message.statuses):
            os.write(1, b"%d\n" % message.id)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if order.core >= 0:
        os.sched_setaffinity(0, {order.core})
    if order.alone:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    play = Play(order.load, order.seed)
    meter = Meter(order)
    half = Half(play, order.settings, meter.told)
    half.remember(order.cached)
    packets = list(play.lists(inputs=not order.cached))
    first = order.load.unmeasured // order.load.list
    half.start()
    _run(half, meter, packets[:first], 0)
    meter.took_ns.clear()
    half.store.groups.clear()
    begin, cpu = time.perf_counter(), time.process_time()
    _run(half, meter, packets[first:], first)
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    found = Found(
        seconds,
        order.load.observations - first * order.load.list,
        meter.not_ok,
        sorted(meter.took_ns.values()),
        cpu_s,
        len(half.store.groups),
        sum(count for count, _ in half.store.groups),
        sorted(took_ns for _, took_ns in half.store.groups),
        _predict_ns(play),
        _resident(),
    )
    half.contexts.check()
    half.feedback.check()
    half.keeper.stop()
    if not order.tell:
        sys.stdout.buffer.write(msgspec.json.encode(found))


def _run(half: Half, meter: Meter, packets: list[bytes], first: int) -> None:
    """Keep so many lists outstanding until all are acknowledged."""
    outstanding, sent = meter.order.outstanding, 0
    before = len(meter.took_ns)
    while (done := len(meter.took_ns) - before) < len(packets):
        if sent < len(packets) and sent - done < outstanding:
            meter.sent_ns[first + sent] = time.perf_counter_ns()
            half.tell(packets[sent])
            sent += 1
        else:
            half.wait()


def _predict_ns(play: Play) -> float:
    places = list(range(min(play.load.list, play.load.inputs)))
    begin_ns = time.perf_counter_ns()
    for _ in range(20):
        play.predict(places)
    return (time.perf_counter_ns() - begin_ns) / (20 * len(places) * len(play.models))


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    main()
