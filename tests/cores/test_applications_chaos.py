"""A frontend and a selector with applications in virtual time, while connections and services fail."""

from __future__ import annotations

import random
import struct
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.builders import a_spec, a_state, a_tensor, some_bytes
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
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER, UnavailableStore, store_replies

CLIENT = "client/aa"
MODELS = ("a", "b", "c")
OK = int(Status.OK)


class FrontendAndSelector:
    """A frontend and a selector whose messages take `way_ns`. The test plays the controller and its workers."""

    def __init__(self) -> None:
        self.now_ns = s(100)
        self.way_ns = ms(1)
        self.frontend = Frontend(FRONTEND, FrontendSettings(), digest)
        self.store = UnavailableStore()
        self.incarnation = 0
        self.selector = self.make_selector()
        self.messages: deque[tuple[int, str, str, Any, Any]] = deque()
        self.submits: list[Submit] = []
        self.answers: dict[int, list[tuple[int, Answer]]] = {}
        self.acknowledged: dict[int, list[Acknowledged]] = {}
        self.deadlines: dict[int, int] = {}
        """The deadlines of requests."""
        self.feedback_ids: list[int] = []
        self.prediction_ids: list[bytes] = []
        self.number = 0
        self.models = Models(0, tuple(a_state(a_spec(name)) for name in MODELS))
        for address in (CONTROLLER, WORKER):
            self.frontend.handle(self.now_ns, address, PeerConnected(address), ())
        self.frontend.handle(self.now_ns, CONTROLLER, self.models, ())
        self.connect_selector()
        self.declare("exp4")
        self.run(ms(50))

    def make_selector(self) -> Selector:
        self.incarnation += 1
        return Selector(
            f"selector/0#{self.incarnation}", SelectorSettings(store="memory"), random.Random(self.incarnation)
        )

    def connect_selector(self) -> None:
        for address in (FRONTEND, CONTROLLER):
            self.selector.handle(self.now_ns, address, PeerConnected(address), ())
        self.selector.handle(self.now_ns, CONTROLLER, self.models, ())
        self.frontend.handle(self.now_ns, self.selector.address, PeerConnected(self.selector.address), ())

    def kill_selector(self) -> None:
        """Kill the selector and start its successor at once."""
        old = self.selector.address
        self.messages = deque(message for message in self.messages if old not in message[1:3])
        self.submits.clear()
        self.frontend.handle(self.now_ns, old, PeerDisconnected(old), ())
        self.selector = self.make_selector()
        self.connect_selector()

    def declare(self, policy: str, *models: str) -> None:
        self.number += 1
        for name, default in (("safe", 7.0), ("bare", None)):
            application = Application(name, models or MODELS[:2], 40, policy=policy, default=default, shadows=())
            self.frontend.handle(self.now_ns, CLIENT, Declare(self.number, application), ())

    def query_application(self, name: str, content: int, budget_ns: int = 0) -> None:
        self.number += 1
        self.deadlines[self.number] = self.now_ns + (budget_ns or ms(40))
        predict = Predict(self.number, "", "", budget_ns, (a_tensor(),), application=name, context=f"u{content}")
        self.frontend.handle(self.now_ns, CLIENT, predict, [self.content(content)])

    def query_model(self, content: int) -> None:
        self.number += 1
        self.deadlines[self.number] = self.now_ns + ms(30)
        predict = Predict(self.number, "a", "", ms(30), (a_tensor(),))
        self.frontend.handle(self.now_ns, CLIENT, predict, [self.content(content)])

    def content(self, number: int) -> bytes:
        return bytes([number]) + bytes(some_bytes())[1:]

    def send_feedback(self, parts: tuple[bool, bool]) -> None:
        """Send feedback with inputs, the id of a prediction, or both."""
        self.number += 1
        inputs, prediction = parts
        name = self.prediction_ids[-1] if self.prediction_ids and prediction else b""
        observation = Observation((1.0,), name, "u1", (a_tensor(),) if inputs else ())
        self.feedback_ids.append(self.number)
        self.frontend.handle(
            self.now_ns, CLIENT, Feedback(self.number, "safe", (observation,)), [self.content(1)] if inputs else []
        )

    def predict(self, label: int) -> None:
        if self.submits:
            submit = self.submits.pop(0)
            tensor = Tensor("y", "INT64", (1,), 8)
            outputs = Outputs(1, (RowStatus(submit.id, 1),), (tensor,))
            self.selector.handle(self.now_ns, WORKER, outputs, [struct.pack("<q", label)])

    def refuse_submit(self) -> None:
        if self.submits:
            submit = self.submits.pop(0)
            self.selector.handle(self.now_ns, CONTROLLER, Outcome(submit.id, int(Status.REFUSED), "no room"), ())

    def run_turns(self) -> None:
        """Run both cores until neither has anything left to do now."""
        for _ in range(50):
            moved = False
            for core in (self.selector, self.frontend):
                core.tick(self.now_ns)
                outs, core.out = core.out, []
                for out in outs:
                    self.route(core.address, out)
                moved |= bool(outs)
            while self.messages and self.messages[0][0] <= self.now_ns:
                moved = True
                _, to, sender, message, buffers = self.messages.popleft()
                core = self.frontend if to == FRONTEND else self.selector
                core.handle(self.now_ns, sender, message, buffers)
            if not moved and not self.has_work(self.now_ns):
                break
        else:
            raise AssertionError("the cores are still busy after 50 turns")
        self.frontend.check()
        self.selector.check()

    def route(self, sender: str, out: Any) -> None:
        to, message = out.to, out.message
        if to == CLIENT and isinstance(message, Answer):
            self.answers.setdefault(message.id, []).append((self.now_ns, message))
            self.prediction_ids += [message.prediction] if message.prediction else []
        elif to == CLIENT and isinstance(message, Acknowledged):
            self.acknowledged.setdefault(message.id, []).append(message)
        elif to == self.selector.store:
            self.execute_in_store(message)
        elif to in (FRONTEND, self.selector.address):
            self.messages.append((self.now_ns + self.way_ns, to, sender, message, out.buffers))
        elif isinstance(message, Submit):
            self.submits.append(message)
        elif isinstance(message, Cancel) and to == CONTROLLER:
            self.submits = [submit for submit in self.submits if submit.id not in message.ids]

    def execute_in_store(self, message: Any) -> None:
        for reply in store_replies(self.store, message):
            self.selector.handle(self.now_ns, self.selector.store, reply, ())

    def has_work(self, at_ns: int) -> bool:
        times = [core.wakeup_ns() for core in (self.frontend, self.selector)]
        times += [self.messages[0][0]] if self.messages else []
        return any(time_ns is not None and time_ns <= at_ns for time_ns in times)

    def run(self, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while True:
            self.run_turns()
            times = [
                self.frontend.wakeup_ns(),
                self.selector.wakeup_ns(),
                self.messages[0][0] if self.messages else None,
            ]
            next_ns = min(time_ns for time_ns in [*times, until_ns] if time_ns is not None)
            if next_ns >= until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(next_ns, self.now_ns + 1)

    def cancel(self) -> None:
        self.frontend.handle(self.now_ns, CLIENT, Cancel((self.number,)), ())
        if self.number not in self.answers:
            self.deadlines.pop(self.number, None)

    def restart_controller(self) -> None:
        self.selector.handle(self.now_ns, CONTROLLER, PeerDisconnected(CONTROLLER), ())
        self.submits.clear()
        self.selector.handle(self.now_ns, CONTROLLER, PeerConnected(CONTROLLER), ())

    def withdraw(self) -> None:
        self.number += 1
        self.frontend.handle(self.now_ns, CLIENT, Withdraw(self.number, "safe"), ())

    def wait_ms(self, duration_ms: int) -> None:
        self.run(ms(duration_ms))

    def set_store(self, unavailable: bool) -> None:
        self.store.unavailable = unavailable

    def set_way_ms(self, way_ms: int) -> None:
        self.way_ns = ms(way_ms)

    def redeclare(self, policy: str) -> None:
        self.declare(policy, *MODELS[: 1 + len(policy) % 3])


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    """Return calls of this method of `FrontendAndSelector`."""
    return st.tuples(st.just(name), st.tuples(*arguments))


CONTENTS, DURATIONS = st.integers(0, 2), st.integers(1, 45)
STEPS = st.lists(
    st.one_of(
        step("query_application", st.sampled_from(["safe", "bare"]), CONTENTS),
        step("query_application", st.just("safe"), st.just(1), st.sampled_from([1, 1000, ms(1), ms(5)])),
        step("query_model", CONTENTS),
        step("predict", DURATIONS),
        step("wait_ms", DURATIONS),
        *map(step, ("refuse_submit", "kill_selector", "cancel", "restart_controller", "withdraw")),
        step("send_feedback", st.sampled_from([(True, False), (False, True), (True, True)])),
        step("redeclare", st.sampled_from(["exp4", "exp3", "thompson", "static"])),
        step("set_store", st.booleans()),
        step("set_way_ms", st.sampled_from([0, 1, 30])),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS)
def test_every_request_gets_one_timely_answer_whatever_fails_and_no_state_leaks(steps: list[Any]) -> None:
    system = FrontendAndSelector()
    for name, arguments in steps:
        getattr(system, name)(*arguments)
        system.run_turns()
    system.store.unavailable = False
    system.run(s(15))
    system.declare("exp4")
    system.run(s(1))
    for number, deadline_ns in system.deadlines.items():
        ((at_ns, answer),) = system.answers[number]
        assert at_ns <= deadline_ns or answer.status != OK
    assert all(len(system.acknowledged[number]) == 1 for number in system.feedback_ids)
    assert len(system.frontend.staging) == 0
    assert not len(system.selector.applications.queries)
    assert not list(system.selector.inflight.waiters())
    assert system.selector.drained()
    system.query_application("safe", 9)
    system.run(ms(5))
    for _ in range(2):
        system.predict(3)
    system.run(ms(50))
    ((_, last),) = system.answers[system.number]
    assert (last.status, last.missing) == (OK, ())
