"""A frontend and a selector with applications in virtual time, while links, selector and models fail."""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_spec, a_state, a_tensor, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    Cancel,
    Declare,
    Feedback,
    Models,
    Observation,
    Outcome,
    Outputs,
    Predict,
    RowStatus,
    Submit,
    Tensor,
    Withdraw,
)
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.digest import digest
from horologe_frontend.settings import FrontendSettings
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from selector_desk import CONTROLLER, FRONTEND, WORKER, Unplugged, replies_of

CLIENT = "client/aa"
MODELS = ("a", "b", "c")
OK = int(Status.OK)


class Town:
    """Frontend and selector with a link latency of `way_ns`. The test plays the controller and its workers."""

    def __init__(self) -> None:
        self.now_ns = s(100)
        self.way_ns = ms(1)
        self.frontend = Frontend(FRONTEND, FrontendSettings(), digest)
        self.store = Unplugged()
        self.born = 0
        self.selector = self.a_selector()
        self.post: deque[tuple[int, str, str, Any, Any]] = deque()
        self.submits: list[Submit] = []
        self.answers: dict[int, list[tuple[int, Answer]]] = {}
        self.acknowledged: dict[int, list[Acknowledged]] = {}
        self.deadlines: dict[int, int] = {}
        """Return the deadlines of open requests."""
        self.given: list[int] = []
        self.names: list[bytes] = []
        self.number = 0
        self.catalogue = Models(0, tuple(a_state(a_spec(name)) for name in MODELS))
        for address in (CONTROLLER, WORKER):
            self.frontend.handle(self.now_ns, address, PeerConnected(address), ())
        self.frontend.handle(self.now_ns, CONTROLLER, self.catalogue, ())
        self.link()
        self.declare("exp4")
        self.run(ms(50))

    def a_selector(self) -> Selector:
        self.born += 1
        return Selector(f"selector/0#{self.born}", SelectorSettings(store="memory"), random.Random(self.born))

    def link(self) -> None:
        for address in (FRONTEND, CONTROLLER):
            self.selector.handle(self.now_ns, address, PeerConnected(address), ())
        self.selector.handle(self.now_ns, CONTROLLER, self.catalogue, ())
        self.frontend.handle(self.now_ns, self.selector.address, PeerConnected(self.selector.address), ())

    def die(self) -> None:
        """Kill the selector, and start a new one at once."""
        old = self.selector.address
        self.post = deque(one for one in self.post if old not in one[1:3])
        self.submits.clear()
        self.frontend.handle(self.now_ns, old, PeerDisconnected(old), ())
        self.selector = self.a_selector()
        self.link()

    def declare(self, policy: str, *models: str) -> None:
        self.number += 1
        for name, default in (("safe", 7.0), ("bare", None)):
            application = Application(name, models or MODELS[:2], 40, policy=policy, default=default, shadows=())
            self.frontend.handle(self.now_ns, CLIENT, Declare(self.number, application), ())

    def ask(self, name: str, content: int, budget_ns: int = 0) -> None:
        self.number += 1
        self.deadlines[self.number] = self.now_ns + (budget_ns or ms(40))
        predict = Predict(self.number, "", "", budget_ns, (a_tensor(),), application=name, context=f"u{content}")
        self.frontend.handle(self.now_ns, CLIENT, predict, [self.content(content)])

    def plain(self, content: int) -> None:
        self.number += 1
        self.deadlines[self.number] = self.now_ns + ms(30)
        predict = Predict(self.number, "a", "", ms(30), (a_tensor(),))
        self.frontend.handle(self.now_ns, CLIENT, predict, [self.content(content)])

    def content(self, number: int) -> bytes:
        return bytes([number]) + bytes(some_bytes())[1:]

    def give(self, inputs: bool, prediction: bool) -> None:
        self.number += 1
        name = self.names[-1] if self.names and prediction else b""
        one = Observation((1.0,), name, "u1", (a_tensor(),) if inputs else ())
        self.given.append(self.number)
        self.frontend.handle(
            self.now_ns, CLIENT, Feedback(self.number, "safe", (one,)), [self.content(1)] if inputs else []
        )

    def lands(self, label: int) -> None:
        if self.submits:
            submit = self.submits.pop(0)
            tensor = Tensor("y", "INT64", (1,), 8)
            outputs = Outputs(1, (RowStatus(submit.id, 1),), (tensor,))
            self.selector.handle(self.now_ns, WORKER, outputs, [struct.pack("<q", label)])

    def fails(self) -> None:
        if self.submits:
            submit = self.submits.pop(0)
            self.selector.handle(self.now_ns, CONTROLLER, Outcome(submit.id, int(Status.REFUSED), "no room"), ())

    def turn(self) -> None:
        """Process all events that are due."""
        for _ in range(50):
            moved = False
            for core in (self.selector, self.frontend):
                core.tick(self.now_ns)
                outs, core.out = core.out, []
                for out in outs:
                    self.carry(core.address, out)
                moved |= bool(outs)
            while self.post and self.post[0][0] <= self.now_ns:
                moved = True
                _, to, sender, message, buffers = self.post.popleft()
                core = self.frontend if to == FRONTEND else self.selector
                core.handle(self.now_ns, sender, message, buffers)
            if not moved and not self.due(self.now_ns):
                break
        else:
            raise AssertionError("it never comes to rest")
        self.frontend.check()
        self.selector.check()

    def carry(self, sender: str, out: Any) -> None:
        to, message = out.to, out.message
        if to == CLIENT and isinstance(message, Answer):
            self.answers.setdefault(message.id, []).append((self.now_ns, message))
            self.names += [message.prediction] if message.prediction else []
        elif to == CLIENT and isinstance(message, Acknowledged):
            self.acknowledged.setdefault(message.id, []).append(message)
        elif to == self.selector.store:
            self.keep(message)
        elif to in (FRONTEND, self.selector.address):
            self.post.append((self.now_ns + self.way_ns, to, sender, message, out.buffers))
        elif isinstance(message, Submit):
            self.submits.append(message)
        elif isinstance(message, Cancel) and to == CONTROLLER:
            self.submits = [one for one in self.submits if one.id not in message.ids]

    def keep(self, message: Any) -> None:
        for reply in replies_of(self.store, message):
            self.selector.handle(self.now_ns, self.selector.store, reply, ())

    def due(self, at_ns: int) -> bool:
        times = [core.wakeup_ns() for core in (self.frontend, self.selector)]
        times += [self.post[0][0]] if self.post else []
        return any(one is not None and one <= at_ns for one in times)

    def run(self, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while True:
            self.turn()
            times = [self.frontend.wakeup_ns(), self.selector.wakeup_ns(), self.post[0][0] if self.post else None]
            next_ns = min(one for one in [*times, until_ns] if one is not None)
            if next_ns >= until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(next_ns, self.now_ns + 1)

    def cancel(self) -> None:
        self.frontend.handle(self.now_ns, CLIENT, Cancel((self.number,)), ())
        if self.number not in self.answers:
            self.deadlines.pop(self.number, None)

    def controller_restarts(self) -> None:
        self.selector.handle(self.now_ns, CONTROLLER, PeerDisconnected(CONTROLLER), ())
        self.submits.clear()
        self.selector.handle(self.now_ns, CONTROLLER, PeerConnected(CONTROLLER), ())

    def withdraw(self) -> None:
        self.number += 1
        self.frontend.handle(self.now_ns, CLIENT, Withdraw(self.number, "safe"), ())

    def step(self, name: str, value: Any) -> None:
        """Apply one event, and process its immediate consequences."""
        deeds: dict[str, Any] = {
            "ask": lambda: self.ask("safe", value),
            "brief": lambda: self.ask("safe", 1, value),
            "bare": lambda: self.ask("bare", value),
            "plain": lambda: self.plain(value),
            "lands": lambda: self.lands(value),
            "wait": lambda: self.run(ms(value)),
            "fails": self.fails,
            "die": self.die,
            "cancel": self.cancel,
            "withdraw": self.withdraw,
            "controller": self.controller_restarts,
            "declare": lambda: self.declare(value, *MODELS[: 1 + len(value) % 3]),
            "away": lambda: setattr(self.store, "away", True),
            "back": lambda: setattr(self.store, "away", False),
            "way": lambda: setattr(self, "way_ns", ms(value)),
            "inputs": lambda: self.give(True, False),
            "name": lambda: self.give(False, True),
            "both": lambda: self.give(True, True),
        }
        deeds[name]()
        self.turn()


def steps_of(names: str, values: Any) -> Any:
    return st.tuples(st.sampled_from(names.split()), values)


STEPS = st.lists(
    st.one_of(
        steps_of("ask bare plain", st.integers(0, 2)),
        steps_of("brief", st.sampled_from([1, 1000, ms(1), ms(5)])),
        steps_of("lands wait", st.integers(1, 45)),
        steps_of("fails die away back cancel controller withdraw inputs both name", st.just(0)),
        steps_of("declare", st.sampled_from(["exp4", "exp3", "thompson", "static"])),
        steps_of("way", st.sampled_from([0, 1, 30])),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS)
def test_every_request_ends_once_in_time_and_leaves_no_state(steps: list[tuple[str, Any]]) -> None:
    town = Town()
    for name, value in steps:
        town.step(name, value)
    town.store.away = False
    town.run(s(15))
    town.declare("exp4")
    town.run(s(1))
    for number, deadline_ns in town.deadlines.items():
        ((at_ns, answer),) = town.answers[number]
        assert at_ns <= deadline_ns or answer.status != OK
    assert all(len(town.acknowledged[number]) == 1 for number in town.given)
    assert len(town.frontend.staging) == 0
    assert not len(town.selector.application_queries)
    assert not list(town.selector.inflight.waiters())
    assert town.selector.drained()
    town.ask("safe", 9)
    town.run(ms(5))
    for _ in range(2):
        town.lands(3)
    town.run(ms(50))
    ((_, last),) = town.answers[town.number]
    assert (last.status, last.missing) == (OK, ())
