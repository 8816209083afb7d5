"""Learning in the whole selector: queries, feedback, acknowledgements once the store has saved it, declarations."""

from __future__ import annotations

import msgspec

from harness.builders import sent
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.core.protocol import Drains
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    Applications,
    Declare,
    Feedback,
    Observation,
    Release,
    Rollback,
    Submit,
    Withdraw,
)
from horologe_selector.store import ReadRecords, RecordChange, RecordsWritten, WriteRecords
from selector.learning_selector import OK, REFUSED, LearningSelector
from selector.selector_harness import FRONTEND


def test_feedback_is_learned_saved_and_acknowledged() -> None:
    harness = LearningSelector()
    harness.send_feedback(Observation((1.0,), harness.query_answer("ann")))
    assert harness.pop_statuses() == [(OK,)]
    assert harness.model_statistics("ann") == {"a": (0.55, 1), "b": (0.45, 1)}
    assert harness.model_statistics("bob") == {"a": (0.5, 1), "b": (0.5, 1)}
    assert LearningSelector(harness.store).model_statistics("ann")["a"][0] == 0.55


def test_a_status_request_neither_creates_nor_touches_contexts() -> None:
    harness = LearningSelector(contexts_memory=2)
    harness.send_feedback(
        Observation((1.0,), harness.query_answer("ann")), Observation((1.0,), harness.query_answer("bob"))
    )
    contexts = harness.selector.applications.contexts
    used = [context.key for context in contexts._contexts]
    for context in ("eve", "ann", "zoe", ""):
        harness.model_statistics(context)
    assert [context.key for context in contexts._contexts] == used
    after = LearningSelector(harness.store, number=2)
    assert after.model_statistics("ann")["a"][0] == 0.55
    assert after.model_statistics("eve")["a"][0] == 0.5
    assert after.selector.applications.contexts.count_contexts("digits") == 0


def test_statistics_come_from_the_store_once_it_is_available_again() -> None:
    harness = LearningSelector()
    harness.send_feedback(Observation((1.0,), harness.query_answer("ann")))
    after = LearningSelector(harness.store, number=2)
    harness.store.unavailable = True
    assert after.model_statistics("ann")["a"][0] == 0.5
    harness.store.unavailable = False
    after.advance_by(ms(1000))
    assert after.model_statistics("ann")["a"][0] == 0.55


def test_statistics_come_from_memory_while_the_store_is_unavailable_or_slow() -> None:
    harness = LearningSelector(LearningSelector().store)
    harness.store.unavailable = True
    assert harness.model_statistics("ann")["a"][0] == 0.5
    selector = LearningSelector().selector
    selector.handle(0, FRONTEND, ApplicationInfo(7, "digits", "ann"), ())
    selector.tick(0)
    assert selector.wakeup_ns() == ms(20)
    assert len(sent(selector, ReadRecords)) == 1
    selector.handle(ms(1), FRONTEND, ApplicationInfo(8, "digits", "ann"), ())
    selector.tick(ms(20))
    assert [reply.id for reply in sent(selector, Applications, FRONTEND)] == [7, 8]
    assert not sent(selector, ReadRecords), "one read for both"


def test_rolling_back_a_policy_restores_the_learned_weights() -> None:
    harness = LearningSelector()
    harness.send_feedback(Observation((1.0,), harness.query_answer("ann")))
    learned = harness.model_statistics("ann")
    harness.send(FRONTEND, Declare(7, Application("digits", ("b",), policy="thompson")))
    assert harness.model_statistics("ann") == {"b": (1.0, 1)}
    harness.send(FRONTEND, Rollback(8, "digits"))
    assert {model: weight for model, (weight, _) in harness.model_statistics("ann").items()} == {
        model: weight for model, (weight, _) in learned.items()
    }


def test_a_stragglers_late_prediction_gets_its_loss() -> None:
    harness = LearningSelector()
    harness.straggling_ns = ms(100)
    harness.send_feedback(Observation((2.0,), harness.query_answer()))
    assert harness.pop_statuses() == [(OK,)]
    assert harness.model_statistics() == {"a": (0.45, 1), "b": (0.55, 1)}


def test_evicted_predictions_are_predicted_again_from_the_inputs() -> None:
    harness = LearningSelector(cache_bytes=0)
    prediction = harness.query_answer("ann")
    harness.send_feedback(Observation((1.0,), prediction))
    assert harness.pop_statuses() == [(int(Status.MISSING_INPUT),)]
    sent(harness.selector, Release)
    submits = harness.repredict_submits(prediction)
    assert harness.pop_statuses() == []
    for submit in submits:
        harness.predict(submit)
    assert harness.pop_statuses() == [(OK,)]
    assert len(sent(harness.selector, Release)) == 1
    assert harness.model_statistics("ann") == {"a": (0.55, 1), "b": (0.45, 1)}


