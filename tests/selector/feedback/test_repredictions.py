"""Feedback with inputs: predictions that are no longer cached are made again."""

from __future__ import annotations

import msgspec
import pytest

from horologe_common.clock import ms, s
from horologe_common.wire import Query
from selector.contexts_harness import BOTH, A, B
from selector.feedback_harness import FRONTEND, LOST, MISSING, OK, REFUSED, FeedbackHarness, make_observation

QUERY = Query(9, "", ms(100), 1, bytes(32), application="digits")


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
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[number].statuses == (OK, MISSING)
    assert harness.observed_losses("bob") == [0.0]
    again = harness.send_feedback(make_observation(b"unheard of", query=QUERY))
    (third,) = harness.feedback.pop_unstarted_repredictions()
    harness.feedback.on_repredicted(0, third.token, {A: (7.0,)}, BOTH)
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[again].statuses == (OK,)


def test_feedback_not_predicted_again_in_time_is_lost_and_may_be_sent_again() -> None:
    harness = FeedbackHarness()
    prediction = harness.log_answer()
    number = harness.send_feedback(make_observation(prediction, query=QUERY))
    (request,) = harness.feedback.pop_unstarted_repredictions()
    harness.tick(s(5))
    assert harness.pop_acknowledgements()[number].statuses == (LOST,)
    harness.feedback.on_repredicted(harness.now_ns, request.token, {A: (7.0,)}, BOTH)
    assert harness.contexts.unsaved == 0
    again = harness.send_feedback(make_observation(prediction, query=QUERY))
    (request,) = harness.feedback.pop_unstarted_repredictions()
    harness.feedback.on_repredicted(harness.now_ns, request.token, {A: (7.0,)}, BOTH)
    harness.run_until_idle()
    assert harness.pop_acknowledgements()[again].statuses == (OK,)
