"""Dynamic or static: inputs are the cause, whatever the noise of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from horologe_common.clock import ms, us
from horologe_profiler.core.comparisons import ROUNDS, ROWS
from horologe_profiler.core.input_dependence import InputEffect, Verdict, input_effect, length_effect

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (ROUNDS, ROWS)


def neighbour(rng: np.random.Generator) -> np.ndarray:
    """Return the factor of a neighbour that takes the CPU in bursts of several runs, half of the time."""
    bursts = np.repeat(rng.random(ROUNDS * ROWS // 4) < 0.5, 4)
    factors = np.where(bursts, rng.uniform(1.5, 3.0, bursts.size), 1.0).reshape(SHAPE)
    return np.stack([rng.permutation(times) for times in factors])  # each round has an order of its own


def outliers(rng: np.random.Generator) -> np.ndarray:
    """Return the factor of single runs that take up to ten times as long."""
    return np.where(rng.random(SHAPE) < 0.05, rng.uniform(2, 10, SHAPE), rng.lognormal(0, 0.02, SHAPE))


NOISES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "jitter": lambda rng: rng.lognormal(0, 0.3, SHAPE),
    "outliers": outliers,
    "neighbour": neighbour,
    "slow clock": lambda rng: np.linspace(1, 3, ROUNDS)[:, None] * rng.lognormal(0, 0.02, SHAPE),
    "cold cache": lambda rng: np.where(np.arange(ROUNDS)[:, None] == 0, 4, 1) * rng.lognormal(0, 0.05, SHAPE),
}


def verdict_after(comparisons: int, took_ns: np.ndarray, noise: str, seed: int) -> Verdict:
    """Return the verdict after comparisons of rows that take `took_ns` (comparisons, rows) without noise."""
    rng, verdict = np.random.default_rng(seed), Verdict()
    for index in range(comparisons):
        times = took_ns[index] * NOISES[noise](rng)
        verdict.record(input_effect(times.astype(int).tolist()))
    return verdict


@pytest.mark.parametrize("noise", NOISES)
def test_noise_makes_no_model_dynamic(noise: str) -> None:
    """A hundred models, ten comparisons each: one is allowed, since two in a row happen by chance."""
    took_ns = np.full((10, ROWS), ms(10))
    assert sum(verdict_after(10, took_ns, noise, seed).dynamic for seed in range(100)) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_a_model_whose_inputs_differ_much_is_dynamic_under_noise(noise: str) -> None:
    found = 0
    for seed in range(100):
        took_ns = ms(5) * np.random.default_rng(seed).lognormal(0, 0.8, (4, ROWS))
        found += verdict_after(4, took_ns, noise, seed).dynamic
    assert found >= 95


@pytest.mark.parametrize("noise", [*NOISES, "slower"])
@pytest.mark.parametrize("growing", [False, True])
def test_noise_makes_no_model_dynamic_by_its_lengths(noise: str, growing: bool) -> None:
    """A thousand rounds of rows of 10 ms each. `growing`: clients send ever longer inputs.

    In the noise `slower`, the machine becomes steadily slower.
    """
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 500, ROWS)
        times = ms(10) * (np.linspace(1, 3.2, ROWS) if noise == "slower" else NOISES[noise](rng)[0])
        assert length_effect(list(zip(sorted(lengths) if growing else lengths, times.astype(int), strict=True))) is None


def test_lengths_that_explain_the_times_are_enough_after_one_round() -> None:
    rng, found = np.random.default_rng(1), 0
    for _ in range(100):
        lengths = rng.integers(1, 500, ROWS)
        times = (ms(5) + us(100) * lengths * rng.lognormal(0, 0.05, ROWS)).astype(int).tolist()
        effect, verdict = length_effect(list(zip(lengths.tolist(), times, strict=True))), Verdict()
        found += effect is not None and verdict.record(effect)
    assert found >= 90, "the others rose or fell with the order of the runs"


def test_lengths_that_make_little_difference_leave_a_model_static() -> None:
    lengths = [7, 3, 11, 1, 9, 5, 2, 12, 4, 10, 6, 8]
    effect, verdict = length_effect([(length, ms(10) + us(length)) for length in lengths]), Verdict()
    assert effect is not None
    assert not verdict.record(effect)
    assert length_effect([(0, ms(length)) for length in lengths]) is None


@pytest.mark.parametrize(
    ("row_times_ns", "dynamic"),
    [
        ([ms(took) for took in range(5, 17)], True),
        ([ms(5)] * 11 + [ms(100)], True),
        ([us(12)] * ROWS, False),
        ([us(10 + 3 * row) for row in range(ROWS)], False),  # they differ by less than a prediction may be wrong
    ],
)
def test_without_noise_one_comparison_is_enough(row_times_ns: list[int], dynamic: bool) -> None:
    assert Verdict().record(input_effect([row_times_ns] * ROUNDS)) == dynamic


def test_equal_times_have_no_effect() -> None:
    assert input_effect([[us(12)] * ROWS] * ROUNDS) == InputEffect(0.0, 0.0, 0.0)


def test_a_verdict_does_not_flip_near_the_limit() -> None:
    """0.08 of the typical time neither makes a model dynamic nor static again."""
    near = InputEffect(0.08, ms(1), 0.5)
    static, dynamic = Verdict(), Verdict(dynamic=True)
    for _ in range(5):
        static.record(near)
        dynamic.record(near)
    assert (static.dynamic, dynamic.dynamic) == (False, True)


def test_a_dynamic_model_is_static_after_three_comparisons_without_effect() -> None:
    verdict, nothing = Verdict(dynamic=True), InputEffect(0.0, 0.0, 0.0)
    verdict.record(nothing)
    verdict.record(InputEffect(0.5, ms(5), 0.9))
    for _ in range(2):
        verdict.record(nothing)
    assert verdict.dynamic
    verdict.record(nothing)
    assert not verdict.dynamic
