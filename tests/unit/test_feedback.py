"""Feedback: joined with cached predictions, counted once, acknowledged when durable, always answered."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexts_harness import BOTH, A, B, ContextsHarness, RecordedLosses, make_active_application
from horologe_common.application_answers import HEAD_BYTES
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Feedback, Observation, Query, Release, Tensor
from horologe_selector.core.feedback.feedback import FeedbackProcessor
from horologe_selector.core.predictions.cache import PredictionCache
from horologe_selector.policy import Selection
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores.memory import MemoryStore

FRONTEND = "frontend/0#1"
QUERY = Query(9, "", ms(100), 1, bytes(32), application="digits")
OK, LOST = int(Status.OK), int(Status.LOST)
MISSING, INVALID, REFUSED = int(Status.MISSING_INPUT), int(Status.INVALID_INPUT), int(Status.REFUSED)


class FeedbackHarness:
    """Feedback processing of a selector with logged answers, and a store that replies step by step."""

    def __init__(self, active: Any = None, **settings: Any) -> None:
        self.active = active or make_active_application()
        self.contexts_harness = ContextsHarness(MemoryStore(), active=self.active, **settings)
        self.cache = PredictionCache(1 << 20)
        applications = {self.active.application.name: self.active}
        self.feedback = FeedbackProcessor(
            SelectorSettings(**settings), applications, self.contexts_harness.contexts, self.cache
        )
        self.number = 0
        self.released: list[int] = []

    def log_answer(
        self, context: str = "", own: bool = False, selection: Selection = BOTH, **predictions: tuple[int, ...]
    ) -> bytes:
        """Log an answer and cache the predictions of `digits-a` and `digits-b`. Return the prediction id."""
        self.number += 1
        prediction = self.number.to_bytes(HEAD_BYTES, "big") + self.number.to_bytes(32, "little")
        keys = {}
        for model, values in {A: predictions.get("a"), B: predictions.get("b")}.items():
            keys[model] = b"%s/1\0hash" % model.encode() + (prediction if own else prediction[HEAD_BYTES:])
            if values:
                tensor = Tensor("label", "INT64", (len(values),), 8 * len(values))
                data = struct.pack(f"<{len(values)}q", *values)
                self.cache.store(self.contexts_harness.now_ns, keys[model], (tensor,), [data], s(60))
        self.feedback.predictions.add(prediction, self.active.application.name, context, selection, keys)
        return prediction

    def send_feedback(self, *items: Observation, application: str = "digits") -> int:
        self.number += 1
        self.feedback.on_feedback(self.contexts_harness.now_ns, FRONTEND, Feedback(self.number, application, items))
        self.tick()
        return self.number

    def tick(self, later_ns: int = 0) -> None:
        self.contexts_harness.now_ns += later_ns
        self.contexts_harness.contexts.tick(self.contexts_harness.now_ns)
        self.contexts_harness.requests += self.contexts_harness.contexts.pop_messages()
        self.feedback.tick(self.contexts_harness.now_ns)
        self.feedback.check()

    def run_until_idle(self) -> None:
        while self.contexts_harness.requests or self.contexts_harness.replies:
            self.contexts_harness.serve_request()
            if self.contexts_harness.replies:
                self.contexts_harness.contexts.on_store_reply(
                    self.contexts_harness.now_ns, self.contexts_harness.replies.popleft()
                )
            self.tick()

    def pop_acknowledgements(self) -> dict[int, Acknowledged]:
        outs = self.feedback.pop_messages()
        assert all(out.to == FRONTEND for out in outs)
        self.released += [input_id for out in outs if isinstance(out.message, Release) for input_id in out.message.ids]
        messages = [out.message for out in outs if isinstance(out.message, Acknowledged)]
        by_id = {message.id: message for message in messages}
        assert len(by_id) == len(messages)
        return by_id

    def observed_losses(self, context: str = "") -> list[float]:
        state = self.contexts_harness.contexts.get_state(self.contexts_harness.now_ns, self.active, context)
        assert isinstance(state, RecordedLosses)
        return state.losses


def make_observation(prediction: bytes, *truths: float, **fields: Any) -> Observation:
    return Observation(truths or (7.0,), prediction, **fields)


def test_feedback_is_joined_with_each_models_prediction_and_acknowledged_once_saved() -> None:
    harness = FeedbackHarness()
    right, wrong = harness.log_answer(a=(7,), b=(3,)), harness.log_answer(a=(4,), b=(7,))
    number = harness.send_feedback(make_observation(right), make_observation(wrong))
    assert harness.pop_acknowledgements() == {}
    harness.run_until_idle()
    assert harness.pop_acknowledgements() == {number: Acknowledged(number, (OK, OK))}
    assert harness.observed_losses() == [0.0, 1.0]
    assert [(harness.active.tallies[model].observations, harness.active.tallies[model].loss) for model in (A, B)] == [
        (2, 1.0),
        (2, 1.0),
    ]


def test_the_loss_of_several_rows_is_their_mean() -> None:
    harness = FeedbackHarness()
    harness.send_feedback(make_observation(harness.log_answer(a=(1, 2, 3, 4), b=(0, 0, 0, 0)), 1, 2, 9, 9))
    harness.run_until_idle()
    assert harness.observed_losses() == [0.5]


def test_feedback_goes_to_the_answers_context_or_the_named_one() -> None:
    harness = FeedbackHarness()
    harness.send_feedback(
        make_observation(harness.log_answer("ann", a=(7,))),
        make_observation(harness.log_answer("ann", a=(6,)), context="bob"),
    )
    harness.run_until_idle()
    assert (harness.observed_losses("ann"), harness.observed_losses("bob")) == ([0.0], [1.0])


def test_feedback_on_another_applications_prediction_is_invalid_even_after_feedback() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,), b=(7,))
    harness.send_feedback(make_observation(prediction))
    harness.run_until_idle()
    harness.pop_acknowledgements()
    harness.feedback._applications = {"other": make_active_application("other")}
    number = harness.send_feedback(make_observation(prediction), application="other")
    answer = harness.pop_acknowledgements()[number]
    assert answer.statuses == (INVALID,)
    assert answer.reason == "prediction: got one of application 'digits', wanted one of 'other'"


def test_feedback_finds_private_predictions() -> None:
    harness = FeedbackHarness()
    harness.send_feedback(make_observation(harness.log_answer(own=True, a=(7,), b=(7,))))
    harness.run_until_idle()
    assert harness.observed_losses() == [0.0]


def test_feedback_finds_expired_predictions() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,))
    harness.tick(s(3600))
    harness.send_feedback(make_observation(prediction))
    harness.run_until_idle()
    assert harness.observed_losses() == [0.0]


def test_models_are_observed_although_another_prediction_is_missing() -> None:
    harness = FeedbackHarness()
    harness.send_feedback(make_observation(harness.log_answer(a=(7,))))
    harness.run_until_idle()
    assert (harness.observed_losses(), harness.active.tallies[B].observations) == ([0.0], 0)


def test_duplicate_feedback_counts_once_and_is_acknowledged_each_time() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,), b=(7,))
    first, second = (
        harness.send_feedback(make_observation(prediction), make_observation(prediction)),
        harness.send_feedback(make_observation(prediction)),
    )
    assert harness.pop_acknowledgements() == {}
    harness.run_until_idle()
    assert harness.pop_acknowledgements() == {first: Acknowledged(first, (OK, OK)), second: Acknowledged(second, (OK,))}
    third = harness.send_feedback(make_observation(prediction))
    assert harness.pop_acknowledgements() == {third: Acknowledged(third, (OK,))}
    assert harness.observed_losses() == [0.0]


def test_feedback_without_prediction_or_inputs_is_missing_input() -> None:
    harness = FeedbackHarness(predictions=2)
    forgotten, evicted, kept = harness.log_answer(a=(7,)), harness.log_answer(), harness.log_answer(a=(7,))
    number = harness.send_feedback(
        make_observation(forgotten),
        make_observation(evicted),
        make_observation(b"nonsense"),
        make_observation(b""),
        make_observation(kept),
    )
    harness.run_until_idle()
    acknowledged = harness.pop_acknowledgements()[number]
    assert acknowledged.statuses == (MISSING, MISSING, MISSING, MISSING, OK)
    assert "send the inputs again" in acknowledged.reason


def test_feedback_with_inputs_is_predicted_again() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer("ann", a=(7,))
    number = harness.send_feedback(make_observation(prediction, query=QUERY))
    (request,) = harness.feedback.pop_unstarted_repredictions()
    assert request.item.feedback.frontend == FRONTEND
    assert (request.active, request.query, request.selection) == (harness.active, QUERY, BOTH)
    twice = harness.send_feedback(make_observation(prediction, query=msgspec.structs.replace(QUERY, id=10)))
    assert harness.feedback.pop_unstarted_repredictions() == []
    harness.feedback.on_repredicted(0, request.token, {B: (7.0,)})
    harness.feedback.on_repredicted(0, request.token, {B: (7.0,)})
    harness.tick()
    harness.run_until_idle()
    assert {message.id: message.statuses for message in harness.pop_acknowledgements().values()} == {
        number: (OK,),
        twice: (OK,),
    }
    assert harness.observed_losses("ann") == [0.0]
    assert harness.active.tallies[B].observations == 1
    assert harness.released == [10], "the duplicate's inputs; a query releases the others"


@pytest.mark.parametrize("application", ["digits", "letters"])
def test_unneeded_inputs_are_released_at_once(application: str) -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,), b=(7,))
    harness.send_feedback(
        make_observation(prediction, query=QUERY), make_observation(b"nonsense"), application=application
    )
    harness.pop_acknowledgements()
    assert harness.released == [QUERY.id]
    assert harness.feedback.pop_unstarted_repredictions() == []


def test_removed_models_do_not_predict_again() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer("ann")
    less = make_active_application(revision=2)
    less.application = msgspec.structs.replace(less.application, models=(A,))
    harness.feedback._applications["digits"] = less  # type: ignore[index]
    harness.send_feedback(make_observation(prediction, query=QUERY))
    (request,) = harness.feedback.pop_unstarted_repredictions()
    assert request.selection == Selection((A,))


def test_too_many_duplicates_are_refused() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,))
    for _ in range(5):
        number = harness.send_feedback(*[make_observation(prediction)] * 70)
        harness.tick(s(5))
        statuses = harness.pop_acknowledgements()[number].statuses
        assert statuses.count(LOST) + statuses.count(REFUSED) == 70
        assert statuses.count(REFUSED) >= 5
    logged = harness.feedback.predictions.get(prediction)
    assert logged is not None
    assert len(logged.pending_item.duplicates) <= 64
    harness.run_until_idle()
    assert harness.observed_losses() == [0.0]


def test_feedback_with_inputs_needs_no_prediction() -> None:
    harness = FeedbackHarness()
    number = harness.send_feedback(
        make_observation(b"", query=QUERY, context="bob"), make_observation(b"unheard of", query=QUERY)
    )
    first, second = harness.feedback.pop_unstarted_repredictions()
    assert first.selection is second.selection is None
    harness.feedback.on_repredicted(0, first.token, {A: (7.0,), B: (7.0,)}, BOTH)
    harness.feedback.on_repredicted(0, second.token, {}, BOTH)
    harness.tick()
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[number].statuses == (OK, MISSING)
    assert harness.observed_losses("bob") == [0.0]
    again = harness.send_feedback(make_observation(b"unheard of", query=QUERY))
    (third,) = harness.feedback.pop_unstarted_repredictions()
    harness.feedback.on_repredicted(0, third.token, {A: (7.0,)}, BOTH)
    harness.tick()
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[again].statuses == (OK,)


@pytest.mark.parametrize("truths", [(), (1.0, 2.0), (float("nan"),), (float("inf"),)])
def test_truths_of_the_wrong_number_or_not_finite_are_invalid(truths: tuple[float, ...]) -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,), b=(7,))
    number = harness.send_feedback(Observation(truths, prediction))
    acknowledged = harness.pop_acknowledgements()[number]
    assert acknowledged.statuses == (INVALID,)
    assert acknowledged.reason.startswith("truths: got ")
    harness.send_feedback(make_observation(prediction))
    harness.run_until_idle()
    assert harness.observed_losses() == [0.0]


def test_feedback_for_an_unknown_or_another_application_fails() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,))
    number = harness.send_feedback(make_observation(prediction), make_observation(prediction), application="letters")
    assert harness.pop_acknowledgements()[number].statuses == (Status.UNKNOWN_MODEL, Status.UNKNOWN_MODEL)
    harness.feedback._applications["letters"] = make_active_application("letters")  # type: ignore[index]
    number = harness.send_feedback(make_observation(prediction), application="letters")
    assert harness.pop_acknowledgements()[number].statuses == (INVALID,)
    number = harness.send_feedback()
    assert harness.pop_acknowledgements()[number] == Acknowledged(number, ())


def test_an_exception_in_a_loss_fails_only_its_item() -> None:
    harness = FeedbackHarness()

    def loss(truth: float, value: float) -> float:
        if truth == 13:
            raise ArithmeticError("unlucky")
        return 0.5

    harness.active.loss = loss
    number = harness.send_feedback(
        make_observation(harness.log_answer(a=(7,)), 13), make_observation(harness.log_answer(a=(7,)))
    )
    harness.run_until_idle()
    acknowledged = harness.pop_acknowledgements()[number]
    assert acknowledged.statuses == (Status.FAILED, OK)
    assert acknowledged.reason == "loss: ArithmeticError: unlucky"


def test_withdrawing_an_application_fails_its_pending_feedback() -> None:
    harness = FeedbackHarness()
    number = harness.send_feedback(make_observation(harness.log_answer(a=(7,))))
    harness.contexts_harness.contexts.remove_application("digits")
    harness.tick()
    assert harness.pop_acknowledgements()[number].statuses == (Status.UNKNOWN_MODEL,)


def test_feedback_waits_for_an_unavailable_store_up_to_a_limit() -> None:
    harness = FeedbackHarness(unsaved=2)
    predictions = [harness.log_answer(a=(7,)) for _ in range(4)]
    harness.contexts_harness.contexts.get_state(0, harness.active, "")
    harness.tick()
    harness.contexts_harness.serve_request(done=False)
    harness.contexts_harness.contexts.on_store_reply(0, harness.contexts_harness.replies.popleft())
    number = harness.send_feedback(*map(make_observation, predictions))
    refused = harness.send_feedback(make_observation(predictions[3]))
    acknowledged = harness.pop_acknowledgements()[refused]
    assert (acknowledged.statuses, acknowledged.reason) == ((REFUSED,), "the state store is unavailable")
    assert acknowledged.retry_after_ns == ms(500)
    harness.tick(ms(500))
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[number].statuses == (OK, OK, REFUSED, REFUSED)
    assert harness.observed_losses() == [0.0, 0.0]


def test_feedback_not_saved_in_time_is_lost_and_may_be_sent_again() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,))
    number = harness.send_feedback(make_observation(prediction), make_observation(b""))
    assert harness.feedback.wakeup_ns() == s(5)
    harness.tick(s(5))
    acknowledged = harness.pop_acknowledgements()[number]
    assert acknowledged.statuses == (LOST, MISSING)
    again = harness.send_feedback(make_observation(prediction))
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[again].statuses == (OK,)
    assert harness.observed_losses() == [0.0]
    assert harness.feedback.wakeup_ns() is None


def test_feedback_not_predicted_again_in_time_is_lost_and_may_be_sent_again() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer()
    number = harness.send_feedback(make_observation(prediction, query=QUERY))
    (request,) = harness.feedback.pop_unstarted_repredictions()
    harness.tick(s(5))
    assert harness.pop_acknowledgements()[number].statuses == (LOST,)
    harness.feedback.on_repredicted(harness.contexts_harness.now_ns, request.token, {A: (7.0,)}, BOTH)
    assert harness.contexts_harness.contexts.unsaved == 0
    again = harness.send_feedback(make_observation(prediction, query=QUERY))
    (request,) = harness.feedback.pop_unstarted_repredictions()
    harness.feedback.on_repredicted(harness.contexts_harness.now_ns, request.token, {A: (7.0,)}, BOTH)
    harness.tick()
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[again].statuses == (OK,)


def test_the_prediction_log_is_bounded() -> None:
    harness = FeedbackHarness(predictions=10)
    first = harness.log_answer(a=(7,))
    for _ in range(10):
        harness.log_answer(a=(7,))
    assert len(harness.feedback.predictions) == 10
    assert harness.feedback.predictions.get(first) is None


@given(
    st.lists(st.tuples(st.sampled_from(["tell", "again", "serve", "fail", "lose", "hear", "late"]), st.integers(0, 5)))
)
def test_each_feedback_gets_one_reply_and_each_prediction_counts_at_most_once(steps: list[tuple[str, int]]) -> None:
    harness = FeedbackHarness(unsaved=4)
    predictions = [harness.log_answer(a=(7,), b=(1,)) for _ in range(6)]
    sent: set[int] = set()
    replies: dict[int, Acknowledged] = {}
    asked: dict[int, int] = {}
    for step, at in steps:
        match step:
            case "tell":
                number = harness.send_feedback(make_observation(predictions[at]))
                sent.add(number)
                asked[number] = at
            case "serve":
                harness.contexts_harness.serve_request()
            case "fail":
                harness.contexts_harness.serve_request(done=False)
            case "lose":
                harness.contexts_harness.serve_request(replied=False)
            case "hear" if harness.contexts_harness.replies:
                harness.contexts_harness.contexts.on_store_reply(
                    harness.contexts_harness.now_ns, harness.contexts_harness.replies.popleft()
                )
            case "late":
                harness.tick(s(2))
        harness.tick()
        new = harness.pop_acknowledgements()
        assert not new.keys() & replies.keys()
        replies |= new
    harness.tick(s(5))
    harness.run_until_idle()
    harness.tick(s(5))
    harness.run_until_idle()
    replies |= harness.pop_acknowledgements()
    assert replies.keys() == sent
    assert len(harness.feedback) == 0
    ok = {asked[number] for number, reply in replies.items() if reply.statuses == (OK,)}
    harness.contexts_harness.contexts.get_state(harness.contexts_harness.now_ns, harness.active, "")
    harness.tick()
    harness.run_until_idle()
    assert len(ok) <= len(harness.observed_losses()) <= len({*asked.values()})
