"""The frontend while clients and selectors send, connect and disconnect in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frontend.frontend_builders import (
    BARE,
    CLIENT,
    CONTROLLER,
    NOW,
    OTHER,
    SAFE,
    SELECTOR,
    WORKER,
    an_observation,
    connect,
    two_selectors,
)
from harness.builders import a_tensor, sent, some_bytes
from horologe_common.clock import s
from horologe_common.core.protocol import PeerDisconnected, instance
from horologe_common.wire import Acknowledged, Answer, Cancel, Dispatch, Feedback, Predict, Query, Release

BYTES = some_bytes()


class AnyOrder(RuleBasedStateMachine):
    """Each request and each feedback has one answer, and no input stays staged, for random orders of events."""

    def __init__(self) -> None:
        super().__init__()
        self.frontend, self.now_ns = two_selectors(max_pending=8), NOW
        self.connected, self.incarnations = [SELECTOR, OTHER], 1
        self.requests = self.cancelled = self.feedback = 0
        self.open: list[tuple[str, Query | Feedback]] = []

    @rule(application=st.sampled_from(["bare", "digits", ""]), context=st.sampled_from("abc"))
    def predict(self, application: str, context: str) -> None:
        self.requests += 1
        fields: dict[str, Any] = {"application": application, "context": context} if application else {}
        predict = Predict(self.requests, "" if application else "one", "", 0, (a_tensor(),), **fields)
        self.frontend.handle(self.now_ns, CLIENT, predict, [BYTES])

    @rule(contexts=st.integers(1, 4))
    def observe(self, contexts: int) -> None:
        self.feedback += 1
        items = tuple(an_observation(1, context=str(number), inputs=(a_tensor(),)) for number in range(contexts))
        self.frontend.handle(self.now_ns, CLIENT, Feedback(self.feedback, "bare", items), [BYTES] * contexts)

    @rule(before=st.integers(0, 3))
    def cancel(self, before: int) -> None:
        self.cancelled += self.frontend.find_open(CLIENT, self.requests - before) is not None
        self.frontend.handle(self.now_ns, CLIENT, Cancel((self.requests - before,)), ())

    @rule(retained=st.booleans())
    def reply(self, retained: bool) -> None:
        for to, message in self.open[-3:]:
            if isinstance(message, Query):
                self.deliver(to, Answer(message.id, 0, inputs_retained=retained))
            else:
                self.deliver(to, Acknowledged(message.id, (0,) * len(message.items)))

    @rule()
    def release(self) -> None:
        for to, message in self.open[-3:]:
            if isinstance(message, Query):
                self.deliver(to, Release((message.id,)))

    @rule()
    def dispatch(self) -> None:
        inputs = tuple(message.id for _, message in self.open[-3:] if isinstance(message, Query))
        self.frontend.handle(self.now_ns, CONTROLLER, Dispatch(1, WORKER, inputs), ())

    def deliver(self, selector: str, message: Any) -> None:
        if selector in self.connected:
            self.frontend.handle(self.now_ns, selector, message, ())

    @precondition(lambda self: self.connected)
    @rule(pick=st.integers(0, 1))
    def disconnect(self, pick: int) -> None:
        address = self.connected.pop(pick % len(self.connected))
        self.frontend.handle(self.now_ns, address, PeerDisconnected(address), ())

    @precondition(lambda self: len(self.connected) < 2)
    @rule()
    def connect(self) -> None:
        self.incarnations += 1
        free = "1" if any(instance(address) == "selector/0" for address in self.connected) else "0"
        self.connected.append(f"selector/{free}#{self.incarnations}")
        connect(self.frontend, self.connected[-1], SAFE, BARE)

    @rule(wait_ns=st.integers(0, s(31)))
    def wait(self, wait_ns: int) -> None:
        self.now_ns += wait_ns

    @invariant()
    def end_turn(self) -> None:
        self.frontend.tick(self.now_ns)
        self.frontend.check()
        forwarded = [(out.to, out.message) for out in self.frontend.out if isinstance(out.message, Query | Feedback)]
        assert all(to in self.connected for to, _ in forwarded)
        self.open += forwarded
        self.frontend.out = [out for out in self.frontend.out if not isinstance(out.message, Query | Feedback)]

    def teardown(self) -> None:
        for _ in range(2):
            self.wait(s(31))
            self.end_turn()
        answers = sent(self.frontend, Answer, CLIENT)
        assert len(answers) == len({answer.id for answer in answers}) == self.requests - self.cancelled
        assert len(sent(self.frontend, Acknowledged, CLIENT)) == self.feedback
        assert len(self.frontend.staging) == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
