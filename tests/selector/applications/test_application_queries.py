"""Application queries: which models are queried, when the answer is sent, and what is released."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.builders import sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.recording.snapshot import restore, snapshot
from horologe_common.wire import ApplicationInfo, Applications, Cancel, Ping, Pong, Release
from horologe_selector.core.applications.losses import LOSSES
from selector.selector_harness import CONTROLLER, FRONTEND, HASH, ApplicationHarness


def test_present_predictions_are_combined_at_the_deadline() -> None:
    harness = ApplicationHarness(models=("a", "b", "c"))
    harness.query(budget_ms=50)
    harness.predict("a", 3)
    harness.advance_to(40)
    assert not harness.count_answers()
    harness.advance_to(48)
    answer, values = harness.pop_answer()
    assert (values, answer.models, answer.missing) == ([3], ("a",), ("b", "c"))
    assert answer.confidence == pytest.approx(1 / 3)
    assert answer.inputs_retained
    harness.predict("b", 4)
    assert not harness.count_answers()
    assert not sent(harness.selector, Release)
    harness.predict("c", 4)
    assert sent(harness.selector, Release) == [Release((1,))]


def test_stragglers_are_cancelled_after_a_second() -> None:
    harness = ApplicationHarness(models=("a", "b"))
    harness.query(budget_ms=50)
    harness.predict("a", 3)
    harness.advance_to(50)
    harness.pop_answer()
    harness.advance_to(1500)
    assert sent(harness.selector, Cancel, CONTROLLER) == [Cancel((harness.submits["b"].id,))]
    assert sent(harness.selector, Release) == [Release((1,))]


@pytest.mark.parametrize("reason", ["refused", "not served", "wrong number of rows"])
def test_a_model_without_a_prediction_is_missing_at_once(reason: str) -> None:
    other = "z" if reason == "not served" else "b"
    harness = ApplicationHarness(models=("a", other))
    harness.query()
    harness.predict("a", 3)
    if reason == "refused":
        harness.fail_model("b")
    elif reason == "wrong number of rows":
        harness.predict("b", 3, 4)
    answer, values = harness.pop_answer()
    assert (values, answer.missing) == ([3], (other,))


def test_the_return_latency_is_subtracted_from_the_deadline() -> None:
    harness = ApplicationHarness(models=("a",), default=1.0)
    harness.advance_to(1000)
    (ping,) = sent(harness.selector, Ping, FRONTEND)[-1:]
    harness.now_ns += ms(20)
    harness.send(FRONTEND, Pong(ping.sent_ns, 0))
    harness.query(budget_ms=50)
    harness.advance_to(1048)
    assert not harness.count_answers()
    harness.advance_to(1050)
    assert harness.pop_answer()[0].defaulted


def test_the_return_latency_takes_at_most_half_of_the_budget() -> None:
    harness = ApplicationHarness(models=("a",), default=1.0)
    harness.advance_to(1000)
    for _ in range(5):
        harness.send(FRONTEND, Pong(0, 0))
    harness.query(budget_ms=50)
    harness.advance_to(1024)
    assert not harness.count_answers()
    harness.advance_to(1025)
    assert harness.pop_answer()[0].defaulted


@pytest.mark.parametrize("cache", [True, False])
def test_equal_inputs_are_answered_from_the_cache(cache: bool) -> None:
    harness = ApplicationHarness(models=("a", "b"), cache=cache)
    harness.query(1)
    harness.predict_all(a=(3,), b=(3,))
    assert not harness.pop_answer()[0].cached
    harness.submits.clear()
    harness.query(2)
    assert list(harness.submits) == ([] if cache else ["a", "b"])
    if cache:
        answer, values = harness.pop_answer()
        assert (values, answer.cached) == ([3], True)


def test_application_queries_with_equal_inputs_are_coalesced() -> None:
    harness = ApplicationHarness(models=("a",))
    harness.query(1)
    first = harness.submits.pop("a")
    harness.query(2)
    assert not harness.submits
    harness.submits["a"] = first
    harness.predict("a", 3)
    assert harness.count_answers() == 2


def test_prediction_ids_are_unique_and_end_with_the_input_hash() -> None:
    harness = ApplicationHarness(models=("a",))
    harness.query(1)
    harness.predict("a", 3)
    first, _ = harness.pop_answer()
    harness.query(2)
    second, _ = harness.pop_answer()
    assert first.prediction != second.prediction
    assert first.prediction.endswith(HASH)


def test_shadows_are_queried_but_do_not_influence_the_answer() -> None:
    harness = ApplicationHarness(models=("a",), shadows=("b",), policy="static")
    harness.query()
    assert harness.submits["b"].best_effort
    assert not harness.submits["a"].best_effort
    harness.predict("a", 3)
    answer, values = harness.pop_answer()
    assert (values, answer.models, answer.inputs_retained) == ([3], ("a",), True)
    harness.predict("b", 3)
    assert sent(harness.selector, Release) == [Release((1,))]
    harness.send(FRONTEND, ApplicationInfo(9, "digits"))
    ((state,),) = [reply.applications for reply in sent(harness.selector, Applications) if reply.id == 9]
    shadow = state.statistics[1]
    assert (shadow.model, shadow.shadow, shadow.answered, shadow.agreed) == ("b", True, 1, 1)


def test_a_context_keeps_its_model_in_an_a_b_test() -> None:
    harness = ApplicationHarness(models=("a", "b"), policy="static", cache=False)
    selected = []
    for number in range(40):
        harness.submits.clear()
        harness.query(number + 1, context="user-7" if number % 2 else f"user-{number}")
        selected.append(next(iter(harness.submits)))
    assert len(set(selected[1::2])) == 1
    assert set(selected[::2]) == {"a", "b"}


@pytest.mark.parametrize("message", [Cancel((1,)), PeerDisconnected(FRONTEND)])
def test_a_cancelled_query_cancels_its_submits_and_releases_its_inputs(message: Any) -> None:
    harness = ApplicationHarness(models=("a", "b"))
    harness.query()
    harness.send(FRONTEND, message)
    (first, second) = sent(harness.selector, Cancel, CONTROLLER)
    assert {*first.ids, *second.ids} == {submit.id for submit in harness.submits.values()}
    assert sent(harness.selector, Release) == [Release((1,))]
    assert not harness.count_answers()
    assert not harness.selector.applications.queries


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_a_selector_restored_from_a_snapshot_answers_open_queries(task: str) -> None:
    harness = ApplicationHarness(models=("a", "b"), policy="exp4", task=task)
    harness.query()
    wakeup_ns = harness.selector.wakeup_ns()
    harness.selector = restore(snapshot(harness.selector), LOSSES)
    harness.selector.check()
    assert harness.selector.wakeup_ns() == wakeup_ns
    harness.predict_all(a=(3,), b=(3,))
    answer, _ = harness.pop_answer()
    assert (answer.status, answer.models) == (0, ("a", "b"))
    harness.selector.check()
    assert harness.selector.applications.registry.active["digits"].loss(3.0, 3.5) == (1.0 if task == "classes" else 0.5)


@given(
    st.lists(st.sampled_from(["a predicts", "b predicts", "c predicts", "a fails", "b fails", "c fails"]), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_each_query_gets_one_answer_and_one_release(events: list[str], default: bool, cancel: bool) -> None:
    harness = ApplicationHarness(models=("a", "b"), shadows=("c",), default=7.0 if default else None)
    harness.query(budget_ms=50)
    finished: set[str] = set()
    for step, event in enumerate(events):
        model, _, how = event.partition(" ")
        harness.now_ns = ms(10 * step)
        if model in finished:
            continue
        finished.add(model)
        if how == "predicts":
            harness.predict(model, 1)
        else:
            harness.fail_model(model)
    answered = harness.count_answers()
    if cancel:
        harness.send(FRONTEND, Cancel((1,)))
    for later_s in (10, 20):
        harness.now_ns = s(later_s)
        harness.run_until_idle()
    if answered or not cancel:
        answer, _ = harness.pop_answer()
        assert answer.status == 0 or not default
        assert bool(sent(harness.selector, Release)) == (answer.inputs_retained or cancel)
    else:
        assert not harness.count_answers()
    assert not harness.selector.applications.queries


def test_an_application_query_that_is_sent_again_while_it_is_open_is_answered_once() -> None:
    harness = ApplicationHarness(models=("a", "b"))
    harness.query()
    harness.query()
    assert len(harness.submits) == 2
    harness.predict_all(a=(3,), b=(3,))
    assert harness.count_answers() == 1
    assert not sent(harness.selector, Release)


def test_an_application_query_whose_answer_was_lost_is_answered_again() -> None:
    harness = ApplicationHarness(models=("a", "b"))
    harness.query(budget_ms=50)
    harness.predict("a", 3)
    harness.advance_to(48)
    harness.pop_answer()
    harness.query(budget_ms=20)
    assert not sent(harness.selector, Release)
    harness.predict("b", 3)
    answer, values = harness.pop_answer()
    assert (values, answer.models) == ([3], ("a", "b"))
    harness.advance_to(2000)
    assert not harness.count_answers()
