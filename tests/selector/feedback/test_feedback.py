"""Feedback: joined with cached predictions, counted once, acknowledged when durable, always answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Observation
from selector.contexts_harness import A, B, make_active_application
from selector.feedback_harness import INVALID, LOST, MISSING, OK, REFUSED, FeedbackHarness, make_observation


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


@pytest.mark.parametrize(
    ("logged", "truths", "loss"),
    [
        ({"a": (1, 2, 3, 4), "b": (0, 0, 0, 0)}, (1, 2, 9, 9), 0.5),  # the mean of several rows
        ({"a": (7,), "b": (7,), "own": True}, (7,), 0.0),  # predictions that no other query shares
        ({"a": (7,)}, (7,), 0.0),  # another prediction is missing
    ],
)
def test_the_loss_of_each_cached_prediction_is_observed(logged: Any, truths: Any, loss: float) -> None:
    harness = FeedbackHarness()
    harness.send_feedback(make_observation(harness.log_answer(**logged), *truths))
    harness.run_until_idle()
    assert (harness.observed_losses(), harness.active.tallies[B].observations) == ([loss], "b" in logged)


def test_feedback_goes_to_the_answers_context_or_the_named_one() -> None:
    harness = FeedbackHarness()
    harness.send_feedback(
        make_observation(harness.log_answer("ann", a=(7,))),
        make_observation(harness.log_answer("ann", a=(6,)), context="bob"),
    )
    harness.run_until_idle()
    assert (harness.observed_losses("ann"), harness.observed_losses("bob")) == ([0.0], [1.0])


def test_feedback_finds_expired_predictions() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,))
    harness.tick(s(3600))
    harness.send_feedback(make_observation(prediction))
    harness.run_until_idle()
    assert harness.observed_losses() == [0.0]


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
    acknowledged = harness.acknowledge(
        make_observation(forgotten),
        make_observation(evicted),
        make_observation(b"nonsense"),
        make_observation(b""),
        make_observation(kept),
    )
    assert acknowledged.statuses == (MISSING, MISSING, MISSING, MISSING, OK)
    assert "Send the inputs as well" in acknowledged.reason


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


@pytest.mark.parametrize("known", [False, True])
def test_feedback_for_an_unknown_or_another_application_fails_even_after_feedback(known: bool) -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer(a=(7,))
    if known:
        harness.send_feedback(make_observation(prediction))
        harness.run_until_idle()
    number = harness.send_feedback(make_observation(prediction), make_observation(prediction), application="letters")
    assert harness.pop_acknowledgements()[number].statuses == (Status.UNKNOWN_MODEL, Status.UNKNOWN_MODEL)
    harness.applications["letters"] = make_active_application("letters")
    number = harness.send_feedback(make_observation(prediction), application="letters")
    answer = harness.pop_acknowledgements()[number]
    assert answer.statuses == (INVALID,)
    assert answer.reason == "prediction: got one of application 'digits', wanted one of 'letters'"
    number = harness.send_feedback()
    assert harness.pop_acknowledgements()[number] == Acknowledged(number, ())


def test_an_exception_in_a_loss_fails_only_its_item() -> None:
    harness = FeedbackHarness()

    def loss(truth: float, value: float) -> float:
        if truth == 13:
            raise ArithmeticError("unlucky")
        return 0.5

    harness.active.loss = loss
    acknowledged = harness.acknowledge(
        make_observation(harness.log_answer(a=(7,)), 13), make_observation(harness.log_answer(a=(7,)))
    )
    assert acknowledged.statuses == (Status.FAILED, OK)
    assert acknowledged.reason == "loss: ArithmeticError: unlucky"


def test_withdrawing_an_application_fails_its_pending_feedback() -> None:
    harness = FeedbackHarness()
    number = harness.send_feedback(make_observation(harness.log_answer(a=(7,))))
    harness.contexts.remove_application("digits")
    harness.tick()
    assert harness.pop_acknowledgements()[number].statuses == (Status.UNKNOWN_MODEL,)


def test_feedback_waits_for_an_unavailable_store_up_to_a_limit() -> None:
    harness = FeedbackHarness(unsaved=2)
    predictions = [harness.log_answer(a=(7,)) for _ in range(4)]
    harness.get_state()
    harness.serve_request(done=False)
    harness.deliver_reply()
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
    assert harness.acknowledge(make_observation(prediction)).statuses == (OK,)
    assert harness.observed_losses() == [0.0]
    assert harness.feedback.wakeup_ns() is None


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
                harness.serve_request()
            case "fail":
                harness.serve_request(done=False)
            case "lose":
                harness.serve_request(replied=False)
            case "hear":
                harness.deliver_reply()
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
    harness.get_state()
    harness.run_until_idle()
    assert len(ok) <= len(harness.observed_losses()) <= len({*asked.values()})
