"""Rows of ORLOJ's tables with too few seeds to decide which scheduler is better."""

from __future__ import annotations

import pytest

from horologe_experiments.orloj.contest import is_undecided, margin

WORSE = -0.01
NOISE = [0.03, -0.03, 0.02, -0.02, 0.01, -0.01, 0.03, -0.03, 0.02, -0.02]


def rates(ours: float, noise: list[float]) -> dict[str, list[float]]:
    return {"horologe": [0.5 + ours + one for one in noise], "edf": [0.5] * len(noise)}


@pytest.mark.parametrize(
    ("ours", "noise", "expected"),
    [(0.0, NOISE, True), (0.1, NOISE, False), (-0.02, NOISE, False), (0.0, [one / 100 for one in NOISE], False)],
    ids=["noise hides who is better", "better", "worse on the mean", "the same, without noise"],
)
def test_more_seeds_are_needed_only_if_noise_decides(ours: float, noise: list[float], expected: bool) -> None:
    assert is_undecided(rates(ours, noise), False, WORSE) is expected


def test_more_seeds_of_the_same_noise_narrow_the_limit() -> None:
    assert margin(rates(0.0, NOISE * 3), False)[0] > margin(rates(0.0, NOISE), False)[0]
