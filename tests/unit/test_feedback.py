"""Feedback: joined with the cached predictions, counted once, acknowledged when durable, answered in any case."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.prediction_id import HEAD_BYTES
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Feedback, Observation, Query, Release, Tensor
from horologe_selector.core.feedback.feedback import FeedbackProcessor
from horologe_selector.core.predictions.cache import PredictionCache
from horologe_selector.policy import Selection
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores.memory import MemoryStore
from learning import BOTH, A, B, Seen, Shelf, a_running

FRONTEND = "frontend/0#1"
QUERY = Query(9, "", ms(100), 1, bytes(32), application="digits")
OK, LOST = int(Status.OK), int(Status.LOST)
MISSING, INVALID, REFUSED = int(Status.MISSING_INPUT), int(Status.INVALID_INPUT), int(Status.REFUSED)


class Desk:
    """The learning half of a selector: answers that were given, feedback on them, and a store in steps."""

    def __init__(self, running: Any = None, **settings: Any) -> None:
        self.running = running or a_running()
        self.shelf = Shelf(MemoryStore(), running=self.running, **settings)
        self.cache = PredictionCache(1 << 20)
        applications = {self.running.application.name: self.running}
        self.feedback = FeedbackProcessor(SelectorSettings(**settings), applications, self.shelf.contexts, self.cache)
        self.number = 0
        self.released: list[int] = []

    def answered(
        self, context: str = "", own: bool = False, selection: Selection = BOTH, **predictions: tuple[int, ...]
    ) -> bytes:
        """An answer, with predictions of `digits-a` and `digits-b` that came from the cache."""
        self.number += 1
        prediction = self.number.to_bytes(HEAD_BYTES, "big") + self.number.to_bytes(32, "little")
        keys = {}
        for model, values in {A: predictions.get("a"), B: predictions.get("b")}.items():
            keys[model] = b"%s/1\0hash" % model.encode() + (prediction if own else prediction[HEAD_BYTES:])
            if values:
                tensor = Tensor("label", "INT64", (len(values),), 8 * len(values))
                data = struct.pack(f"<{len(values)}q", *values)
                self.cache.store(self.shelf.now_ns, keys[model], (tensor,), [data], s(60))
        self.feedback.log_prediction(prediction, self.running, selection, keys, context)
        return prediction

    def tell(self, *items: Observation, application: str = "digits") -> int:
        self.number += 1
        self.feedback.on_feedback(self.shelf.now_ns, FRONTEND, Feedback(self.number, application, items))
        self.tick()
        return self.number

    def tick(self, later_ns: int = 0) -> None:
        self.shelf.now_ns += later_ns
        self.shelf.contexts.tick(self.shelf.now_ns)
        self.shelf.asked += self.shelf.contexts.pop_messages()
        self.feedback.tick(self.shelf.now_ns)
        self.feedback.check()

    def settle(self) -> None:
        while self.shelf.asked or self.shelf.answers:
            self.shelf.serve()
            if self.shelf.answers:
                self.shelf.contexts.on_store_reply(self.shelf.now_ns, self.shelf.answers.popleft())
            self.tick()

    def acknowledged(self) -> dict[int, Acknowledged]:
        outs = self.feedback.pop_messages()
        assert all(out.to == FRONTEND for out in outs)
        self.released += [input_id for out in outs if isinstance(out.message, Release) for input_id in out.message.ids]
        told = [out.message for out in outs if isinstance(out.message, Acknowledged)]
        found = {message.id: message for message in told}
        assert len(found) == len(told)
        return found

    def losses(self, context: str = "") -> list[float]:
        state = self.shelf.contexts.get_state(self.shelf.now_ns, self.running, context)
        assert isinstance(state, Seen)
        return state.losses


def told(prediction: bytes, *truths: float, **fields: Any) -> Observation:
    return Observation(truths or (7.0,), prediction, **fields)


def test_it_is_joined_with_what_each_model_had_predicted_and_acknowledged_once_saved() -> None:
    desk = Desk()
    right, wrong = desk.answered(a=(7,), b=(3,)), desk.answered(a=(4,), b=(7,))
    number = desk.tell(told(right), told(wrong))
    assert desk.acknowledged() == {}
    desk.settle()
    assert desk.acknowledged() == {number: Acknowledged(number, (OK, OK))}
    assert desk.losses() == [0.0, 1.0]
    assert [(desk.running.tallies[model].observations, desk.running.tallies[model].loss) for model in (A, B)] == [
        (2, 1.0),
        (2, 1.0),
    ]


def test_the_loss_of_several_rows_is_their_mean() -> None:
    desk = Desk()
    desk.tell(told(desk.answered(a=(1, 2, 3, 4), b=(0, 0, 0, 0)), 1, 2, 9, 9))
    desk.settle()
    assert desk.losses() == [0.5]


def test_it_goes_to_the_context_of_the_answer_or_the_one_it_names() -> None:
    desk = Desk()
    desk.tell(told(desk.answered("ann", a=(7,))), told(desk.answered("ann", a=(6,)), context="bob"))
    desk.settle()
    assert (desk.losses("ann"), desk.losses("bob")) == ([0.0], [1.0])


def test_a_prediction_of_another_application_is_no_more_right_for_having_had_its_feedback() -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,), b=(7,))
    desk.tell(told(prediction))
    desk.settle()
    desk.acknowledged()
    desk.feedback._applications = {"other": a_running("other")}
    number = desk.tell(told(prediction), application="other")
    answer = desk.acknowledged()[number]
    assert answer.statuses == (INVALID,)
    assert answer.reason == "prediction: got one of application 'digits', wanted one of 'other'"


def test_predictions_that_were_shared_with_nobody_are_found_too() -> None:
    desk = Desk()
    desk.tell(told(desk.answered(own=True, a=(7,), b=(7,))))
    desk.settle()
    assert desk.losses() == [0.0]


def test_it_may_come_after_the_prediction_has_expired() -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,))
    desk.tick(s(3600))
    desk.tell(told(prediction))
    desk.settle()
    assert desk.losses() == [0.0]


def test_what_one_model_never_said_does_not_keep_the_others_from_learning() -> None:
    desk = Desk()
    desk.tell(told(desk.answered(a=(7,))))
    desk.settle()
    assert (desk.losses(), desk.running.tallies[B].observations) == ([0.0], 0)


def test_sent_twice_it_counts_once_and_both_are_acknowledged() -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,), b=(7,))
    first, second = desk.tell(told(prediction), told(prediction)), desk.tell(told(prediction))
    assert desk.acknowledged() == {}
    desk.settle()
    assert desk.acknowledged() == {first: Acknowledged(first, (OK, OK)), second: Acknowledged(second, (OK,))}
    third = desk.tell(told(prediction))
    assert desk.acknowledged() == {third: Acknowledged(third, (OK,))}
    assert desk.losses() == [0.0]


def test_without_the_prediction_or_the_inputs_nothing_can_be_learned() -> None:
    desk = Desk(predictions=2)
    forgotten, evicted, kept = desk.answered(a=(7,)), desk.answered(), desk.answered(a=(7,))
    number = desk.tell(told(forgotten), told(evicted), told(b"nonsense"), told(b""), told(kept))
    desk.settle()
    acknowledged = desk.acknowledged()[number]
    assert acknowledged.statuses == (MISSING, MISSING, MISSING, MISSING, OK)
    assert "send the inputs again" in acknowledged.reason


def test_with_the_inputs_the_models_are_asked_again() -> None:
    desk = Desk()
    prediction = desk.answered("ann", a=(7,))
    number = desk.tell(told(prediction, query=QUERY))
    (wanted,) = desk.feedback.pop_repredict_requests()
    assert (wanted.holder, wanted.active, wanted.query, wanted.selection) == (FRONTEND, desk.running, QUERY, BOTH)
    twice = desk.tell(told(prediction, query=msgspec.structs.replace(QUERY, id=10)))
    assert desk.feedback.pop_repredict_requests() == []
    desk.feedback.on_repredicted(0, wanted.token, {B: (7.0,)})
    desk.feedback.on_repredicted(0, wanted.token, {B: (7.0,)})
    desk.tick()
    desk.settle()
    assert {one.id: one.statuses for one in desk.acknowledged().values()} == {number: (OK,), twice: (OK,)}
    assert desk.losses("ann") == [0.0]
    assert desk.running.tallies[B].observations == 1
    assert desk.released == [10], "of the inputs sent twice; the others go with the queries they are for"


@pytest.mark.parametrize("application", ["digits", "letters"])
def test_inputs_that_are_not_needed_are_released_at_once(application: str) -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,), b=(7,))
    desk.tell(told(prediction, query=QUERY), told(b"nonsense"), application=application)
    desk.acknowledged()
    assert desk.released == [QUERY.id]
    assert desk.feedback.pop_repredict_requests() == []


def test_models_that_an_application_has_no_more_are_not_asked_again() -> None:
    desk = Desk()
    prediction = desk.answered("ann")
    less = a_running(revision=2)
    less.application = msgspec.structs.replace(less.application, models=(A,))
    desk.feedback._applications["digits"] = less  # type: ignore[index]
    desk.tell(told(prediction, query=QUERY))
    (wanted,) = desk.feedback.pop_repredict_requests()
    assert wanted.selection == Selection((A,))


def test_the_same_sent_over_and_over_while_it_waits_is_refused_and_forgotten() -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,))
    for _ in range(5):
        number = desk.tell(*[told(prediction)] * 70)
        desk.tick(s(5))
        statuses = desk.acknowledged()[number].statuses
        assert statuses.count(LOST) + statuses.count(REFUSED) == 70
        assert statuses.count(REFUSED) >= 5
    known = desk.feedback.predictions.get(prediction)
    assert known is not None
    assert len(known.pending_item.duplicates) <= 64
    desk.settle()
    assert desk.losses() == [0.0]


def test_inputs_alone_will_do() -> None:
    desk = Desk()
    number = desk.tell(told(b"", query=QUERY, context="bob"), told(b"unheard of", query=QUERY))
    first, second = desk.feedback.pop_repredict_requests()
    assert first.selection is second.selection is None
    desk.feedback.on_repredicted(0, first.token, {A: (7.0,), B: (7.0,)}, BOTH)
    desk.feedback.on_repredicted(0, second.token, {}, BOTH)
    desk.tick()
    desk.settle()
    assert desk.acknowledged()[number].statuses == (OK, MISSING)
    assert desk.losses("bob") == [0.0]
    again = desk.tell(told(b"unheard of", query=QUERY))
    (third,) = desk.feedback.pop_repredict_requests()
    desk.feedback.on_repredicted(0, third.token, {A: (7.0,)}, BOTH)
    desk.tick()
    desk.settle()
    assert desk.acknowledged()[again].statuses == (OK,)


@pytest.mark.parametrize("truths", [(), (1.0, 2.0), (float("nan"),), (float("inf"),)])
def test_truths_that_are_no_truths_for_these_rows_are_invalid(truths: tuple[float, ...]) -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,), b=(7,))
    number = desk.tell(Observation(truths, prediction))
    acknowledged = desk.acknowledged()[number]
    assert acknowledged.statuses == (INVALID,)
    assert acknowledged.reason.startswith("truths: got ")
    desk.tell(told(prediction))
    desk.settle()
    assert desk.losses() == [0.0]


def test_feedback_for_nobody_and_for_somebody_else() -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,))
    number = desk.tell(told(prediction), told(prediction), application="letters")
    assert desk.acknowledged()[number].statuses == (Status.UNKNOWN_MODEL, Status.UNKNOWN_MODEL)
    desk.feedback._applications["letters"] = a_running("letters")  # type: ignore[index]
    number = desk.tell(told(prediction), application="letters")
    assert desk.acknowledged()[number].statuses == (INVALID,)
    number = desk.tell()
    assert desk.acknowledged()[number] == Acknowledged(number, ())


def test_a_loss_that_raises_fails_that_item_alone() -> None:
    desk = Desk()

    def loss(truth: float, value: float) -> float:
        if truth == 13:
            raise ArithmeticError("unlucky")
        return 0.5

    desk.running.loss = loss
    number = desk.tell(told(desk.answered(a=(7,)), 13), told(desk.answered(a=(7,))))
    desk.settle()
    acknowledged = desk.acknowledged()[number]
    assert acknowledged.statuses == (Status.FAILED, OK)
    assert acknowledged.reason == "loss: ArithmeticError: unlucky"


def test_a_withdrawn_application_does_not_leave_its_feedback_waiting() -> None:
    desk = Desk()
    number = desk.tell(told(desk.answered(a=(7,))))
    desk.shelf.contexts.remove_application("digits")
    desk.tick()
    assert desk.acknowledged()[number].statuses == (Status.UNKNOWN_MODEL,)


def test_while_the_store_is_away_it_waits_up_to_a_bound_and_is_acknowledged_later() -> None:
    desk = Desk(unsaved=2)
    predictions = [desk.answered(a=(7,)) for _ in range(4)]
    desk.shelf.contexts.get_state(0, desk.running, "")
    desk.tick()
    desk.shelf.serve(done=False)
    desk.shelf.contexts.on_store_reply(0, desk.shelf.answers.popleft())
    number = desk.tell(*map(told, predictions))
    refused = desk.tell(told(predictions[3]))
    acknowledged = desk.acknowledged()[refused]
    assert (acknowledged.statuses, acknowledged.reason) == ((REFUSED,), "the state store is unavailable")
    assert acknowledged.retry_after_ns == ms(500)
    desk.tick(ms(500))
    desk.settle()
    assert desk.acknowledged()[number].statuses == (OK, OK, REFUSED, REFUSED)
    assert desk.losses() == [0.0, 0.0]


def test_what_is_not_saved_in_time_is_lost_and_may_be_sent_again() -> None:
    desk = Desk()
    prediction = desk.answered(a=(7,))
    number = desk.tell(told(prediction), told(b""))
    assert desk.feedback.wakeup_ns() == s(5)
    desk.tick(s(5))
    acknowledged = desk.acknowledged()[number]
    assert acknowledged.statuses == (LOST, MISSING)
    again = desk.tell(told(prediction))
    desk.settle()
    assert desk.acknowledged()[again].statuses == (OK,)
    assert desk.losses() == [0.0]
    assert desk.feedback.wakeup_ns() is None


def test_what_is_not_predicted_again_in_time_is_lost_and_may_be_sent_again() -> None:
    desk = Desk()
    prediction = desk.answered()
    number = desk.tell(told(prediction, query=QUERY))
    (wanted,) = desk.feedback.pop_repredict_requests()
    desk.tick(s(5))
    assert desk.acknowledged()[number].statuses == (LOST,)
    desk.feedback.on_repredicted(desk.shelf.now_ns, wanted.token, {A: (7.0,)}, BOTH)
    assert desk.shelf.contexts.unsaved == 0
    again = desk.tell(told(prediction, query=QUERY))
    (wanted,) = desk.feedback.pop_repredict_requests()
    desk.feedback.on_repredicted(desk.shelf.now_ns, wanted.token, {A: (7.0,)}, BOTH)
    desk.tick()
    desk.settle()
    assert desk.acknowledged()[again].statuses == (OK,)


def test_answers_are_remembered_up_to_a_bound() -> None:
    desk = Desk(predictions=10)
    first = desk.answered(a=(7,))
    for _ in range(10):
        desk.answered(a=(7,))
    assert len(desk.feedback.predictions) == 10
    assert desk.feedback.predictions.get(first) is None


@given(
    st.lists(st.tuples(st.sampled_from(["tell", "again", "serve", "fail", "lose", "hear", "late"]), st.integers(0, 5)))
)
def test_every_feedback_gets_one_answer_and_each_prediction_counts_at_most_once(steps: list[tuple[str, int]]) -> None:
    desk = Desk(unsaved=4)
    predictions = [desk.answered(a=(7,), b=(1,)) for _ in range(6)]
    sent: set[int] = set()
    found: dict[int, Acknowledged] = {}
    asked: dict[int, int] = {}
    for step, at in steps:
        match step:
            case "tell":
                number = desk.tell(told(predictions[at]))
                sent.add(number)
                asked[number] = at
            case "serve":
                desk.shelf.serve()
            case "fail":
                desk.shelf.serve(done=False)
            case "lose":
                desk.shelf.serve(told=False)
            case "hear" if desk.shelf.answers:
                desk.shelf.contexts.on_store_reply(desk.shelf.now_ns, desk.shelf.answers.popleft())
            case "late":
                desk.tick(s(2))
        desk.tick()
        new = desk.acknowledged()
        assert not new.keys() & found.keys()
        found |= new
    desk.tick(s(5))
    desk.settle()
    desk.tick(s(5))
    desk.settle()
    found |= desk.acknowledged()
    assert found.keys() == sent
    assert len(desk.feedback) == 0
    ok = {asked[number] for number, one in found.items() if one.statuses == (OK,)}
    desk.shelf.contexts.get_state(desk.shelf.now_ns, desk.running, "")
    desk.tick()
    desk.settle()
    assert len(ok) <= len(desk.losses()) <= len({*asked.values()})
