"""The fit finds c0 and c1 of batch times, reports its error, and never returns negative values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_profiler.core.batch_fit import Point, fit

SIZES = (1, 2, 4, 8)


def test_lengths_and_batches_on_a_plane_are_found_exactly() -> None:
    points = [Point(size, length, 700_000 + 30 * size * length) for size in SIZES for length in (16, 100, 512)]
    fitted = fit(points)
    assert fitted is not None
    assert fitted.base_ns == pytest.approx(700_000, rel=1e-6)
    assert fitted.slope_ns == pytest.approx(30, rel=1e-6)
    assert fitted.max_error < 1e-6
    assert fitted.points == len(points)


def test_rows_of_hidden_length_have_the_intercept_in_common() -> None:
    """The cost of each row is unknown; only batches of a repeated row determine the common intercept."""
    costs = {1: 200_000, 2: 1_500_000, 3: 9_000_000}
    points = [Point(size, 0, 500_000 + cost * size, row) for row, cost in costs.items() for size in SIZES]
    fitted = fit(points)
    assert fitted is not None
    assert fitted.base_ns == pytest.approx(500_000, rel=1e-6)
    assert fitted.slope_ns == pytest.approx(sum(costs.values()) / 3, rel=1e-6)


def test_of_one_size_alone_nothing_is_common_to_all_rows() -> None:
    fitted = fit([Point(1, 0, took, row) for row, took in enumerate((1000, 2000, 4000))])
    assert fitted is not None
    assert fitted.base_ns == 0
    assert fitted.max_error < 1e-9


def test_what_no_line_goes_through_has_an_error() -> None:
    fitted = fit([Point(1, length, length * length) for length in (10, 20, 40)])
    assert fitted is not None
    assert fitted.max_error > fitted.median_error > 0.1


def test_no_points_no_fit() -> None:
    assert fit([]) is None


@given(
    st.lists(
        st.builds(
            Point, st.sampled_from(SIZES), st.sampled_from([0, 1, 7, 300]), st.integers(1, 10**12), st.integers(0, 3)
        ),
        min_size=1,
    )
)
def test_neither_part_is_negative_whatever_was_measured(points: list[Point]) -> None:
    fitted = fit(points)
    assert fitted is not None
    assert fitted.base_ns >= 0
    assert fitted.slope_ns >= 0
    assert 0 <= fitted.median_error <= fitted.max_error


@given(st.floats(0, 1e7), st.floats(1, 1e5), st.lists(st.floats(-0.05, 0.05), min_size=12, max_size=12))
def test_noise_of_five_percent_moves_what_is_expected_by_no_more(c0: float, c1: float, noise: list[float]) -> None:
    plane = [(size, length) for size in SIZES for length in (10, 60, 300)]
    points = [
        Point(size, length, max(1, round((c0 + c1 * size * length) * (1 + more))))
        for (size, length), more in zip(plane, noise, strict=True)
    ]
    fitted = fit(points)
    assert fitted is not None
    squares = sum(
        ((fitted.base_ns + fitted.slope_ns * point.size * point.length) / point.took_ns - 1) ** 2 for point in points
    )
    true = sum(((c0 + c1 * point.size * point.length) / point.took_ns - 1) ** 2 for point in points)
    assert squares <= true * (1 + 1e-6) + 1e-9
