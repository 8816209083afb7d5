"""The reactor and a simulated process run the same cores in the same order: equal messages in, equal packets out.

Both drivers get frontend, selector (with an application and its store) and controller in one process, and the same
arrivals at the same times. In the place of sockets and the real clock, the reactor has fakes in virtual time.
"""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.builders import a_report, a_spec, a_tensor
from horologe_common.applications import Application
from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.transport import reactor as reactor_module
from horologe_common.transport.reactor import Reactor
from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    Cancel,
    Declare,
    Describe,
    Envelope,
    Infer,
    Load,
    ModelInfo,
    Outputs,
    Ping,
    Pong,
    Predict,
    Register,
    Result,
    RowStatus,
    Share,
    Ship,
    Tensor,
)
from horologe_common.wire.frames import tensors
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.digest import digest
from horologe_frontend.settings import FrontendSettings
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores.memory import MemoryStore
from horologe_selector.stores.store_writer import execute_messages
from horologe_sim.engine.event_queue import EventQueue
from horologe_sim.engine.simulated_process import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival, Buffer, Core

    Packet = tuple[int, str, list[tuple[str, str, list[Any]]], list[bytes]]

NUMBER = "0#00000001"
FRONTEND, SELECTOR, CONTROLLER = (f"{role}/{NUMBER}" for role in ("frontend", "selector", "controller"))
WORKER, CLIENT = "worker/0#00000001", "client/00000001"
ROUTES = {WORKER: "worker process", CLIENT: "client process"}
MODELS = (a_spec("a", cache=True, cache_ttl_ns=ms(20)), a_spec("b"), a_spec("c"))
APPLICATION = Application("vote", ("a", "b"), task="regression", policy="average", slo_ms=50)


