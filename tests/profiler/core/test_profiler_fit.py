"""The fit finds c0 and c1 of batch times, reports its error, and never returns negative values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_profiler.core.batch_fit import Fit, Point, fit, fit_scales

SIZES = (1, 2, 4, 8)


def fit_of(points: list[Point]) -> Fit:
    fitted = fit(points)
    assert fitted is not None
    return fitted


def test_lengths_and_batches_on_a_plane_are_found_exactly() -> None:
    points = [Point(size, length, 700_000 + 30 * size * length) for size in SIZES for length in (16, 100, 512)]
    fitted = fit_of(points)
    assert fitted.base_ns == pytest.approx(700_000, rel=1e-6)
    assert fitted.slope_ns == pytest.approx(30, rel=1e-6)
    assert fitted.max_error < 1e-6
    assert fitted.points == len(points)


def test_rows_of_hidden_length_have_the_intercept_in_common() -> None:
    """The cost of each row is unknown; only batches of a repeated row determine the common intercept."""
    costs = {1: 200_000, 2: 1_500_000, 3: 9_000_000}
    points = [Point(size, 0, 500_000 + cost * size, row) for row, cost in costs.items() for size in SIZES]
    fitted = fit_of(points)
    assert fitted.base_ns == pytest.approx(500_000, rel=1e-6)
    assert fitted.slope_ns == pytest.approx(sum(costs.values()) / 3, rel=1e-6)


def test_of_one_size_alone_nothing_is_common_to_all_rows() -> None:
    fitted = fit_of([Point(1, 0, took, row) for row, took in enumerate((1000, 2000, 4000))])
    assert fitted.base_ns == 0
    assert fitted.max_error < 1e-9


def test_what_no_line_goes_through_has_an_error() -> None:
    fitted = fit_of([Point(1, length, length * length) for length in (10, 20, 40)])
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
    fitted = fit_of(points)
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
    fitted = fit_of(points)
    squares = sum(
        ((fitted.base_ns + fitted.slope_ns * point.size * point.length) / point.took_ns - 1) ** 2 for point in points
    )
    true = sum(((c0 + c1 * point.size * point.length) / point.took_ns - 1) ** 2 for point in points)
    assert squares <= true * (1 + 1e-6) + 1e-9


def measured(base_ns: float, gain: float, rows: int, noise: list[float]) -> list[Point]:
    """Return batches of rows that add 1, 2, 4, ... ms, at a scale of size ** gain. `noise` is relative."""
    points = [(size, row, base_ns + 1e6 * 2 ** (row % 5) * size**gain) for row in range(rows) for size in SIZES]
    return [
        Point(size, 0, round(took_ns * (1 + noise[at % len(noise)])), row)
        for at, (size, row, took_ns) in enumerate(points)
    ]


@given(
    st.floats(2e5, 5e6), st.sampled_from([0.3, 0.6, 0.8, 1.0]), st.lists(st.floats(-0.03, 0.03), min_size=7, max_size=7)
)
def test_scales_predict_batches_of_rows_of_any_length(base_ns: float, gain: float, noise: list[float]) -> None:
    points = measured(base_ns, gain, 10, noise)
    linear = fit_of(points)
    found = fit_scales(points, linear.base_ns, min(point.took_ns for point in points))
    scales = dict(found.scales)
    assert scales[1] == 1.0
    assert list(scales) == list(SIZES)
    for added_ns in (1e6, 4e6, 16e6):
        for size, scale in scales.items():
            predicted_ns = found.base_ns + scale * (base_ns + added_ns - found.base_ns)
            assert predicted_ns == pytest.approx(base_ns + added_ns * size**gain, rel=0.25)


def test_where_each_row_takes_its_time_the_scale_is_the_size() -> None:
    points = measured(3e6, 1.0, 5, [0.0])
    found = fit_scales(points, 3e6, 4e6)
    assert found.base_ns == 3e6
    assert dict(found.scales) == pytest.approx({1: 1, 2: 2, 4: 4, 8: 8}, rel=1e-6)


def test_a_disturbed_batch_moves_no_scale() -> None:
    points = measured(3e6, 0.5, 10, [0.0])
    late = [
        point._replace(took_ns=point.took_ns + 90_000_000) if at in (3, 8, 21) else point
        for at, point in enumerate(points)
    ]
    found, disturbed = (fit_scales(some, 3e6, 4e6) for some in (points, late))
    assert dict(disturbed.scales) == pytest.approx(dict(found.scales), rel=0.1)


def test_without_batches_the_base_is_that_of_the_line() -> None:
    assert fit_scales([Point(1, 0, 5, 1), Point(1, 0, 6, 2)], 3.0, 5.0) == (3.0, ())


@given(
    st.lists(st.builds(Point, st.sampled_from(SIZES), st.just(0), st.integers(1, 10**12), st.integers(0, 3))),
    st.floats(0, 1e9),
)
def test_scales_never_fall(points: list[Point], most_ns: float) -> None:
    found = fit_scales(points, most_ns / 2, most_ns)
    assert 0 <= found.base_ns <= most_ns
    scales = [scale for _, scale in found.scales]
    assert scales == sorted(scales)
    assert all(scale >= 1 for scale in scales)
