"""Cores in a process: what one of them cannot send harms nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from harness.builders import a_report, a_spec
from horologe_common.core.hosting import FAULT_PAUSE_NS, MESSAGES_PER_PASS, CoreHost, raise_fault
from horologe_common.core.protocol import Out
from horologe_common.models import Profile
from horologe_common.wire import Answer, ModelReport, Ping, Register, Tensor
from horologe_common.wire.frames import pack, unpack
from horologe_common.wire.unencodable import find_unencodable


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


def test_a_message_that_cannot_be_encoded_costs_only_itself() -> None:
    """The others of the packet arrive in order, with the bytes of their own tensors."""
    packets: list[list[Any]] = []

    class Network(Links):
        def send(self, route: str, letters: Any, buffers: Any) -> None:
            packets.append([unpacked[2:] for unpacked in unpack(pack(letters, buffers), 1 << 20)])

    faults, first, second = list[Any](), b"abcd", b"ef"
    tensors = [(Tensor("x", "UINT8", (len(part),), len(part)),) for part in (first, second)]
    says = Says(
        Out("a", Answer(1, 0, tensors[0]), (first,)),
        Out("a", Answer(2, 0, (Tensor("x", "UINT8", (1,), 10**30),)), (b"?",)),
        Out("a", Ping(10**30)),
        Out("a", Register((), (a_report(a_spec(weights_bytes=10**30)),))),
        Out("a", Answer(3, 0, tensors[1]), (second,)),
    )
    host = CoreHost([says], lambda: 0, Network(), lambda *fault: faults.append(fault))
    host.run_turn()
    sent = [(message.id, bytes(b"".join(buffers))) for [(message, buffers)] in packets]
    assert sent == [(1, first), (3, second)]
    assert [type(envelope.messages[0]).__name__ for _, envelope, _ in faults] == ["Answer", "Ping", "Register"]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (Ping(10**30), "m.sent_ns: got 1000000000000000000000000000000"),
        (Register((), (a_report(a_spec()), a_report(a_spec(slo_ns=1 << 64)))), "m.models[1].spec.slo_ns: got 18446"),
        (Register((), (ModelReport(a_spec(), Profile({1: 1, 2: -(1 << 80)}, 1)),)), "profile.exec_ns[2]: got -1208"),
        (Register((), (ModelReport(a_spec(), Profile({1 << 80: 1}, 1)),)), "exec_ns[1208925819614629174706176]: got"),
        (Register((), (a_report(a_spec(name="\udcff")),)), "m.models[0].spec.name: got '\\udcff'"),
        (Ping(10**5000), "m.sent_ns: got a large int"),
        (Ping(1), ""),
    ],
)  # fmt: skip
def test_the_part_that_cannot_be_encoded_is_named(message: Any, part: str) -> None:
    assert part in find_unencodable(message, "m")
    assert bool(part) == bool(find_unencodable(message, "m"))


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
