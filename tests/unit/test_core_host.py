"""Cores in a process: what one of them cannot send harms nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from horologe_common.core.hosting import FAULT_PAUSE_NS, MESSAGES_PER_PASS, CoreHost, raise_fault
from horologe_common.core.protocol import Out
from horologe_common.wire import Ping
from horologe_common.wire.frames import pack


class Links:
    """Every address has a route; what is sent is encoded and kept."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def route(self, address: str) -> str:
        return address

    def send(self, route: str, letters: Any, buffers: Any) -> None:
        pack(letters, buffers)
        self.sent.append(route)


class Says:
    """Puts out these once."""

    address = "frontend/0#1"

    def __init__(self, *outs: Out) -> None:
        self.out = list(outs)

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Any) -> None: ...

    def tick(self, now_ns: int) -> None: ...

    def wakeup_ns(self) -> int | None:
        return None


def test_a_packet_that_cannot_be_encoded_costs_only_itself() -> None:
    links, faults = Links(), list[Any]()
    says = Says(Out("a", Ping(1)), Out("b", Ping(10**30)), Out("c", Ping(1)))
    host = CoreHost([says], lambda: 0, links, lambda *fault: faults.append(fault))
    host.run_turn()
    assert links.sent == ["a", "c"]
    assert host.faults == len(faults) == 1


class Forwards:
    """Passes every message on."""

    address = "frontend/0#1"

    def __init__(self) -> None:
        self.out: list[Out] = []

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Any) -> None:
        self.out.append(Out("a", message))

    def tick(self, now_ns: int) -> None: ...

    def wakeup_ns(self) -> int | None:
        return None


def test_packets_leave_before_all_messages_of_a_long_turn_are_handled() -> None:
    links, forwards = Links(), Forwards()
    host = CoreHost([forwards], lambda: 0, links, raise_fault)
    host.run_turn([(forwards.address, "b", Ping(number), ()) for number in range(2 * MESSAGES_PER_PASS + 1)])
    assert links.sent == ["a"] * 3
    assert host.handled == 2 * MESSAGES_PER_PASS + 1


class Fails:
    """An observer that raises."""

    def observe_message(self, *_: Any) -> None:
        raise RuntimeError("observer")

    def observe_tick(self, *_: Any) -> None: ...

    def observe_call(self, *_: Any) -> None: ...

    def observe_fault(self, *_: Any) -> None: ...


def test_an_observer_that_raises_is_removed_and_every_message_handled() -> None:
    links, forwards, faults = Links(), Forwards(), list[Any]()
    host = CoreHost([forwards], lambda: 0, links, lambda *fault: faults.append(fault))
    host.observer = Fails()
    host.run_turn([(forwards.address, "b", Ping(1), ())])
    host.run_turn([(forwards.address, "b", Ping(2), ())])
    assert links.sent == ["a"] * 2
    assert host.faults == len(faults) == 1
    assert host.observer is None


def test_after_an_exception_the_next_turn_handles_what_has_arrived() -> None:
    links, forwards = Links(), Forwards()
    times = iter([0, 0])  # the clock fails in the second pass
    host = CoreHost([forwards], times.__next__, links, raise_fault)
    arrivals = [(forwards.address, "b", Ping(number), ()) for number in range(3 * MESSAGES_PER_PASS)]
    with pytest.raises(StopIteration):
        host.run_turn(arrivals)
    host._clock = lambda: 0
    host.run_turn()
    assert host.handled == len(arrivals)


class WrongTimer(Says):
    """Cannot say when it wants a tick."""

    def wakeup_ns(self) -> int | None:
        raise RuntimeError("timer")


def test_a_core_whose_timer_raises_is_ticked_after_a_pause() -> None:
    host = CoreHost([WrongTimer(Out("a", Ping(1)))], lambda: 5, links := Links(), lambda *_: None)
    host.run_turn()
    assert links.sent == ["a"]
    assert host.wakeup_ns() == 5 + FAULT_PAUSE_NS
