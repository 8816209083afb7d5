"""The client's conversation without sockets: every request ends exactly once, with what is its own."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fake_frontend import ECHO, PAIR, WORDS, echo
from horologe.encoder import ASK_NS
from horologe.session import Session
from horologe_common.clock import ms, s
from horologe_common.frames import pack, unpack
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import (
    Cancelled,
    HorologeError,
    InvalidInput,
    Late,
    Lost,
    ModelFailed,
    ProtocolMismatch,
    Refused,
    Status,
    TooLarge,
    Unauthenticated,
    UnknownModel,
)
from horologe_common.wire import (
    PROTOCOL,
    Admit,
    Answer,
    Cancel,
    Describe,
    Description,
    Hello,
    Letter,
    ModelInfo,
    Models,
    ModelState,
    Predict,
    Rejected,
    Tensor,
    Welcome,
)

X = np.arange(4, dtype=np.float32).reshape(1, 4)


class Sink:
    """Where a request ends; ending it twice is an error."""

    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.id = 0

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, result: Any, /) -> None:
        assert not self.ends
        self.ends.append(result)

    def set_exception(self, exception: BaseException, /) -> None:
        assert not self.ends
        self.ends.append(exception)

    @property
    def end(self) -> Any:
        assert len(self.ends) == 1, "not ended"
        return self.ends[0]


class Talk:
    """A session and the other end of its line, at a time that only tests move."""

    def __init__(self, **limits: int) -> None:
        self.session = Session({}, **limits)
        self.now_ns = s(1000)
        self.headers: list[bytes] = []

    def sent(self) -> list[tuple[Any, list[Any]]]:
        """What the session sends now: (message, buffers)."""
        arrived = []
        for packet in self.session.packets(self.now_ns):
            self.headers.append(bytes(packet[0]))
            arrived += [(message, buffers) for _, _, message, buffers in unpack(packet, 64 << 10)]
        return arrived

    def get(self, *messages: Any, buffers: Any = ()) -> None:
        self.session.receive(self.now_ns, pack([Letter("", "", list(messages))], buffers))

    def welcomed(self) -> Talk:
        self.session.connected(self.now_ns)
        assert [message for message, _ in self.sent()] == [Hello(PROTOCOL, ())]
        self.get(Welcome(PROTOCOL, ()))
        return self

    def knowing(self, *specs: ModelSpec) -> Talk:
        """Connected, with the signatures of these models."""
        self.welcomed()
        for spec in specs:
            self.predict(spec.name, {})
            ((question, _),) = self.sent()
            self.get(Models(question.id, (ModelState(spec),)))
            ((request, _),) = self.sent()
            self.get(Answer(request.id, Status.REFUSED))
        return self

    def predict(self, model: str = "echo", inputs: Any = X, **how: Any) -> Sink:
        sink = Sink()
        sink.id = self.session.predict(self.now_ns, sink, model, inputs, **how)
        return sink

    def after(self, elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns
        self.session.expire(self.now_ns)
        self.session.book.check()


def test_a_request_is_sent_with_what_remains_of_its_budget_and_its_answer_comes_back() -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict(slo_ms=50)
    talk.now_ns += ms(1)
    ((request, buffers),) = talk.sent()
    assert request == Predict(request.id, "echo", "", ms(49), (Tensor("x", "FP32", (1, 4), 16),))
    answer, _ = echo(request, buffers)
    talk.get(answer, buffers=buffers)
    assert np.array_equal(sink.end.value, X)
    assert (sink.end.version, sink.end.queue_ns, sink.end.exec_ns, sink.end.batch_size) == ("1", 10, 20, 1)
    sink.end.value[0] = 7  # the caller's own
    assert talk.session.next_ns() is None


def test_the_application_goes_along() -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(application="chat")
    ((request, _),) = talk.sent()
    assert request.application == "chat"


def test_another_msgpack_reads_what_is_sent() -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(version="1", timeout=0.2, outputs=("y",))
    talk.sent()
    (((to, sender, messages)),) = msgpack.unpackb(talk.headers[-1])
    assert (to, sender) == ("", "")
    assert messages == [[4, messages[0][1], "echo", ""]], "a version of its own has a signature of its own"
    talk.get(Models(messages[0][1], (ModelState(ECHO),)))
    talk.sent()
    ((_, _, (message,)),) = msgpack.unpackb(talk.headers[-1])
    assert message == [1, message[1], "echo", "1", ms(200), [["x", "FP32", [1, 4], 16]], ["y"], "", ""]
    assert msgpack.unpackb(talk.headers[0]) == [["", "", [[10, 1, [], "", "", []]]]]


def test_one_question_serves_all_requests_that_wait_for_a_signature() -> None:
    talk = Talk().welcomed()
    sinks = [talk.predict() for _ in range(3)]
    ((question, _),) = talk.sent()
    assert isinstance(question, ModelInfo)
    talk.get(Models(question.id, (ModelState(ECHO),)))
    requests = talk.sent()
    assert [type(message) for message, _ in requests] == [Predict] * 3
    assert len(talk.headers) == 3, "Hello, the question, and one packet for all"
    assert not any(sink.done() for sink in sinks)


def test_arrays_may_be_reused_at_once() -> None:
    for talk in (Talk().welcomed(), Talk().knowing(ECHO)):
        array = X.copy()
        talk.predict(inputs=array)
        array[:] = 9
        for message, _ in talk.sent():
            if isinstance(message, ModelInfo):
                talk.get(Models(message.id, (ModelState(ECHO),)))
                ((_, (body,)),) = talk.sent()
                assert bytes(body) == X.tobytes()


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([[1, 2, 3, 4]], "FP32"), ([[1.5, 2, 3, 4]], "FP32"), (np.ones((1, 4)), "FP32"),
        (np.ones((1, 4), np.uint8), "FP32"), (np.ones((1, 4), np.int64), "INT64"), (np.ones((1, 4), bool), "FP32"),
        ([["a", "b", "c", "d"]], "BYTES"),
    ],
)  # fmt: skip
def test_numbers_are_converted_where_nothing_is_lost_by_surprise(value: Any, datatype: str) -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(inputs=value)
    ((request, _),) = talk.sent()
    assert request.inputs[0].datatype == datatype


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([[1, 2], [3]], "input 'x': got list"), (np.full((1, 4), 1e300), "too large for float32"),
        (np.ones((1, 4), complex), "dtype: got complex128"), ({3: X}, "names: got 3"), ([None], "an item of NoneType"),
    ],
)  # fmt: skip
def test_what_cannot_become_a_tensor_is_invalid_input(value: Any, why: str) -> None:
    sink = Talk().knowing(ECHO).predict(inputs=value)
    assert isinstance(sink.end, InvalidInput)
    assert why in sink.end.reason


def test_lists_of_whole_numbers_fit_integers_they_are_in_range_of() -> None:
    talk = Talk().welcomed()
    small = ModelSpec("small", "1", "onnx", (TensorSpec("x", "UINT8", (-1,)),), ())
    talk.predict("small", [])
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (ModelState(small),)))
    for value, datatype in (([255], "UINT8"), ([256], "INT64"), ([-1], "INT64"), ([0.5], "FP64")):
        talk.sent()
        talk.predict("small", value)
        ((request, _),) = talk.sent()
        assert request.inputs[0].datatype == datatype


def test_inputs_by_name_give_outputs_by_name() -> None:
    talk = Talk().knowing(PAIR)
    sink = talk.predict("pair", {"a": np.ones((1, 2)), "b": [[1, 2, 3]]})
    ((request, buffers),) = talk.sent()
    assert [tensor.datatype for tensor in request.inputs] == ["FP32", "INT64"]
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert set(sink.end.value) == {"a", "b"}


def test_one_array_for_a_model_with_several_inputs_is_refused_by_name() -> None:
    assert "wanted a dict with a, b" in Talk().knowing(PAIR).predict("pair", X).end.reason


def test_strings_travel() -> None:
    talk = Talk().knowing(WORDS)
    sink = talk.predict("words", ["a", "é"])
    ((request, buffers),) = talk.sent()
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert list(sink.end.value) == [b"a", "é".encode()]


def test_without_an_answer_a_request_is_lost_at_its_deadline_and_grace() -> None:
    talk = Talk(grace_ns=ms(50)).knowing(ECHO)
    sink = talk.predict(slo_ms=100)
    ((request, buffers),) = talk.sent()
    assert talk.session.next_ns() == talk.now_ns + ms(150)
    talk.after(ms(150) - 1)
    assert not sink.done()
    talk.after(1)
    assert isinstance(sink.end, Lost)
    ignored = talk.session.ignored
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert talk.session.ignored == ignored + 1, "too late"


@pytest.mark.parametrize(("slo_ns", "lost_ns"), [(ms(20), ms(70)), (0, s(30) + ms(50))])
def test_without_a_deadline_the_models_own_holds_or_best_effort(slo_ns: int, lost_ns: int) -> None:
    spec = ModelSpec("echo", "1", "onnx", ECHO.inputs, ECHO.outputs, slo_ns=slo_ns)
    talk = Talk().knowing(spec)
    sink = talk.predict()
    ((request, _),) = talk.sent()
    assert request.budget_ns == 0
    talk.after(lost_ns - 1)
    assert not sink.done()
    talk.after(1)
    assert isinstance(sink.end, Lost)


def test_without_any_server_a_request_is_lost_too() -> None:
    talk = Talk()
    sink = talk.predict(timeout=1)
    assert talk.sent() == []
    talk.after(s(1) + ms(50))
    assert isinstance(sink.end, Lost)
    assert "could not be reached" in sink.end.reason


@pytest.mark.parametrize("how", [{"slo_ms": 0}, {"timeout": -1}, {"slo_ms": float("nan")}, {"timeout": "soon"}])
def test_a_deadline_must_be_a_positive_number(how: dict[str, Any]) -> None:
    end = Talk().knowing(ECHO).predict(**how).end
    assert isinstance(end, InvalidInput)
    assert next(iter(how)) in end.reason


def test_the_smaller_of_slo_and_timeout_is_the_deadline() -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(slo_ms=30, timeout=0.02)
    assert talk.sent()[0][0].budget_ns == ms(20)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_INPUT, InvalidInput), (Status.REFUSED, Refused), (Status.LOST, Lost),
        (Status.UNKNOWN_MODEL, UnknownModel), (Status.TOO_LARGE, TooLarge), (Status.FAILED, ModelFailed),
        (77, ModelFailed),
    ],
)  # fmt: skip
def test_every_status_raises_its_error(status: int, kind: type[HorologeError]) -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    ((request, _),) = talk.sent()
    talk.get(Answer(request.id, status, (), "why", 5))
    assert type(sink.end) is kind
    assert (sink.end.reason, sink.end.retry_after_ns) == ("why", 5)


def test_a_late_answer_brings_what_came() -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    ((request, buffers),) = talk.sent()
    talk.get(Answer(request.id, Status.LATE, request.inputs, "late"), buffers=buffers)
    assert isinstance(sink.end, Late)
    assert np.array_equal(sink.end.reply.value, X)


@pytest.mark.parametrize("status", [Status.INVALID_INPUT, Status.UNKNOWN_MODEL])
def test_when_the_server_disagrees_the_signature_is_asked_for_again(status: Status) -> None:
    talk = Talk().knowing(ECHO)
    talk.predict()
    talk.get(Answer(talk.sent()[0][0].id, status))
    talk.predict()
    assert [type(message) for message, _ in talk.sent()] == [ModelInfo]


def test_an_unknown_model_or_version_is_said_to_be_so() -> None:
    talk = Talk().welcomed()
    gone, old = talk.predict("nope"), talk.predict("echo", version="9")
    (nope, _), (version, _) = talk.sent()
    talk.get(Models(nope.id, (), Status.UNKNOWN_MODEL, "model 'nope'"), Models(version.id, (ModelState(ECHO),)))
    assert isinstance(gone.end, UnknownModel)
    assert isinstance(old.end, UnknownModel)
    assert "got '9', known are: 1" in old.end.reason


def test_a_question_for_a_signature_that_is_lost_is_asked_again() -> None:
    talk = Talk().welcomed()
    sink = talk.predict(timeout=10)
    ((first, _),) = talk.sent()
    talk.after(ASK_NS + ms(50))
    ((second, _),) = talk.sent()
    assert second.id != first.id
    talk.get(Models(second.id, (ModelState(ECHO),)))
    assert [type(message) for message, _ in talk.sent()] == [Predict]
    assert not sink.done()


def test_when_the_frontend_goes_what_was_sent_is_lost_and_what_was_not_waits() -> None:
    talk = Talk().knowing(ECHO)
    sent = talk.predict(timeout=5)
    talk.sent()
    waiting = talk.predict(timeout=5)
    talk.session.disconnected(talk.now_ns)
    assert isinstance(sent.end, Lost)
    assert talk.sent() == []
    talk.welcomed()
    assert not waiting.done()
    assert [type(message) for message, _ in talk.sent()] == [Predict]


def test_hello_is_said_again_until_there_is_a_welcome() -> None:
    talk = Talk()
    talk.session.connected(talk.now_ns)
    assert len(talk.sent()) == 1
    assert talk.sent() == []
    talk.after(ASK_NS)
    assert [type(message) for message, _ in talk.sent()] == [Hello]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Rejected(Status.PROTOCOL, "protocol"), ProtocolMismatch), (Welcome(PROTOCOL + 1, ()), ProtocolMismatch),
        (Rejected(Status.UNAUTHENTICATED), Unauthenticated),
    ],
)  # fmt: skip
def test_without_a_welcome_everything_fails_until_the_next_connection(message: Any, kind: type[HorologeError]) -> None:
    talk = Talk()
    waiting = talk.predict()
    talk.session.connected(talk.now_ns)
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


def test_cancelling_tells_the_server_only_if_it_knows() -> None:
    talk = Talk().knowing(ECHO)
    sent, unsent = talk.predict(), None
    ((request, buffers),) = talk.sent()
    unsent = talk.predict()
    talk.session.cancel(request.id)
    talk.session.cancel(unsent.id)
    talk.session.cancel(12345)
    assert [message for message, _ in talk.sent()] == [Cancel((request.id,))]
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert not sent.done(), "the sink is its canceller's"
    assert len(talk.session.book) == 0


def test_a_full_client_refuses_and_takes_again_when_there_is_room() -> None:
    talk = Talk(max_open=2, max_bytes=40).knowing(ECHO)
    first, second, third = (talk.predict() for _ in range(3))
    assert isinstance(third.end, Refused)
    assert "client queue full: 2 requests" in third.end.reason
    talk.get(*(Answer(message.id, Status.LOST) for message, _ in talk.sent()))
    assert first.done()
    assert second.done()
    assert "bytes are open" in talk.predict(inputs=np.ones((3, 4), np.float32)).end.reason
    assert not talk.predict().done()
    talk.session.book.check()


def test_what_no_frontend_takes_is_too_large_and_does_not_take_others_along() -> None:
    talk = Talk().knowing(ECHO)
    sinks = [talk.predict(inputs={"x" * (70_000 if at == 2 else 1): X}) for at in range(5)]
    assert len(talk.sent()) == 4
    assert [sink.done() for sink in sinks] == [False, False, True, False, False]
    assert isinstance(sinks[2].end, TooLarge)


def test_names_that_are_no_text_do_not_take_others_along() -> None:
    talk = Talk().knowing(ECHO)
    good, bad = talk.predict(), talk.predict(outputs=("\ud800",))
    assert len(talk.sent()) == 1
    assert isinstance(bad.end, InvalidInput)
    assert isinstance(talk.predict(model=5).end, InvalidInput)  # type: ignore[arg-type]
    assert isinstance(talk.predict(application=None).end, InvalidInput)
    assert not good.done()


def test_questions_are_answered_by_their_own_kind_only() -> None:
    talk = Talk().welcomed()
    models, cluster, admitted = Sink(), Sink(), Sink()
    first = talk.session.ask(talk.now_ns, models, lambda number: ModelInfo(number), 1.0)
    second = talk.session.ask(talk.now_ns, cluster, Describe, 1.0)
    third = talk.session.ask(talk.now_ns, admitted, lambda number: Admit(number, "m", "", True), 1.0)
    talk.sent()
    talk.get(Description(first, (), "edf", 0), Models(second, ()), Answer(first, 0), Answer(second, 0))
    assert not any(sink.done() for sink in (models, cluster))
    talk.get(Models(first, (ModelState(ECHO),)), Description(second, (), "edf", 3), Models(third, (), 3, "no m"))
    assert models.end == (ModelState(ECHO),)
    assert cluster.end.requests_pending == 3
    assert isinstance(admitted.end, UnknownModel)


def test_closing_ends_everything() -> None:
    talk = Talk().knowing(ECHO)
    sinks = [talk.predict(), talk.predict("parked")]
    talk.session.close()
    assert all(isinstance(sink.end, Cancelled) for sink in [*sinks, talk.predict()])
    assert talk.session.next_ns() is None


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_garbage_is_ignored(frames: list[bytes]) -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    talk.sent()
    talk.session.receive(talk.now_ns, frames)
    assert not sink.done()
    assert talk.session.handshake.ready


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
    """Whatever happens in whatever order, each request ends at most once, and at the latest when its time is up."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Talk(grace_ns=ms(50), max_open=6)
        self.sinks: list[tuple[Sink, int]] = []
        self.asked: list[tuple[Any, list[Any]]] = []

    @rule(
        model=st.sampled_from(["echo", "words", "nope"]), millis=st.integers(1, 2000), value=st.sampled_from([X, [[1]]])
    )
    def predict(self, model: str, millis: int, value: Any) -> None:
        self.sinks.append((self.talk.predict(model, value, slo_ms=millis), self.talk.now_ns + ms(millis + 50)))

    @rule()
    def send(self) -> None:
        self.asked += self.talk.sent()

    @rule(at=st.integers(0, 30), status=st.sampled_from([Status.OK, Status.REFUSED, Status.INVALID_INPUT]))
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
        self.talk.session.connected(self.talk.now_ns)

    @rule()
    def disconnect(self) -> None:
        self.talk.session.disconnected(self.talk.now_ns)

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
        self.talk.session.book.check()
        self.talk.session.expire(self.talk.now_ns)
        for sink, until_ns in self.sinks:
            assert sink.done() or self.talk.now_ns < until_ns

    def teardown(self) -> None:
        self.talk.session.close()
        assert all(sink.done() for sink, _ in self.sinks)
        assert len(self.talk.session.book) == 0
        assert self.talk.session.book.held_bytes == 0


TestAnyWeather = AnyWeather.TestCase
TestAnyWeather.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
