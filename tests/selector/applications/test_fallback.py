"""Average predictions of a model, used when it is missing."""

from __future__ import annotations

from random import Random

import pytest

from horologe_selector.core.applications.active_application import VALUES, WINDOW, FallbackPrediction


def test_a_new_fallback_has_no_shares() -> None:
    assert FallbackPrediction().shares() == {}
    assert FallbackPrediction(regression=True).shares() == {}


def test_class_shares_are_frequencies() -> None:
    fallback = FallbackPrediction()
    fallback.add_predictions([3.0] * 6 + [8.0] * 2)
    shares = fallback.shares()
    assert list(shares) == [3.0, 8.0]
    assert shares[3.0] == pytest.approx(0.75, abs=0.01)
    assert sum(shares.values()) == pytest.approx(1)


def test_the_share_of_a_regression_is_the_mean() -> None:
    fallback = FallbackPrediction(regression=True)
    fallback.add_predictions((1.0, 2.0))
    fallback.add_predictions((6.0,))
    assert fallback.shares() == {3.0: 1.0}


def test_the_mean_of_extreme_numbers_does_not_overflow() -> None:
    fallback = FallbackPrediction(regression=True)
    fallback.add_predictions((1.7e308, -1.7e308, 1.7e308, -1.7e308))
    ((mean, _),) = fallback.shares().items()
    assert abs(mean) < 1e300


@pytest.mark.parametrize("regression", [False, True])
def test_old_predictions_count_little(regression: bool) -> None:
    fallback = FallbackPrediction(regression)
    fallback.add_predictions([1.0] * 5 * WINDOW)
    fallback.add_predictions([2.0] * 5 * WINDOW)
    shares = fallback.shares()
    assert max(shares) == pytest.approx(2, abs=0.01)
    assert shares[max(shares)] > 0.99


def test_only_the_most_frequent_classes_are_kept() -> None:
    fallback, random_source = FallbackPrediction(), Random(1)
    for _ in range(20_000):
        fallback.add_predictions([float(random_source.randrange(10_000)), float(random_source.randrange(3))])
    shares = fallback.shares()
    assert len(shares) <= VALUES
    assert set(list(shares)[:3]) == {0.0, 1.0, 2.0}


def test_shares_sum_to_one_after_a_million_predictions() -> None:
    fallback = FallbackPrediction()
    for _ in range(1000):
        fallback.add_predictions([1.0, 2.0] * 500)
    assert fallback.shares() == pytest.approx({1.0: 0.5, 2.0: 0.5}, abs=0.001)
