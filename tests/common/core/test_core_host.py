"""The host of cores: exceptions of cores, and messages that cannot be encoded, cost nothing but themselves."""

from __future__ import annotations

from typing import Any

import pytest

from harness.builders import BrokenError, a_report, a_spec
from horologe_common.clock import s
from horologe_common.core.faults import for_each
from horologe_common.core.hosting import FAULT_PAUSE_NS, MESSAGES_PER_PASS, CoreHost, NoTransport, raise_fault
from horologe_common.core.protocol import Out
from horologe_common.models import Profile
from horologe_common.wire import Answer, ModelReport, Ping, Register, Tensor
from horologe_common.wire.frames import find_unencodable, pack, unpack


class Links:
    """Every address but `http/0` has a route. What is sent is encoded, and its route and messages are kept."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.packets: list[list[Any]] = []

    def route(self, address: str) -> str | None:
        return None if address == "http/0" else address

    def send(self, route: str, envelopes: Any, buffers: Any) -> None:
        frames = pack(envelopes, buffers)
        self.sent.append(route)
        self.packets.append([unpacked[2:] for unpacked in unpack(frames, 1 << 20)])


class PassesOn:
    """A core that sends `outs` in its first turn, and every message to `to`.

    It raises for Ping(0), and in `tick` or `wakeup_ns` if that is `broken`.
    """

    address = "frontend/0#1"

    def __init__(self, *outs: Out, to: str = "a") -> None:
        self.out = list(outs)
        self.to = to
        self.broken = ""
        self.ticks = 0

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Any) -> None:
        if message == Ping(0):
            raise BrokenError
        self.out.append(Out(self.to, message))

    def tick(self, now_ns: int) -> None:
        self.ticks += 1
        if self.broken == "tick":
            raise BrokenError

    def wakeup_ns(self) -> int | None:
        if self.broken == "wakeup_ns":
            raise BrokenError
        return 0


class Hosted:
    """A host of one core at one second, with its links and the faults that it reports."""

    def __init__(self, *outs: Out, to: str = "a") -> None:
        self.links, self.faults, self.core = Links(), list[Any](), PassesOn(*outs, to=to)
        self.host = CoreHost([self.core], lambda: s(1), self.links, lambda *fault: self.faults.append(fault))

    def run_turn(self, *numbers: int) -> None:
        """Run a turn with a Ping of each number, and check that all faults are counted."""
        self.host.run_turn([(self.core.address, "b", Ping(number), ()) for number in numbers])
        assert self.host.faults == len(self.faults)


def test_a_packet_that_cannot_be_encoded_costs_only_itself() -> None:
    hosted = Hosted(Out("a", Ping(1)), Out("b", Ping(10**30)), Out("c", Ping(1)))
    hosted.run_turn()
    assert hosted.links.sent == ["a", "c"]
    assert len(hosted.faults) == 1


def test_a_message_that_cannot_be_encoded_costs_only_itself() -> None:
    """The others of the packet arrive in order, with the bytes of their own tensors."""
    first, second = b"abcd", b"ef"
    tensors = [(Tensor("x", "UINT8", (len(part),), len(part)),) for part in (first, second)]
    hosted = Hosted(
        Out("a", Answer(1, 0, tensors[0]), (first,)),
        Out("a", Answer(2, 0, (Tensor("x", "UINT8", (1,), 10**30),)), (b"?",)),
        Out("a", Ping(10**30)),
        Out("a", Register((), (a_report(a_spec(weights_bytes=10**30)),))),
        Out("a", Answer(3, 0, tensors[1]), (second,)),
    )
    hosted.run_turn()
    sent = [(message.id, bytes(b"".join(buffers))) for [(message, buffers)] in hosted.links.packets]
    assert sent == [(1, first), (3, second)]
    assert [type(envelope.messages[0]).__name__ for _, envelope, _ in hosted.faults] == ["Answer", "Ping", "Register"]


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


def test_packets_leave_before_all_messages_of_a_long_turn_are_handled() -> None:
    hosted, count = Hosted(), 2 * MESSAGES_PER_PASS + 1
    hosted.run_turn(*range(1, count + 1))
    assert hosted.links.sent == ["a"] * 3
    assert hosted.host.handled == count


class FailingObserver:
    def observe_message(self, *_: Any) -> None:
        raise BrokenError

    observe_tick = observe_call = observe_fault = lambda *_: None


def test_an_observer_that_raises_is_removed_and_every_message_handled() -> None:
    hosted = Hosted()
    hosted.host.observer = FailingObserver()
    hosted.run_turn(1)
    hosted.run_turn(2)
    assert hosted.links.sent == ["a"] * 2
    assert len(hosted.faults) == 1
    assert hosted.host.observer is None


def test_after_an_exception_the_next_turn_handles_what_has_arrived() -> None:
    core, times = PassesOn(), iter([0, 0])  # the clock fails in the second pass
    host = CoreHost([core], times.__next__, NoTransport(), raise_fault)
    arrivals = [(core.address, "b", Ping(number), ()) for number in range(1, 3 * MESSAGES_PER_PASS)]
    with pytest.raises(StopIteration):
        host.run_turn(arrivals)
    host._clock = lambda: 0
    host.run_turn()
    assert host.handled == len(arrivals)


def test_the_host_handles_the_other_messages_and_makes_the_other_calls() -> None:
    hosted, delivered = Hosted(to="http/0"), list[int]()

    def deliver(message: Ping, buffers: Any) -> None:
        if message.sent_ns == 1:
            raise BrokenError
        delivered.append(message.sent_ns)

    hosted.host.attached["http/0"] = deliver
    hosted.run_turn(0, 1, 2)
    assert delivered == [2]
    assert len(hosted.faults) == 2


@pytest.mark.parametrize("method", ["tick", "wakeup_ns"])
def test_a_core_whose_tick_or_timer_raises_is_ticked_again_after_a_pause(method: str) -> None:
    hosted = Hosted(Out("a", Ping(1)))
    hosted.core.broken = method
    hosted.run_turn()
    assert hosted.links.sent == ["a"]
    assert hosted.host.wakeup_ns() == s(1) + FAULT_PAUSE_NS
    hosted.core.broken = ""
    hosted.run_turn(1)
    assert (hosted.core.ticks, hosted.links.sent, hosted.host.wakeup_ns()) == (2, ["a"] * 2, 0)


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
