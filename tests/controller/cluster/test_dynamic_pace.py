"""The pace of a share in batches of dynamic models."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms, s
from horologe_controller.core.cluster.dynamic_pace import PACE_AGE_NS, PACE_BATCHES, DynamicPace


def after_batches(*ratios: float, spread: float = 0.05) -> DynamicPace:
    """Return a pace after batches of 10 ms that took these multiples of the expected time."""
    pace = DynamicPace()
    for number, ratio in enumerate(ratios):
        pace.observe(ms(10 * number), int(ratio * ms(10)), ms(10), spread)
    return pace


def test_without_batches_the_profile_counts() -> None:
    assert DynamicPace().at(0) == 1.0


def test_a_slower_device_shows_after_a_few_batches() -> None:
    assert after_batches(*[3.0] * 8).at(ms(80)) == pytest.approx(3.0, rel=0.2)
    assert after_batches(*[3.0] * 4 * PACE_BATCHES).at(ms(10 * 4 * PACE_BATCHES)) == pytest.approx(3.0, rel=0.02)


def test_one_stall_is_not_a_slow_device() -> None:
    assert after_batches(1.0, 1.0, 20.0).at(ms(30)) < 1.5
    assert after_batches(20.0).at(ms(10)) < 1.5


def test_batches_whose_time_is_hard_to_predict_say_little() -> None:
    certain, uncertain = (after_batches(2.0, 2.0, spread=spread).at(ms(20)) for spread in (0.0, 1.0))
    assert 1.0 < uncertain < 1.1 < certain


def test_it_is_dropped_where_no_batch_shows_a_recovery() -> None:
    pace = after_batches(*[3.0] * PACE_BATCHES)
    end_ns = ms(10 * (PACE_BATCHES - 1))
    assert pace.at(end_ns + PACE_AGE_NS) > 2.0
    assert pace.at(end_ns + PACE_AGE_NS + 1) == 1.0
    pace.observe(end_ns + s(5), ms(10), ms(10), 0.05)
    assert pace.at(end_ns + s(5)) == pytest.approx(1.0)
