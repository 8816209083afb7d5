"""Least-squares fit of a batch's time l_B = c0 + c1 * k * l (ORLOJ, eq. 3), with relative errors.

k is the batch size, l the length of its rows. If a row's time does not depend on a length (all dimensions are fixed, or
the content decides), l is unknown. It is then equal for all batches of one repeated row, and c1 is 1: c0 is the
intercept that all rows share, and a row alone takes c0 + l.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SINGULAR = 1e-9
"""Least determinant, relative to the weight of the points. Below it the points do not determine both regressors."""


class Point(NamedTuple):
    """A batch of `size` rows of `length` (0: unknown) took `took_ns`. Points of one repeated `row` share their l."""

    size: int
    length: int
    took_ns: int
    row: int = 0


class Fit(NamedTuple):
    """Result of a fit. `base_ns` is c0. `slope_ns` is c1, or, if length is unknown, the mean l of a row.

    The errors are relative, |fitted - measured| / measured: their median and maximum.
    """

    base_ns: float
    slope_ns: float
    median_error: float
    max_error: float
    points: int


def fit(points: Iterable[Point]) -> Fit | None:
    """Fit c0, c1 >= 0; None without points. Lengths are used if every point has one."""
    valid = [point for point in points if point.took_ns > 0]
    if not valid:
        return None
    if all(point.length for point in valid):
        base_ns, slope_ns = _fit_line([(point.size * point.length, point.took_ns) for point in valid])
        slopes = dict.fromkeys((point.row for point in valid), slope_ns)
        expected = [base_ns + slope_ns * point.size * point.length for point in valid]
    else:
        base_ns, slopes = _fit_common_intercept(valid)
        slope_ns = sum(slopes.values()) / len(slopes)
        expected = [base_ns + slopes[point.row] * point.size for point in valid]
    errors = [abs(want - point.took_ns) / point.took_ns for want, point in zip(expected, valid, strict=True)]
    return Fit(base_ns, slope_ns, median(errors), max(errors), len(valid))


def _fit_line(pairs: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Fit a, b >= 0 of y = a + b * x. If all x are equal, fit a line through the origin."""
    s11, s1x, sxx, s1y, sxy = _weighted_sums(pairs)
    determinant = s11 * sxx - s1x * s1x
    if determinant <= SINGULAR * s11 * sxx:
        return 0.0, sxy / sxx
    a, b = (sxx * s1y - s1x * sxy) / determinant, (s11 * sxy - s1x * s1y) / determinant
    if a < 0:
        return 0.0, sxy / sxx
    return (s1y / s11, 0.0) if b < 0 else (a, b)


def _fit_common_intercept(points: Sequence[Point]) -> tuple[float, dict[int, float]]:
    """Fit y = a + b * size with one a >= 0 for all rows and a b >= 0 for each row. Each b is eliminated first."""
    rows: dict[int, list[tuple[float, int]]] = {}
    for point in points:
        rows.setdefault(point.row, []).append((point.size, point.took_ns))
    sums = {row: _weighted_sums(pairs) for row, pairs in rows.items()}
    above = below = weight = 0.0
    for s11, s1x, sxx, s1y, sxy in sums.values():
        above += s1y - s1x * sxy / sxx
        below += s11 - s1x * s1x / sxx
        weight += s11
    a = above / below if below > SINGULAR * weight else 0.0
    a = max(0.0, min(a, *(sxy / s1x for _, s1x, _, _, sxy in sums.values())))
    return a, {row: max(0.0, sxy - a * s1x) / sxx for row, (_, s1x, sxx, _, sxy) in sums.items()}


def _weighted_sums(pairs: Iterable[tuple[float, int]]) -> tuple[float, float, float, float, float]:
    """Return the sums of 1, x, x^2, y, x*y, weighted by 1/y^2: a relative error of 1% counts equally for all times."""
    s11 = s1x = sxx = s1y = sxy = 0.0
    for x, y in pairs:
        weight = 1.0 / (y * y)
        s11 += weight
        s1x += weight * x
        sxx += weight * x * x
        s1y += weight * y
        sxy += weight * x * y
    return s11, s1x, sxx, s1y, sxy
