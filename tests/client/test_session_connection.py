"""The client's connection: the handshake, a frontend that goes, and what arrives that should not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from client.talk import Sink, Talk, X
from fakes.frontend import ECHO, WORDS, echo
from horologe.core.encoding import SIGNATURE_TIMEOUT_NS
from horologe_common.clock import ms
from horologe_common.status import (
    Cancelled,
    HorologeError,
    Lost,
    ModelFailed,
    ProtocolMismatch,
    Status,
    TooLarge,
    Unauthenticated,
)
from horologe_common.wire import (
    PROTOCOL,
    Answer,
    Hello,
    ModelInfo,
    Models,
    ModelState,
    Predict,
    Rejected,
    Tensor,
    Welcome,
)


def test_when_the_frontend_goes_what_was_sent_is_lost_and_what_was_not_waits() -> None:
    talk = Talk().knowing(ECHO)
    sent = talk.predict(timeout=5)
    talk.sent()
    waiting = talk.predict(timeout=5)
    talk.session.on_disconnected(talk.now_ns, 1)
    assert isinstance(sent.end, Lost)
    assert talk.sent() == []
    talk.welcomed()
    assert not waiting.done()
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (ModelState(ECHO),)))
    assert [type(message) for message, _ in talk.sent()] == [Predict]


def test_hello_is_said_again_until_there_is_a_welcome() -> None:
    talk = Talk()
    talk.session.on_connected(talk.now_ns)
    assert len(talk.sent()) == 1
    assert talk.sent() == []
    talk.after(SIGNATURE_TIMEOUT_NS)
    assert [type(message) for message, _ in talk.sent()] == [Hello]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Rejected(Status.PROTOCOL, "protocol"), ProtocolMismatch),
        (Welcome(PROTOCOL + 1, ()), ProtocolMismatch),
        (Rejected(Status.UNAUTHENTICATED), Unauthenticated),
    ],
)
def test_without_a_welcome_everything_fails_until_the_next_connection(message: Any, kind: type[HorologeError]) -> None:
    talk = Talk()
    waiting = talk.predict()
    talk.session.on_connected(talk.now_ns)
    talk.sent()
    talk.get(message)
    assert type(waiting.end) is kind
    assert type(talk.predict().end) is kind
    talk.welcomed()
    assert not talk.predict().done()


def test_a_packet_that_was_rejected_ends_the_request_that_was_alone_in_it() -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    talk.sent()
    talk.get(Rejected(Status.TOO_LARGE, "body"))
    assert isinstance(sink.end, TooLarge)
    both = [talk.predict(), talk.predict()]
    talk.sent()
    talk.get(Rejected(Status.INVALID_INPUT, "header"))
    assert not any(sink.done() for sink in both), "whose it was is not known: their timers tell"


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_garbage_is_ignored(frames: list[bytes]) -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    talk.sent()
    talk.session.receive(talk.now_ns, frames)
    assert not sink.done()
    assert talk.session.handshake.is_ready


def test_an_answer_that_cannot_be_read_fails_its_own_request_only() -> None:
    talk = Talk().knowing(WORDS)
    bad, good = talk.predict("words", ["a"]), talk.predict("words", ["b"])
    (first, _), (second, buffers) = talk.sent()
    lie = Tensor("s", "BYTES", (1,), 5)
    talk.get(Answer(first.id, 0, (lie,)), echo(second, buffers)[0], buffers=[b"\xff\xff\0\0\0", *buffers])
    assert isinstance(bad.end, ModelFailed)
    assert list(good.end.value) == [b"b"]


@given(st.permutations(range(12)), st.integers(1, 12))
def test_answers_in_any_order_and_any_packets_find_their_requests(order: list[int], step: int) -> None:
    talk = Talk().knowing(ECHO)
    sinks = [talk.predict(inputs=X + at) for at in range(12)]
    sent = talk.sent()
    for at in range(0, 12, step):
        part = [sent[number] for number in order[at : at + step]]
        answers = [echo(message, buffers)[0] for message, buffers in part]
        talk.get(*answers, buffers=[buffer for _, buffers in part for buffer in buffers])
    for at, sink in enumerate(sinks):
        assert np.array_equal(sink.end.value, X + at)


class AnyWeather(RuleBasedStateMachine):
    """Each request ends at most once, and at the latest when its time is up, for random orders of events."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Talk(grace_ns=ms(50), max_open=6)
        self.sinks: list[tuple[Sink, int]] = []
        self.asked: list[tuple[Any, list[Any]]] = []

    @rule(
        model=st.sampled_from(["echo", "words", "nope"]),
        millis=st.integers(1, 2000),
        value=st.sampled_from([X, [[1]]]),
        idempotent=st.booleans(),
    )
    def predict(self, model: str, millis: int, value: Any, idempotent: bool) -> None:
        sink = self.talk.predict(model, value, slo_ms=millis, idempotent=idempotent)
        self.sinks.append((sink, self.talk.now_ns + ms(millis + 50)))

    @rule()
    def send(self) -> None:
        self.asked += self.talk.sent()

    @rule(at=st.integers(0, 30), status=st.sampled_from([Status.OK, Status.REFUSED, Status.INVALID_INPUT, Status.LOST]))
    def answer(self, at: int, status: Status) -> None:
        if not self.asked:
            return
        message, buffers = self.asked[at % len(self.asked)]  # kept: duplicates are part of the weather
        match message:
            case Hello():
                self.talk.get(Welcome(PROTOCOL, ()))
            case ModelInfo():
                states = tuple(ModelState(spec) for spec in (ECHO, WORDS) if spec.name == message.model)
                self.talk.get(Models(message.id, states))
            case Predict() if status == Status.OK:
                self.talk.get(echo(message, buffers)[0], buffers=buffers)
            case Predict():
                self.talk.get(Answer(message.id, status))

    @rule(elapsed=st.integers(0, ms(1500)))
    def wait(self, elapsed: int) -> None:
        self.talk.after(elapsed)

    @rule()
    def connect(self) -> None:
        self.talk.session.on_connected(self.talk.now_ns)

    @rule()
    def disconnect(self) -> None:
        self.talk.session.on_disconnected(self.talk.now_ns, self.talk.session.connection)

    @rule()
    def refuse(self) -> None:
        self.talk.session.refuse(Unauthenticated("keys"))

    @rule(at=st.integers(0, 30))
    def cancel(self, at: int) -> None:
        if self.sinks:
            sink, _ = self.sinks[at % len(self.sinks)]
            self.talk.session.cancel(sink.id)
            if not sink.done():
                sink.set_exception(Cancelled())

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        self.talk.session.pending.check()
        self.talk.session.expire(self.talk.now_ns)
        for sink, until_ns in self.sinks:
            assert sink.done() or self.talk.now_ns < until_ns

    def teardown(self) -> None:
        self.talk.session.close()
        assert all(sink.done() for sink, _ in self.sinks)
        assert len(self.talk.session.pending) == 0
        assert self.talk.session.pending.held_bytes == 0


TestAnyWeather = AnyWeather.TestCase


TestAnyWeather.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
