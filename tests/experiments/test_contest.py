"""Margins between schedulers in a row of ORLOJ's tables."""

from __future__ import annotations

import pytest

from horologe_experiments.orloj.contest import margin

NOISE = [0.03, -0.03, 0.02, -0.02, 0.01, -0.01, 0.03, -0.03, 0.02, -0.02]


def rates(ours: float, noise: list[float]) -> dict[str, list[float]]:
    return {"horologe": [0.5 + ours + one for one in noise], "edf": [0.5] * len(noise)}


def test_more_seeds_of_the_same_noise_narrow_the_limit() -> None:
    assert margin(rates(0.0, NOISE * 3), False)[0] > margin(rates(0.0, NOISE), False)[0]


def test_the_margin_is_a_lower_limit_of_the_difference_from_the_best_other() -> None:
    finished = rates(0.1, NOISE) | {"orloj": [0.55] * len(NOISE)}
    lowest, against = margin(finished, False)
    assert against == "orloj"
    assert 0.02 < lowest < 0.05


def test_with_few_seeds_the_margin_is_the_mean() -> None:
    mean, against = margin(rates(0.1, [0.02, -0.02]), False)
    assert mean == pytest.approx(0.1)
    assert against == "edf"
