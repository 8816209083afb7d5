"""Applications that are withdrawn or declared anew while they learn."""

from __future__ import annotations

from harness.builders import sent
from horologe_common.applications import Application
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    Applications,
    Declare,
    Observation,
    Submit,
    Withdraw,
)
from horologe_selector.store import RecordChange, RecordsWritten, WriteRecords
from selector.learning_selector import OK, LearningSelector, repredict_submits
from selector.selector_harness import FRONTEND


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
    submits = repredict_submits(harness, harness.query_answer("ann"))
    harness.send(FRONTEND, Withdraw(2, "digits"))
    for submit in submits:
        harness.send_prediction(submit, 1)
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
    for submit in repredict_submits(harness, b""):
        harness.send_prediction(submit, 1)
    learned = harness.model_statistics("ann")
    for submit in submits:
        harness.send_prediction(submit, 1)
    assert [answer.status for answer in sent(harness.selector, Answer)] == [OK]
    assert harness.model_statistics("ann") == learned


def test_an_unreadable_declaration_can_be_replaced() -> None:
    store = LearningSelector().store
    store.write_changes(
        [RecordChange("applications\nAAA", 0, b"\x00nonsense"), RecordChange("applications\nBBB", 0, b"\x92\x01\x90")]
    )
    harness = LearningSelector(store)
    assert list(harness.selector.applications.registry.active) == ["digits"]
    for number, name in enumerate(("AAA", "BBB"), 5):
        harness.send(FRONTEND, Declare(number, Application(name, ("a",))))
    assert [reply.status for reply in sent(harness.selector, Applications) if reply.id in (5, 6)] == [OK, OK]


def test_a_query_waiting_for_its_state_is_answered_when_its_application_is_withdrawn() -> None:
    harness = LearningSelector()
    harness.number += 1
    harness.selector.handle(harness.now_ns, FRONTEND, harness.make_query("zoe"), ())
    harness.selector.tick(harness.now_ns)
    harness.selector.out.clear()
    harness.send(FRONTEND, Withdraw(2, "digits"))
    for submit in sent(harness.selector, Submit):
        harness.send_prediction(submit, 1)
    assert [answer.status for answer in sent(harness.selector, Answer)] == [OK]
