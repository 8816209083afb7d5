"""The demo: rates of the ramp, counts of a load step, and criteria."""

from __future__ import annotations

import numpy as np
import pytest

from horologe_cli.demo.demo_run import DemoResult, check_criteria, overload_criteria
from horologe_cli.demo.digits import Accuracy
from horologe_common.clock import s
from horologe_load.capacity_search import MOST_STEPS, PRECISION, Confirmation, Ramp
from horologe_load.open_loop import Step, distinct, poisson, quantile_ms


def climb(ramp: Ramp, capacity: float) -> list[float]:
    """Offer what the ramp asks for to a system that carries `capacity`."""
    rates: list[float] = []
    while (rate := ramp.next_rate()) is not None:
        rates.append(rate)
        ramp.observe(rate, 1.0 if rate <= capacity else 0.5)
    return rates


@pytest.mark.parametrize("first", [20.0, 90.0, 100.0, 250.0])
def test_the_ramp_closes_in_on_the_capacity(first: float) -> None:
    ramp = Ramp(first)
    rates = climb(ramp, 100.0)
    assert ramp.carried is not None
    assert 100.0 / PRECISION <= ramp.carried <= 100.0
    assert len(rates) < MOST_STEPS


def test_the_ramp_forgives_one_failure_at_a_rate() -> None:
    ramp = Ramp(50.0)
    ramp.observe(50.0, 0.9)
    assert ramp.next_rate() == 50.0
    ramp.observe(50.0, 1.0)
    assert ramp.carried == 50.0
    assert climb(ramp, 100.0)
    assert 100.0 / PRECISION <= (ramp.carried or 0) <= 100.0


def test_the_ramp_ends_when_nothing_is_carried() -> None:
    ramp = Ramp(1000.0)
    assert len(climb(ramp, 0.0)) <= MOST_STEPS
    assert ramp.carried is None


def test_the_confirmation_retreats_until_a_rate_is_carried() -> None:
    confirmation = Confirmation(100.0)
    rates = []
    while (rate := confirmation.next_rate()) is not None:
        rates.append(rate)
        confirmation.observe(1.0 if rate < 95 else 0.9)
    assert rates[0] == 100.0
    assert confirmation.confirmed == rates[-1] < 95


def test_the_confirmation_gives_up() -> None:
    confirmation = Confirmation(100.0, most_tries=3)
    for _ in range(3):
        assert confirmation.next_rate() is not None
        confirmation.observe(0.0)
    assert confirmation.next_rate() is None
    assert confirmation.confirmed is None


def test_arrivals_are_poisson_and_repeat_by_seed() -> None:
    times = poisson(1000.0, 4.0, seed=3)
    assert (np.diff(times) >= 0).all()
    assert times[-1] < s(4)
    assert abs(len(times) - 4000) < 5 * 4000**0.5
    assert np.std(np.diff(times)) == pytest.approx(1e6, rel=0.1)
    assert (times == poisson(1000.0, 4.0, seed=3)).all()
    assert len(times) != len(poisson(1000.0, 4.0, seed=4))


def test_inputs_are_distinct_and_near_their_images() -> None:
    images = np.eye(4, dtype=np.float32)
    rows = distinct(images, 100, seed=1)
    assert len(np.unique(rows, axis=0)) == 100
    assert rows.dtype == np.float32
    assert (np.round(rows).sum(axis=1) == 1).all()


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)])
def test_quantiles_are_times_that_were_taken(share: float, wanted: float) -> None:
    assert quantile_ms([number * 1_000_000 for number in range(100, 0, -1)], share) == wanted


def test_no_times_no_quantile() -> None:
    assert quantile_ms([], 0.99) == 0.0


def peak() -> Step:
    return Step(rate=100, seconds=10, slo_ms=50, sent=1000, in_time=1000)


def overload(**changes: object) -> Step:
    counts: dict[str, object] = {"sent": 2000, "in_time": 950, "refused": 1049, "late": 1, "refusal_p99_ms": 4.0}
    reasons = {"no capacity": 1049}
    return Step(rate=200, seconds=10, slo_ms=50, **{**counts, "reasons": reasons, **changes})  # type: ignore[arg-type]


def test_a_graceful_overload_meets_every_criterion() -> None:
    assert all(criterion.met for criterion in overload_criteria(peak(), overload()))


@pytest.mark.parametrize(
    ("changes", "failed_name"),
    [
        ({"in_time": 850, "refused": 1149, "reasons": {"no capacity": 1149}}, "goodput"),
        ({"late": 3, "refused": 1047, "reasons": {"no capacity": 1047}}, "late"),
        ({"refused": 1040, "other": 9, "reasons": {"no capacity": 1040, "lost": 9}}, "the rest"),
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
