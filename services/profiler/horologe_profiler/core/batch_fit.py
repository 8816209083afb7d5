"""c0 and c1 of a batch's time l_B = c0 + c1 * k * l (ORLOJ, eq. 3), by least squares of relative errors.

k is the batch's size, l the length of its rows. Where length is not what a row's time follows from (all dimensions
fixed, or the content decides), l is unknown, the same for all batches of one row repeated, and c1 is 1: c0 is then the
intercept that all rows have in common, and what a row takes alone is c0 + l.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SINGULAR = 1e-9
"""Of the points' weight: what is left below this after one regressor says nothing about the other."""


class Point(NamedTuple):
    """A batch of `size` rows of `length` (0: unknown) took `took_ns`. Points of one repeated `row` share their l."""

    size: int
    length: int
    took_ns: int
    row: int = 0


class Fit(NamedTuple):
    """`base_ns` is c0. `slope_ns` is c1: per row and unit of length, or, where length is unknown, the mean l per row.

    The errors are relative: |fitted - measured| / measured, their median and the largest.
    """

    base_ns: float
    slope_ns: float
    median_error: float
    max_error: float
    points: int


def fit(points: Iterable[Point]) -> Fit | None:
    """The best c0, c1 >= 0. None without points. Lengths count if every point has one."""
    found = [point for point in points if point.took_ns > 0]
    if not found:
        return None
    if all(point.length for point in found):
        base_ns, slope_ns = _line([(point.size * point.length, point.took_ns) for point in found])
        slopes = dict.fromkeys((point.row for point in found), slope_ns)
        expected = [base_ns + slope_ns * point.size * point.length for point in found]
    else:
        base_ns, slopes = _common(found)
        slope_ns = sum(slopes.values()) / len(slopes)
        expected = [base_ns + slopes[point.row] * point.size for point in found]
    errors = [abs(want - point.took_ns) / point.took_ns for want, point in zip(expected, found, strict=True)]
    return Fit(base_ns, slope_ns, median(errors), max(errors), len(found))


def _line(pairs: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """a, b >= 0 of y = a + b * x. If all x are alike: through the origin."""
    s11, s1x, sxx, s1y, sxy = _sums(pairs)
    determinant = s11 * sxx - s1x * s1x
    if determinant <= SINGULAR * s11 * sxx:
        return 0.0, sxy / sxx
    a, b = (sxx * s1y - s1x * sxy) / determinant, (s11 * sxy - s1x * s1y) / determinant
    if a < 0:
        return 0.0, sxy / sxx
    return (s1y / s11, 0.0) if b < 0 else (a, b)


def _common(points: Sequence[Point]) -> tuple[float, dict[int, float]]:
    """a >= 0 common to all rows and each row's own b >= 0, of y = a + b * size; each b is solved for and put in."""
    rows: dict[int, list[tuple[float, int]]] = {}
    for point in points:
        rows.setdefault(point.row, []).append((point.size, point.took_ns))
    sums = {row: _sums(pairs) for row, pairs in rows.items()}
    above = below = weight = 0.0
    for s11, s1x, sxx, s1y, sxy in sums.values():
        above += s1y - s1x * sxy / sxx
        below += s11 - s1x * s1x / sxx
        weight += s11
    a = above / below if below > SINGULAR * weight else 0.0
    a = max(0.0, min(a, *(sxy / s1x for _, s1x, _, _, sxy in sums.values())))
    return a, {row: max(0.0, sxy - a * s1x) / sxx for row, (_, s1x, sxx, _, sxy) in sums.items()}


def _sums(pairs: Iterable[tuple[float, int]]) -> tuple[float, float, float, float, float]:
    """Sums of 1, x, x^2, y, x*y, each weighted by 1/y^2: an error of 1 % counts alike in a short and a long batch."""
    s11 = s1x = sxx = s1y = sxy = 0.0
    for x, y in pairs:
        weight = 1.0 / (y * y)
        s11 += weight
        s1x += weight * x
        sxx += weight * x * x
        s1y += weight * y
        sxy += weight * x * y
    return s11, s1x, sxx, s1y, sxy
