"""Answers of applications: combined predictions, fallbacks for missing models, defaults, failures."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import Answer
from selector.selector_harness import ApplicationHarness


def test_the_models_of_an_application_are_queried_and_combined() -> None:
    harness = ApplicationHarness(models=("a", "b", "c"))
    harness.query()
    assert sorted(harness.submits) == ["a", "b", "c"]
    assert {submit.application for submit in harness.submits.values()} == {"digits"}
    harness.predict_all(a=(3,), b=(5,))
    assert not harness.count_answers()
    harness.predict("c", 3)
    answer, values = harness.pop_answer()
    assert (answer.status, values, answer.models, answer.missing) == (0, [3], ("a", "b", "c"), ())
    assert answer.confidence == pytest.approx(2 / 3)
    assert not answer.defaulted
    assert not answer.inputs_retained


def test_queue_time_is_the_time_until_the_answer_without_execution() -> None:
    harness = ApplicationHarness(models=("a", "b"))
    harness.advance_to(1000)
    harness.query(1)
    harness.predict("a", 3)
    harness.advance_to(1007)
    harness.predict("b", 3)
    assert harness.pop_answer()[0].queue_ns == ms(7)
    harness.query(2)
    assert harness.pop_answer()[0].queue_ns == 0


def test_a_missing_model_is_replaced_by_its_average() -> None:
    harness = ApplicationHarness(models=("a", "b", "c"), cache=False)
    for number in range(1, 4):
        harness.query(number)
        for model, label in (("a", 1), ("b", 9), ("c", 9)):
            harness.predict(model, label)
        harness.pop_answer()
    harness.query(5)
    harness.predict_all(a=(1,), b=(9,))
    harness.advance_to(99)
    answer, values = harness.pop_answer()
    assert values == [9]
    assert (answer.models, answer.missing) == (("a", "b"), ("c",))
    assert answer.confidence == pytest.approx(1 / 3)


def test_without_any_prediction_the_default_is_answered_and_flagged() -> None:
    harness = ApplicationHarness(models=("a", "b"), default=7.0)
    harness.query(budget_ms=50)
    harness.advance_to(50)
    answer, values = harness.pop_answer()
    assert (answer.status, values, answer.defaulted, answer.confidence, answer.models) == (0, [7], True, 0.0, ())


@pytest.mark.parametrize(("confidence", "wanted"), [(0.0, [3, 1]), (0.9, [7, 1])])
def test_rows_are_combined_and_below_the_confidence_threshold_defaulted(confidence: float, wanted: list[int]) -> None:
    harness = ApplicationHarness(models=("a", "b", "c"), default=7.0, confidence=confidence)
    harness.query(rows=2)
    harness.predict_all(a=(3, 1), b=(5, 1), c=(3, 1))
    answer, values = harness.pop_answer()
    assert (values, answer.defaulted) == (wanted, confidence > 0)
    assert answer.confidence == pytest.approx(2 / 3)


@pytest.mark.parametrize(("end", "status"), [("refused", Status.REFUSED), ("failed", Status.FAILED)])
def test_without_a_default_the_answer_has_the_models_failure(end: str, status: Status) -> None:
    harness = ApplicationHarness(models=("a", "b"))
    harness.query()
    for model in ("a", "b"):
        harness.fail_model(model, status)
    answer, _ = harness.pop_answer()
    assert (answer.status, answer.reason) == (status, "no room"), end


def test_without_a_default_or_prediction_the_answer_is_refused_before_the_deadline() -> None:
    harness = ApplicationHarness(models=("a",))
    harness.query(budget_ms=50)
    harness.advance_to(49)
    answer, _ = harness.pop_answer()
    assert (answer.status, answer.reason) == (Status.REFUSED, "no model answered in time")


def test_task_any_passes_outputs_on_unchanged_and_counts_no_agreement() -> None:
    harness = ApplicationHarness(models=("a",), shadows=("b",), task="any", policy="static")
    harness.query()
    harness.predict_all(a=(3, 4, 5), b=(3, 4, 5))
    (out,) = [out for out in harness.selector.out if isinstance(out.message, Answer)]
    assert [tensor.name for tensor in out.message.outputs] == ["y"]
    assert out.message.outputs[0].shape == (3,)
    active = harness.selector.applications.registry.active["digits"]
    assert [tally.agreed for tally in active.tallies.values()] == [0, 0]
