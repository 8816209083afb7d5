"""What an application answers: predictions combined, averages in the place of missing ones, defaults, failures."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import Answer
from selector_desk import Asked


def test_the_models_of_an_application_are_asked_and_combined() -> None:
    desk = Asked(models=("a", "b", "c"))
    desk.ask()
    assert sorted(desk.submits) == ["a", "b", "c"]
    assert {submit.application for submit in desk.submits.values()} == {"digits"}
    desk.lands("a", 3)
    desk.lands("b", 5)
    assert not desk.answers()
    desk.lands("c", 3)
    answer, values = desk.answer()
    assert (answer.status, values, answer.models, answer.missing) == (0, [3], ("a", "b", "c"), ())
    assert answer.confidence == pytest.approx(2 / 3)
    assert not answer.defaulted
    assert not answer.inputs_retained
    desk.selector.check()


def test_what_is_not_execution_until_the_answer_counts_as_queue() -> None:
    desk = Asked(models=("a", "b"))
    desk.at(1000)
    desk.ask(1)
    desk.lands("a", 3)
    desk.at(1007)
    desk.lands("b", 3)
    assert desk.answer()[0].queue_ns == ms(7)
    desk.ask(2)
    assert desk.answer()[0].queue_ns == 0


def test_rows_are_combined_one_by_one() -> None:
    desk = Asked(models=("a", "b", "c"))
    desk.ask(rows=2)
    desk.lands("a", 3, 1)
    desk.lands("b", 5, 1)
    desk.lands("c", 3, 1)
    answer, values = desk.answer()
    assert values == [3, 1]
    assert answer.confidence == pytest.approx(2 / 3)


def test_a_missing_model_is_replaced_by_its_average() -> None:
    desk = Asked(models=("a", "b", "c"), cache=False)
    for number in range(1, 4):
        desk.ask(number)
        for model, label in (("a", 1), ("b", 9), ("c", 9)):
            desk.lands(model, label)
        desk.answer()
    desk.ask(5)
    desk.lands("a", 1)
    desk.lands("b", 9)
    desk.at(99)
    answer, values = desk.answer()
    assert values == [9]
    assert (answer.models, answer.missing) == (("a", "b"), ("c",))
    assert answer.confidence == pytest.approx(1 / 3)


def test_with_nothing_there_the_default_is_answered_and_flagged() -> None:
    desk = Asked(models=("a", "b"), default=7.0)
    desk.ask(budget_ms=50)
    desk.at(50)
    answer, values = desk.answer()
    assert (answer.status, values, answer.defaulted, answer.confidence, answer.models) == (0, [7], True, 0.0, ())


def test_below_the_threshold_the_default_is_answered_for_those_rows() -> None:
    desk = Asked(models=("a", "b", "c"), default=7.0, confidence=0.9)
    desk.ask(rows=2)
    desk.lands("a", 3, 1)
    desk.lands("b", 5, 1)
    desk.lands("c", 3, 1)
    answer, values = desk.answer()
    assert (values, answer.defaulted) == ([7, 1], True)


@pytest.mark.parametrize(("end", "status"), [("refused", Status.REFUSED), ("failed", Status.FAILED)])
def test_without_a_default_it_fails_as_its_models_did(end: str, status: Status) -> None:
    desk = Asked(models=("a", "b"))
    desk.ask()
    for model in ("a", "b"):
        desk.fails(model, status)
    answer, _ = desk.answer()
    assert (answer.status, answer.reason) == (status, "no room"), end


def test_without_a_default_nothing_in_time_is_refused_before_the_deadline() -> None:
    desk = Asked(models=("a",))
    desk.ask(budget_ms=50)
    desk.at(49)
    answer, _ = desk.answer()
    assert (answer.status, answer.reason) == (Status.REFUSED, "no model answered in time")


def test_outputs_of_any_kind_pass_through_where_one_model_is_asked() -> None:
    desk = Asked(models=("a",), task="any", policy="static")
    desk.ask()
    desk.lands("a", 3, 4, 5)
    (out,) = [out for out in desk.selector.out if isinstance(out.message, Answer)]
    assert [tensor.name for tensor in out.message.outputs] == ["y"]
    assert out.message.outputs[0].shape == (3,)


def test_what_is_passed_through_agrees_with_nothing() -> None:
    desk = Asked(models=("a",), shadows=("b",), task="any", policy="static")
    desk.ask()
    desk.lands("a", 3)
    desk.lands("b", 3)
    assert [tally.agreed for tally in desk.selector.registry.active["digits"].tallies.values()] == [0, 0]


def test_predictions_that_cannot_be_read_count_as_missing() -> None:
    desk = Asked(models=("a", "b"))
    desk.ask()
    desk.lands("a", 3)
    desk.lands("b", 3, 4)
    answer, values = desk.answer()
    assert (values, answer.missing) == ([3], ("b",))
