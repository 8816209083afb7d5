"""The demo: rates of the ramp, counts of a load step, and criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_cli.demo.demo_options import RunningSystem
from horologe_cli.demo.demo_run import DemoResult, check_criteria, overload_criteria
from horologe_cli.demo.digits import Accuracy
from horologe_cli.demo.next_steps import Surroundings, next_steps
from horologe_cli.demo.profiler_cost import ProfilerCost
from horologe_load.samples import LoadSummary

if TYPE_CHECKING:
    from pathlib import Path


def peak() -> LoadSummary:
    return LoadSummary(rate=100, seconds=10, slo_ms=50, sent=1000, in_time=1000)


def overload(**changes: object) -> LoadSummary:
    counts: dict[str, object] = {"sent": 2000, "in_time": 950, "refused": 1049, "late": 1, "refusal_p99_ms": 4.0}
    reasons = {"no capacity": 1049}
    return LoadSummary(rate=200, seconds=10, slo_ms=50, **{**counts, "reasons": reasons, **changes})  # type: ignore[arg-type]


def test_a_graceful_overload_meets_every_criterion() -> None:
    assert all(criterion.met for criterion in overload_criteria(peak(), overload()))


@pytest.mark.parametrize(
    ("changes", "failed_name"),
    [
        ({"in_time": 850, "refused": 1149, "reasons": {"no capacity": 1149}}, "goodput"),
        ({"late": 3, "refused": 1047, "reasons": {"no capacity": 1047}}, "late"),
        ({"refused": 1040, "failed": 9, "reasons": {"no capacity": 1040, "lost": 9}}, "the rest"),
        ({"refused": 1048, "unsent": 1, "reasons": {"no capacity": 1048}}, "the rest"),
        ({"reasons": {"": 1049}}, "the rest"),
        ({"refusal_p99_ms": 21.0}, "refusal"),
    ],
)
def test_each_criterion_can_fail(changes: dict[str, object], failed_name: str) -> None:
    failed = [criterion.name for criterion in overload_criteria(peak(), overload(**changes)) if not criterion.met]
    assert len(failed) == 1
    assert failed_name in failed[0]


def accuracies(share: float = 0.97, models: int = 3) -> list[Accuracy]:
    return [Accuracy(f"digits-{number}", "SDK", 1000, round(1000 * share), 1.0) for number in range(models)]


def test_a_result_that_meets_all_criteria_passes() -> None:
    result = DemoResult(accuracies=accuracies(), peak=peak(), overload=overload())
    result.criteria = check_criteria(result)
    assert result.passed


def test_a_profiler_that_slows_one_model_down_fails() -> None:
    costs = [ProfilerCost("noop", 1000, 1000, 1.0), ProfilerCost("digits-cnn", 90, 100, 0.9)]
    result = DemoResult(accuracies=accuracies(), peak=peak(), overload=overload(), profiler_costs=costs)
    failed = [criterion for criterion in check_criteria(result) if not criterion.met]
    assert [criterion.got for criterion in failed] == ["90.0%, digits-cnn"]


@pytest.mark.parametrize(
    "result",
    [
        DemoResult(),
        DemoResult(accuracies=accuracies()),
        DemoResult(accuracies=accuracies(share=0.5), peak=peak(), overload=overload()),
        DemoResult(accuracies=accuracies(models=2), peak=peak(), overload=overload()),
    ],
)
def test_a_result_without_measurements_fails(result: DemoResult) -> None:
    result.criteria = check_criteria(result)
    assert not result.passed


def test_a_running_system_gets_the_bearer_key_of_clients(tmp_path: Path) -> None:
    assert RunningSystem("tcp://a:1", "http://a:2").headers() == {}
    assert RunningSystem("tcp://a:1", "http://a:2", str(tmp_path)).headers() == {}
    (tmp_path / "http").mkdir()
    (tmp_path / "http" / "client.secret").write_text("secret\n")
    assert RunningSystem("tcp://a:1", "http://a:2", str(tmp_path)).headers() == {"Authorization": "Bearer secret"}


def test_the_advice_begins_with_a_system_that_stays() -> None:
    steps = [
        target for target, _ in next_steps("digits-cnn", Surroundings("horologe", has_pages=True), RunningSystem())
    ]
    assert steps[:2] == ["horologe up --demo", "horologe models"]
    assert "http://127.0.0.1:8000/v2/models/digits-cnn" in steps
    assert steps[-1].startswith("docs/")


def test_the_advice_in_a_container_opens_a_port_to_the_host() -> None:
    steps = next_steps("digits-cnn", Surroundings("horologe", in_container=True), RunningSystem())
    assert steps[0][0] == "horologe up --demo --http 0.0.0.0:8000 --set http.allow_open=true"
    assert "container" in steps[0][1]
    assert not any(":8002" in target for target, _ in steps)


@pytest.mark.parametrize("in_container", [False, True])
def test_the_advice_for_a_running_system_starts_no_other(in_container: bool) -> None:
    running = RunningSystem("tcp://frontend:8003", "http://frontend:8000", "/keys")
    targets = [target for target, _ in next_steps("noop", Surroundings("horologe", in_container), running)]
    assert targets == [
        "horologe models --endpoint tcp://frontend:8003 --keys /keys",
        "horologe status --endpoint tcp://frontend:8003 --keys /keys",
        "horologe doctor",
        "http://frontend:8000/console",
        "http://frontend:8000/v2/models/noop",
    ]