def test_while_the_store_is_unavailable_feedback_is_learned_and_acknowledged_later() -> None:
    harness = LearningSelector(unsaved=2)
    earlier = harness.query_answer("ann")
    harness.store.unavailable = True
    harness.send_feedback(Observation((1.0,), earlier))
    predictions = [harness.query_answer("ann"), harness.query_answer("new")]
    harness.send_feedback(*[Observation((1.0,), prediction) for prediction in predictions])
    assert harness.pop_statuses() == []
    (weight, observations), _ = harness.model_statistics("ann").values()
    assert weight > 0.55
    assert observations == 2
    assert isinstance(harness.selector, Drains)
    assert not harness.selector.drained()
    harness.store.unavailable = False
    harness.advance_by(ms(500))
    assert sorted(harness.pop_statuses()) == [(OK,), (OK, REFUSED)]
    assert harness.selector.drained()


def test_feedback_after_a_model_was_removed_is_predicted_by_the_others() -> None:
    harness = LearningSelector(cache_bytes=0)
    prediction = harness.query_answer("ann")
    harness.declare_application(models=("a",), policy="exp4")
    (submit,) = harness.repredict_submits(prediction)
    harness.predict(submit)
    assert harness.pop_statuses() == [(OK,)]


def test_feedback_with_inputs_in_the_cache_is_learned_in_the_next_tick() -> None:
    harness = LearningSelector()
    harness.query_answer("ann")
    again = msgspec.structs.replace(harness.make_query("ann"), id=99)
    feedback = Feedback(77, "digits", (Observation((1.0,), b"", "ann", (), again),))
    harness.selector.handle(harness.now_ns, FRONTEND, feedback, ())
    harness.selector.tick(harness.now_ns)
    wakeup_ns = harness.selector.wakeup_ns()
    assert wakeup_ns is not None
    assert wakeup_ns <= harness.now_ns


def test_feedback_sent_again_with_inputs_after_a_restart_counts_once() -> None:
    harness = LearningSelector()
    prediction = harness.query_answer("ann")
    harness.send_feedback(Observation((1.0,), prediction))
    assert harness.pop_statuses() == [(OK,)]
    after = LearningSelector(harness.store, number=2)
    for _ in range(2):
        for submit in after.repredict_submits(prediction):
            after.predict(submit)
        assert after.pop_statuses() == [(OK,)]
    assert {model: weight for model, (weight, _) in after.model_statistics("ann").items()} == {"a": 0.55, "b": 0.45}


def test_a_pending_status_request_is_answered_when_its_application_is_withdrawn() -> None:
    selector = LearningSelector().selector
    selector.handle(0, FRONTEND, ApplicationInfo(7, "digits", "ann"), ())
    assert not sent(selector, Applications, FRONTEND), "its state is being read"
    selector.applications.registry.on_withdraw(0, FRONTEND, Withdraw(8, "digits"))
    (write,) = sent(selector, WriteRecords)
    selector.handle(0, selector.store, RecordsWritten(write.changes, [0]), ())
    selector.tick(0)
    statuses = {reply.id: reply.status for reply in sent(selector, Applications, FRONTEND) if reply.id}
    assert statuses == {7: int(Status.UNKNOWN_MODEL), 8: OK}


def test_withdrawing_an_application_during_feedback_leaves_no_record() -> None:
    harness = LearningSelector(cache_bytes=0)
    submits = harness.repredict_submits(harness.query_answer("ann"))
    harness.send(FRONTEND, Withdraw(2, "digits"))
    for submit in submits:
        harness.predict(submit)
    assert harness.pop_statuses() == [(int(Status.UNKNOWN_MODEL),)]
    assert harness.store.list_family("contexts/digits") == []


def test_a_record_of_an_earlier_application_with_the_same_name_is_ignored() -> None:
    harness = LearningSelector()
    harness.send_feedback(Observation((1.0,), harness.query_answer("ann")))
    (left,) = harness.store.list_family("contexts/digits")
    harness.send(FRONTEND, Withdraw(2, "digits"))
    harness.store.write_changes([RecordChange(left.key, 0, left.data)])
    harness.declare_application(models=("c", "d"), policy="exp4")
    assert harness.model_statistics("ann") == harness.model_statistics("ann") == {"c": (0.5, 0), "d": (0.5, 0)}


def test_a_query_in_flight_during_a_new_declaration_does_not_reset_the_state() -> None:
    harness = LearningSelector()
    harness.number += 1
    harness.send(FRONTEND, harness.make_query("ann"))
    submits = sent(harness.selector, Submit)
    harness.declare_application(models=("a", "b"), policy="thompson")
    for submit in harness.repredict_submits(b""):
        harness.predict(submit)
    learned = harness.model_statistics("ann")
    for submit in submits:
        harness.predict(submit)
    assert [answer.status for answer in sent(harness.selector, Answer)] == [OK]
    assert harness.model_statistics("ann") == learned


def test_a_query_waiting_for_its_state_is_answered_when_its_application_is_withdrawn() -> None:
    harness = LearningSelector()
    harness.number += 1
    harness.selector.handle(harness.now_ns, FRONTEND, harness.make_query("zoe"), ())
    harness.selector.tick(harness.now_ns)
    harness.selector.out.clear()
    harness.send(FRONTEND, Withdraw(2, "digits"))
    for submit in sent(harness.selector, Submit):
        harness.predict(submit)
    assert [answer.status for answer in sent(harness.selector, Answer)] == [OK]
