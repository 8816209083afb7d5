"""Exceptions in cores: the host and its other messages."""

from __future__ import annotations

from typing import Any

import pytest

from harness.builders import BrokenError
from horologe_common.clock import s
from horologe_common.core.faults import for_each
from horologe_common.core.hosting import FAULT_PAUSE_NS, CoreHost, NoTransport
from horologe_common.core.protocol import Out
from horologe_common.wire import Ping


class Fragile:
    """A core that raises for Ping(0), and in `tick` while `broken`."""

    address = "frontend/0#1"

    def __init__(self) -> None:
        self.out: list[Out] = []
        self.handled: list[int] = []
        self.broken = False
        self.ticks = 0

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Any) -> None:
        if not message.sent_ns:
            raise BrokenError
        self.handled.append(message.sent_ns)
        self.out.append(Out("http/0", message))

    def tick(self, now_ns: int) -> None:
        self.ticks += 1
        if self.broken:
            raise BrokenError

    def wakeup_ns(self) -> int | None:
        return 0


def test_for_each_calls_all_and_raises_at_the_end() -> None:
    seen: list[int] = []

    def call(number: int) -> None:
        seen.append(number)
        if number % 2:
            raise BrokenError(number)

    for_each([0, 2], call)
    with pytest.raises(BrokenError):
        for_each([0, 1, 2], call)
    with pytest.raises(ExceptionGroup):
        for_each([1, 2, 3], call)
    assert seen == [0, 2, 0, 1, 2, 1, 2, 3]


def test_the_host_handles_the_other_messages_and_makes_the_other_calls() -> None:
    faults, delivered, core = list[Any](), list[int](), Fragile()
    host = CoreHost([core], lambda: s(1), NoTransport(), lambda *fault: faults.append(fault))

    def deliver_http(message: Ping, buffers: Any) -> None:
        if message.sent_ns == 1:
            raise BrokenError
        delivered.append(message.sent_ns)

    host.attached["http/0"] = deliver_http
    host.enqueue([(core.address, "x", Ping(number), ()) for number in (0, 1, 2)])
    host.run_turn()
    assert (core.handled, delivered) == ([1, 2], [2])
    assert host.faults == len(faults) == 2


def test_a_core_whose_tick_raises_is_ticked_again_after_a_pause() -> None:
    now_ns, core = s(1), Fragile()
    host = CoreHost([core], lambda: now_ns, NoTransport(), lambda *fault: None)
    core.broken = True
    host.run_turn()
    assert host.wakeup_ns() == now_ns + FAULT_PAUSE_NS
    host.enqueue([(core.address, "x", Ping(1), ())])
    core.broken = False
    host.run_turn()
    assert (core.ticks, core.handled, host.wakeup_ns()) == (2, [1], 0)
