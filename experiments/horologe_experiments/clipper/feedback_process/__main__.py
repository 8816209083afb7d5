"""The process of the feedback experiment: reads an `Order` from standard input and writes a `Measurement`.

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
from horologe_experiments.clipper.feedback_process.feedback_load import FeedbackLoad, LoadSettings
from horologe_experiments.clipper.feedback_process.harness import FeedbackProcess
from horologe_selector.settings import SelectorSettings

if TYPE_CHECKING:
    from horologe_common.wire import Acknowledged

OK = int(Status.OK)
TIMED_PREDICTIONS = 20


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the measurement."""

    load: LoadSettings
    settings: SelectorSettings
    seed: int
    cached: bool
    outstanding: int
    """Lists in flight at a time."""
    core: int
    """Processor core for all threads; -1: any."""
    alone: bool = False
    """Use real-time priority if that is permitted: other programs do not share the core."""
    print_acknowledged: bool = False
    """Print the number of each acknowledged list, one a line, at once."""


class Measurement(msgspec.Struct, frozen=True):
    """Result of the measurement."""

    seconds: float
    observations: int
    not_ok: int
    took_ns: list[int]
    """Time from the packet of each list to its acknowledgement, sorted."""
    cpu_s: float
    groups: int
    changes: int
    write_ns: list[int]
    predict_ns: float
    """Time of a prediction by one stub model, measured alone."""
    bytes_resident: int


class AcknowledgementMeter:
    """The time from each list to its acknowledgement."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.sent_ns: dict[int, int] = {}
        self.took_ns: dict[int, int] = {}
        self.not_ok = 0

    def record_acknowledgement(self, message: Acknowledged) -> None:
        """Record an acknowledgement, and print its number if the order asks for that."""
        self.took_ns[message.id] = time.perf_counter_ns() - self.sent_ns[message.id]
        self.not_ok += sum(status != OK for status in message.statuses)
        if self.order.print_acknowledged and not any(message.statuses):
            os.write(1, b"%d\n" % message.id)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if order.core >= 0:
        os.sched_setaffinity(0, {order.core})
    if order.alone:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    load = FeedbackLoad(order.load, order.seed)
    meter = AcknowledgementMeter(order)
    process = FeedbackProcess(load, order.settings, meter.record_acknowledgement)
    process.record_answers(order.cached)
    packets = list(load.lists(inputs=not order.cached))
    first = order.load.unmeasured // order.load.list
    process.start()
    _send_lists(process, meter, packets[:first], 0)
    meter.took_ns.clear()
    process.store.groups.clear()
    begin, cpu = time.perf_counter(), time.process_time()
    _send_lists(process, meter, packets[first:], first)
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    groups = process.store.groups
    measurement = Measurement(
        seconds,
        order.load.observations - first * order.load.list,
        meter.not_ok,
        sorted(meter.took_ns.values()),
        cpu_s,
        len(groups),
        sum(count for count, _ in groups),
        sorted(took_ns for _, took_ns in groups),
        _time_prediction_ns(load),
        _bytes_resident(),
    )
    process.core.contexts.check()
    process.core.feedback.check()
    process.store_writer.stop()
    if not order.print_acknowledged:
        sys.stdout.buffer.write(msgspec.json.encode(measurement))


def _send_lists(process: FeedbackProcess, meter: AcknowledgementMeter, packets: list[bytes], first: int) -> None:
    """Keep `outstanding` lists in flight until all are acknowledged."""
    outstanding, sent = meter.order.outstanding, 0
    before = len(meter.took_ns)
    while (acknowledged := len(meter.took_ns) - before) < len(packets):
        if sent < len(packets) and sent - acknowledged < outstanding:
            meter.sent_ns[first + sent] = time.perf_counter_ns()
            process.handle_packet(packets[sent])
            sent += 1
        else:
            process.handle_store_replies()


def _time_prediction_ns(load: FeedbackLoad) -> float:
    places = list(range(min(load.settings.list, load.settings.inputs)))
    begin_ns = time.perf_counter_ns()
    for _ in range(TIMED_PREDICTIONS):
        load.predict(places)
    return (time.perf_counter_ns() - begin_ns) / (TIMED_PREDICTIONS * len(places) * len(load.models))


def _bytes_resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    main()
