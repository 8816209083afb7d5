"""What stands in for a missing model."""

from __future__ import annotations

from random import Random

import pytest

from horologe_selector.core.applications.fallback import VALUES, WINDOW, FallbackPrediction


def test_nothing_is_known_at_first() -> None:
    assert FallbackPrediction().shares() == {}
    assert FallbackPrediction(regression=True).shares() == {}


def test_classes_by_how_often_they_were_predicted() -> None:
    stand_in = FallbackPrediction()
    stand_in.add_predictions([3.0] * 6 + [8.0] * 2)
    shares = stand_in.shares()
    assert list(shares) == [3.0, 8.0]
    assert shares[3.0] == pytest.approx(0.75, abs=0.01)
    assert sum(shares.values()) == pytest.approx(1)


def test_numbers_by_their_mean() -> None:
    stand_in = FallbackPrediction(regression=True)
    stand_in.add_predictions((1.0, 2.0))
    stand_in.add_predictions((6.0,))
    assert stand_in.shares() == {3.0: 1.0}


def test_numbers_as_far_apart_as_they_can_be_have_a_mean() -> None:
    stand_in = FallbackPrediction(regression=True)
    stand_in.add_predictions((1.7e308, -1.7e308, 1.7e308, -1.7e308))
    ((mean, _),) = stand_in.shares().items()
    assert abs(mean) < 1e300


@pytest.mark.parametrize("regression", [False, True])
def test_what_was_long_ago_counts_little(regression: bool) -> None:
    stand_in = FallbackPrediction(regression)
    stand_in.add_predictions([1.0] * 5 * WINDOW)
    stand_in.add_predictions([2.0] * 5 * WINDOW)
    shares = stand_in.shares()
    assert max(shares) == pytest.approx(2, abs=0.01)
    assert shares[max(shares)] > 0.99


def test_many_classes_keep_the_frequent_ones() -> None:
    stand_in, chance = FallbackPrediction(), Random(1)
    for _ in range(20_000):
        stand_in.add_predictions([float(chance.randrange(10_000)), float(chance.randrange(3))])
    shares = stand_in.shares()
    assert len(shares) <= VALUES
    assert set(list(shares)[:3]) == {0.0, 1.0, 2.0}


def test_a_million_predictions_later_shares_are_shares() -> None:
    stand_in = FallbackPrediction()
    for _ in range(1000):
        stand_in.add_predictions([1.0, 2.0] * 500)
    assert stand_in.shares() == pytest.approx({1.0: 0.5, 2.0: 0.5}, abs=0.001)
