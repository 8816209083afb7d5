"""Queries of applications under way: models asked, waited for until the deadline at the latest, one answer each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.recording.snapshot import restore, snapshot
from horologe_common.wire import (
    ApplicationInfo,
    Applications,
    Cancel,
    Ping,
    Pong,
    Release,
)
from horologe_selector.core.applications.losses import LOSSES
from selector_desk import CONTROLLER, FRONTEND, HASH, Asked


def test_at_the_deadline_what_is_there_is_combined() -> None:
    desk = Asked(models=("a", "b", "c"))
    desk.ask(budget_ms=50)
    desk.lands("a", 3)
    desk.at(40)
    assert not desk.answers()
    desk.at(48)
    answer, values = desk.answer()
    assert (values, answer.models, answer.missing) == ([3], ("a",), ("b", "c"))
    assert answer.confidence == pytest.approx(1 / 3)
    assert answer.inputs_retained
    desk.lands("b", 4)
    assert not desk.answers()
    assert not sent(desk.selector, Release)
    desk.lands("c", 4)
    assert sent(desk.selector, Release) == [Release((1,))]
    desk.selector.check()


def test_who_comes_too_late_is_waited_for_a_second_then_given_up() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask(budget_ms=50)
    desk.lands("a", 3)
    desk.at(50)
    desk.answer()
    desk.at(1500)
    assert sent(desk.selector, Cancel, CONTROLLER) == [Cancel((desk.submits["b"].id,))]
    assert sent(desk.selector, Release) == [Release((1,))]
    desk.selector.check()


def test_a_refused_model_is_missing_at_once() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask()
    desk.lands("a", 3)
    desk.fails("b")
    answer, values = desk.answer()
    assert (values, answer.missing) == ([3], ("b",))


def test_a_model_that_is_not_served_is_missing_at_once() -> None:
    desk = Asked(models=("a", "z"))
    desk.ask()
    desk.lands("a", 3)
    answer, _ = desk.answer()
    assert answer.missing == ("z",)


def test_the_way_back_is_taken_off_the_deadline() -> None:
    desk = Asked(models=("a",), default=1.0)
    desk.at(1000)
    (ping,) = sent(desk.selector, Ping, FRONTEND)[-1:]
    desk.now_ns += ms(20)
    desk.tell(FRONTEND, Pong(ping.sent_ns, 0))
    desk.ask(budget_ms=50)
    desk.at(1048)
    assert not desk.answers()
    desk.at(1050)
    assert desk.answer()[0].defaulted


def test_a_way_back_that_was_long_once_leaves_half_of_the_time() -> None:
    desk = Asked(models=("a",), default=1.0)
    desk.at(1000)
    for _ in range(5):
        desk.tell(FRONTEND, Pong(0, 0))
    desk.ask(budget_ms=50)
    desk.at(1024)
    assert not desk.answers()
    desk.at(1025)
    assert desk.answer()[0].defaulted


def test_equal_inputs_are_answered_from_the_cache() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask(1)
    desk.lands("a", 3)
    desk.lands("b", 3)
    assert not desk.answer()[0].cached
    desk.submits.clear()
    desk.ask(2)
    answer, values = desk.answer()
    assert (values, answer.cached, desk.submits) == ([3], True, {})


def test_two_queries_with_equal_inputs_fly_together() -> None:
    desk = Asked(models=("a",))
    desk.ask(1)
    first = desk.submits.pop("a")
    desk.ask(2)
    assert not desk.submits
    desk.submits["a"] = first
    desk.lands("a", 3)
    assert desk.answers() == 2


def test_without_a_cache_nothing_is_shared() -> None:
    desk = Asked(models=("a",), cache=False)
    desk.ask(1)
    desk.lands("a", 3)
    desk.submits.clear()
    desk.ask(2)
    assert list(desk.submits) == ["a"]


def test_every_answer_has_a_name_of_its_own_that_ends_with_the_inputs() -> None:
    desk = Asked(models=("a",))
    desk.ask(1)
    desk.lands("a", 3)
    first, _ = desk.answer()
    desk.ask(2)
    second, _ = desk.answer()
    assert first.prediction != second.prediction
    assert first.prediction.endswith(HASH)


def test_shadows_are_asked_but_not_waited_for_nor_answered_from() -> None:
    desk = Asked(models=("a",), shadows=("b",), policy="static")
    desk.ask()
    assert desk.submits["b"].best_effort
    assert not desk.submits["a"].best_effort
    desk.lands("a", 3)
    answer, values = desk.answer()
    assert (values, answer.models, answer.inputs_retained) == ([3], ("a",), True)
    desk.lands("b", 3)
    assert sent(desk.selector, Release) == [Release((1,))]
    desk.tell(FRONTEND, ApplicationInfo(9, "digits"))
    ((state,),) = [told.applications for told in sent(desk.selector, Applications) if told.id == 9]
    shadow = state.statistics[1]
    assert (shadow.model, shadow.shadow, shadow.answered, shadow.agreed) == ("b", True, 1, 1)


def test_a_context_keeps_its_model_in_an_a_b_test() -> None:
    desk = Asked(models=("a", "b"), policy="static", cache=False)
    asked = []
    for number in range(40):
        desk.submits.clear()
        desk.ask(number + 1, context="user-7" if number % 2 else f"user-{number}")
        asked.append(next(iter(desk.submits)))
    assert len(set(asked[1::2])) == 1
    assert set(asked[::2]) == {"a", "b"}


def test_a_cancelled_query_frees_everything() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask()
    desk.tell(FRONTEND, Cancel((1,)))
    (first, second) = sent(desk.selector, Cancel, CONTROLLER)
    assert {*first.ids, *second.ids} == {submit.id for submit in desk.submits.values()}
    assert sent(desk.selector, Release) == [Release((1,))]
    assert not desk.answers()
    desk.selector.check()


def test_a_frontend_that_goes_takes_its_queries_with_it() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask()
    desk.tell(FRONTEND, PeerDisconnected(FRONTEND))
    assert not desk.selector.application_queries
    desk.selector.check()


def test_a_selector_that_waits_for_its_models_can_be_restored_from_a_snapshot() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask()
    desk.lands("a", 3)
    again = restore(snapshot(desk.selector))
    again.check()
    assert again.wakeup_ns() == desk.selector.wakeup_ns()


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_a_selector_restored_from_a_snapshot_goes_on_with_what_was_asked(task: str) -> None:
    desk = Asked(models=("a", "b"), policy="exp4", task=task)
    desk.ask()
    desk.selector = restore(snapshot(desk.selector), LOSSES)
    desk.lands("a", 3)
    desk.lands("b", 3)
    answer, _ = desk.answer()
    assert (answer.status, answer.models) == (0, ("a", "b"))
    desk.selector.check()
    assert desk.selector.registry.active["digits"].loss(3.0, 3.5) == (1.0 if task == "classes" else 0.5)


@given(
    st.lists(st.sampled_from(["a lands", "b lands", "c lands", "a fails", "b fails", "c fails"]), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_one_answer_and_one_release_whatever_happens(events: list[str], default: bool, cancel: bool) -> None:
    desk = Asked(models=("a", "b"), shadows=("c",), default=7.0 if default else None)
    desk.ask(budget_ms=50)
    ended: set[str] = set()
    for step, event in enumerate(events):
        model, _, how = event.partition(" ")
        desk.now_ns = ms(10 * step)
        if model in ended:
            continue
        ended.add(model)
        if how == "lands":
            desk.lands(model, 1)
        else:
            desk.fails(model)
    answered = desk.answers()
    if cancel:
        desk.tell(FRONTEND, Cancel((1,)))
    for later_s in (10, 20):
        desk.now_ns = s(later_s)
        desk.settle()
    if answered or not cancel:
        answer, _ = desk.answer()
        assert answer.status == 0 or not default
        assert bool(sent(desk.selector, Release)) == (answer.inputs_retained or cancel)
    else:
        assert not desk.answers()
    assert not desk.selector.application_queries
    desk.selector.check()