class EdgeProcess:
    """Cores of the edge, peers that react to packets after a fixed time, and the packets that were sent."""

    def __init__(self) -> None:
        self.events = EventQueue(s(1000))
        self.packets: list[Packet] = []
        self.store = MemoryStore()
        self.post: Callable[..., None] = lambda *_: None
        self.deliver: Callable[[Sequence[Arrival]], None] = lambda _: None

    def make_cores(self, attach: Callable[[str, Any], None]) -> list[Core]:
        selector = Selector(SELECTOR, SelectorSettings(), random.Random(1))

        def keep(message: Any, buffers: Sequence[Buffer]) -> None:
            for reply in execute_messages(self.store, [message]):
                self.post(selector.store, SELECTOR, reply)

        attach(selector.store, keep)
        controller = Controller(CONTROLLER, ControllerSettings(), "host")
        return [Frontend(FRONTEND, FrontendSettings(), digest), selector, controller]

    def record(self, route: str, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Record the packet, and schedule what the worker sends in return."""
        now_ns = self.events.now_ns
        contents = [(envelope.to, envelope.sender, list(envelope.messages)) for envelope in envelopes]
        self.packets.append((now_ns, route, contents, [bytes(buffer) for buffer in buffers]))
        for _, sender, messages in contents:
            for message in messages:
                match message:
                    case Ping():
                        self.arrive(now_ns + 61_003, (CONTROLLER, WORKER, Pong(message.sent_ns, now_ns + 30_001), ()))
                    case Load():
                        end_ns = max(now_ns, message.earliest_ns) + message.expected_ns + 10_007
                        result = Result(message.action_id, Status.OK, now_ns, end_ns, message.expected_ns, now_ns)
                        self.arrive(end_ns + 40_009, (CONTROLLER, WORKER, result, ()))
                    case Infer():
                        self._infer(now_ns, message)
                    case _:
                        assert sender in (FRONTEND, SELECTOR, CONTROLLER)

    def _infer(self, now_ns: int, infer: Infer) -> None:
        begin_ns = max(now_ns + 50_021, infer.earliest_ns)
        end_ns = begin_ns + infer.expected_ns + 20_011 * len(infer.rows)
        items = tuple(RowStatus(row.submit_id, row.rows) for row in infer.rows)
        total = sum(item.rows for item in items)
        outputs = Outputs(
            infer.action_id, items, (Tensor("y", "FP32", (total, 1), 4 * total),), infer.model, total, begin_ns, end_ns
        )
        submitter = infer.parties[infer.rows[0].submitter]
        self.arrive(end_ns + 45_007, (submitter, WORKER, outputs, [bytes(4 * total)]))
        result = Result(infer.action_id, Status.OK, begin_ns, end_ns, infer.expected_ns, begin_ns)
        self.arrive(end_ns + 55_001, (CONTROLLER, WORKER, result, ()))

    def arrive(self, at_ns: int, *arrivals: Arrival) -> None:
        self.events.schedule(at_ns, self._arrive, arrivals)

    def _arrive(self, arrivals: tuple[Arrival, ...]) -> None:
        self.deliver(arrivals)

    def play(self, until_ns: int) -> None:
        while (at_ns := self.events.next_ns()) is not None and at_ns <= until_ns:
            self.events.step()


def by_the_simulator(script: Sequence[tuple[int, tuple[Arrival, ...]]]) -> EdgeProcess:
    edge = EdgeProcess()
    turns: list[Process] = []

    def run_turn() -> None:
        turns.pop().run_turn(0, 0)

    def schedule_turn(process: Process) -> None:
        if not turns:
            turns.append(process)
            edge.events.schedule(edge.events.now_ns, run_turn)

    def send_packet(_: Process, route: Any, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        edge.record(route, envelopes, buffers)

    world: Any = SimpleNamespace(
        events=edge.events, observer=None, schedule_turn=schedule_turn, send_packet=send_packet
    )
    process = Process(world, "edge", lambda process: edge.make_cores(process.attach))
    edge.post, edge.deliver = process.post, process.receive
    process.start()
    process.routes.update(ROUTES)  # type: ignore[arg-type]
    for at_ns, arrivals in script:
        edge.arrive(at_ns, *arrivals)
    edge.play(script[-1][0] + s(1))
    return edge


class Loop:
    """The part of an asyncio loop that the reactor uses, in virtual time."""

    def __init__(self, events: EventQueue) -> None:
        self.events = events

    def call_soon(self, call: Callable[[], None]) -> None:
        self.events.schedule(self.events.now_ns, call)


class VirtualAlarm:
    """An `Alarm` in virtual time."""

    def __init__(self, events: EventQueue, call: Callable[[], None]) -> None:
        self.at_ns = NEVER_NS
        self._events = events
        self._call = call

    def set(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self._events.schedule(max(at_ns, self._events.now_ns), partial(self._expire, at_ns))

    def _expire(self, at_ns: int) -> None:
        if self.at_ns == at_ns:
            self.at_ns = NEVER_NS
            self._call()


class Links:
    """The links of a process whose packets are recorded instead of sent."""

    host = "host"
    settings = SimpleNamespace(drain_ns=0)
    client_server = SimpleNamespace(end_turn=lambda end_ns, took_ns: None)

    def __init__(self, edge: EdgeProcess) -> None:
        self.inbox: list[Arrival] = []
        self.route = ROUTES.get
        self.send = edge.record
        self.readiness = SimpleNamespace(has_readable=lambda: bool(self.inbox))

    def receive(self, inbox: list[Arrival]) -> bool:
        inbox.extend(self.inbox)
        self.inbox.clear()
        return False

    def wakeup_ns(self) -> int | None:
        return None


def by_the_reactor(
    script: Sequence[tuple[int, tuple[Arrival, ...]]], monkeypatch: pytest.MonkeyPatch
) -> tuple[EdgeProcess, Reactor]:
    edge = EdgeProcess()
    links: Any = Links(edge)
    monkeypatch.setattr(reactor_module, "monotonic_ns", lambda: edge.events.now_ns)
    monkeypatch.setattr(reactor_module, "thread_time_ns", lambda: 0)
    attached: dict[str, Any] = {}
    reactor = Reactor(edge.make_cores(attached.__setitem__), links)
    reactor.loop = Loop(edge.events)  # type: ignore[assignment]
    reactor.alarm = VirtualAlarm(edge.events, reactor._on_alarm)  # type: ignore[assignment]
    for address, deliver in attached.items():
        reactor.attach(address, deliver)

    def receive(arrivals: Sequence[Arrival]) -> None:
        links.inbox.extend(arrivals)
        reactor._turn()

    edge.post, edge.deliver = reactor.post, receive
    reactor.core_host.introduce_cores("host")
    reactor._schedule()
    for at_ns, arrivals in script:
        edge.arrive(at_ns, *arrivals)
    edge.play(script[-1][0] + s(1))
    return edge, reactor


def script_by_seed(seed: int) -> list[tuple[int, tuple[Arrival, ...]]]:
    """Return connections, then 150 arrivals of requests, cancellations and queries within 300 ms."""
    rng = random.Random(seed)
    begin_ns = s(1000) + 1_009
    connected: tuple[Arrival, ...] = tuple(
        (core, peer, PeerConnected(peer, "host"), ())
        for peer in (WORKER, CLIENT)
        for core in (FRONTEND, SELECTOR, CONTROLLER)
    )
    register = Register((Share(0, "emulated", 100),), tuple(a_report(spec) for spec in MODELS))
    script: list[tuple[int, tuple[Arrival, ...]]] = [
        (begin_ns, connected),
        (begin_ns + 70_001, ((CONTROLLER, WORKER, register, ()),)),
        (begin_ns + ms(20), ((FRONTEND, CLIENT, Declare(1, APPLICATION), ()),)),
    ]
    for number in range(2, 152):
        rows = rng.choice((1, 1, 2, 5))
        inputs, buffers = (a_tensor(rows),), [bytes([rng.randrange(3)]) * 16 * rows]
        model = rng.choice(("a", "b", "c", "absent", ""))
        predict = Predict(number, model, "", rng.choice((0, ms(4), ms(40))), inputs)
        if not model:
            predict = Predict(number, "", "", 0, inputs, application="vote", context=f"user-{number % 3}")
        arrivals: list[Arrival] = [(FRONTEND, CLIENT, predict, buffers)]
        if rng.random() < 0.1:
            arrivals.append((FRONTEND, CLIENT, Cancel((number - rng.randrange(3),)), ()))
        if rng.random() < 0.05:
            arrivals.append((FRONTEND, CLIENT, rng.choice((ModelInfo(1), ApplicationInfo(1, "vote"), Describe(1))), ()))
        script.append((begin_ns + ms(30) + rng.randrange(ms(300)), tuple(arrivals)))
    script.sort(key=lambda entry: entry[0])
    gone: Arrival = (FRONTEND, CLIENT, PeerDisconnected(CLIENT), ())
    return [*script, (script[-1][0] + ms(1), (gone,))]


@pytest.mark.parametrize("seed", range(5))
def test_both_drivers_send_the_same_packets_at_the_same_times(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_by_seed(seed)
    simulated = by_the_simulator(script)
    real, reactor = by_the_reactor(script, monkeypatch)
    assert reactor.core_host.faults == 0
    sent = [message for _, _, contents, _ in real.packets for *_, messages in contents for message in messages]
    assert {type(message) for message in sent} >= {Answer, Infer, Load, Ping, Ship}
    assert sum(isinstance(message, Answer) and message.status == Status.OK for message in sent) > 50
    assert simulated.packets == real.packets
    assert any(len(contents) > 1 for _, _, contents, _ in real.packets), "some packets hold messages of two cores"
    assert all(
        len(buffers) == sum(len(tensors(message)) for *_, messages in contents for message in messages)
        for _, _, contents, buffers in real.packets
    )
