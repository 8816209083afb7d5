"""The demo's decisions: where the ramp goes, what counts as what, and which promises held."""

from __future__ import annotations

import pytest

from horologe_cli.demo.accuracy import Accuracy
from horologe_cli.demo.demo_run import DemoResult, check_criteria, overload_criteria
from horologe_load.samples import LoadSummary


def peak() -> LoadSummary:
    return LoadSummary(rate=100, seconds=10, slo_ms=50, sent=1000, in_time=1000)


def overload(**changes: object) -> LoadSummary:
    counts: dict[str, object] = {"sent": 2000, "in_time": 950, "refused": 1049, "late": 1, "refusal_p99_ms": 4.0}
    reasons = {"no capacity": 1049}
    return LoadSummary(rate=200, seconds=10, slo_ms=50, **{**counts, "reasons": reasons, **changes})  # type: ignore[arg-type]


def test_a_graceful_overload_holds_every_promise() -> None:
    assert all(criterion.met for criterion in overload_criteria(peak(), overload()))


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"in_time": 850, "refused": 1149, "reasons": {"no capacity": 1149}}, "goodput"),
        ({"late": 3, "refused": 1047, "reasons": {"no capacity": 1047}}, "late"),
        ({"refused": 1040, "failed": 9, "reasons": {"no capacity": 1040, "lost": 9}}, "the rest"),
        ({"refused": 1048, "unsent": 1, "reasons": {"no capacity": 1048}}, "the rest"),
        ({"reasons": {"": 1049}}, "the rest"),
        ({"refusal_p99_ms": 21.0}, "refusal"),
    ],
)
def test_each_promise_can_be_broken(changes: dict[str, object], broken: str) -> None:
    failed = [criterion.name for criterion in overload_criteria(peak(), overload(**changes)) if not criterion.met]
    assert len(failed) == 1
    assert broken in failed[0]


def accuracies(share: float = 0.97, models: int = 3) -> list[Accuracy]:
    return [Accuracy(f"digits-{number}", "SDK", 1000, round(1000 * share), 1.0) for number in range(models)]


def test_everything_held() -> None:
    found = DemoResult(accuracies=accuracies(), peak=peak(), overload=overload())
    found.criteria = check_criteria(found)
    assert found.passed


@pytest.mark.parametrize(
    "found",
    [
        DemoResult(),
        DemoResult(accuracies=accuracies()),
        DemoResult(accuracies=accuracies(share=0.5), peak=peak(), overload=overload()),
        DemoResult(accuracies=accuracies(models=2), peak=peak(), overload=overload()),
    ],
)
def test_what_was_not_shown_did_not_hold(found: DemoResult) -> None:
    found.criteria = check_criteria(found)
    assert not found.passed
