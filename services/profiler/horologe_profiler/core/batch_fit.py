"""Least-squares fit of a batch's time l_B = c0 + c1 * k * l (ORLOJ, eq. 3), with relative errors.

k is the batch size, l the length of its rows. If a row's time does not depend on a length (all dimensions are fixed, or
the content decides), l is unknown. It is then equal for all batches of one repeated row, and c1 is 1: c0 is the
intercept that all rows share, and a row alone takes c0 + l.

`fit_scales` replaces k by a measured scale for each batch size.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta

from horologe_common.clock import s
from horologe_common.core.message_checks import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_SCALE = 2.0
"""Bound of a scale, in multiples of k: a batch that takes longer was disturbed, or its row was too short."""
DISTURBED = 0.9
"""A batch that took less than this part of its row alone shows that the row was disturbed."""
OUTLIER = 0.04
"""Largest square of a relative error that counts: a measurement that is off by more than 20% was disturbed."""
LINEAR_WEIGHT = 1 / 9
"""Weight of the relative distance of a scale from k, beside that of a measured from a predicted time: as if scales were
k within 15%, and times within 5%. Few batches alone would not determine both the base and the scales."""
BASES = 8
"""Steps between the values of the base that are tried. With 16 the predictions are no better."""
SINGULAR = 1e-9
"""Least determinant, relative to the weight of the points. Below it the points do not determine both regressors."""


TIME_MAX_NS, LENGTH_MAX, SIZE_MAX = s(86_400), 1 << 40, 1 << 20
Length = Annotated[int, Meta(ge=0, le=LENGTH_MAX)]
TookNs = Annotated[int, Meta(ge=1, le=TIME_MAX_NS)]


class Point(NamedTuple):
    """A batch of `size` rows of `length` (0: unknown) took `took_ns`. Points of one repeated `row` share their l."""

    size: Annotated[int, Meta(ge=1, le=SIZE_MAX)]
    length: Length
    took_ns: TookNs
    row: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0


class Fit(NamedTuple):
    """Result of a fit. `base_ns` is c0. `slope_ns` is c1, or, if length is unknown, the mean l of a row.

    The errors are relative, |fitted - measured| / measured: their median and maximum.
    """

    base_ns: float
    slope_ns: float
    median_error: float
    max_error: float
    points: int


class BatchScales(NamedTuple):
    """A batch of k takes `base_ns` + scale * (t - `base_ns`), where its longest row takes t alone.

    `scales`: (k, scale) by measured batch size, ascending. The smallest size has 1.
    """

    base_ns: float
    scales: tuple[tuple[int, float], ...] = ()


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


def fit_scales(points: Iterable[Point], linear_ns: float, most_ns: float) -> BatchScales:
    """Fit a base between 0 and `most_ns`, and scales, to batches of repeated rows. Without any, return `linear_ns`.

    `linear_ns`: c0 of eq. 3, which fits best if each scale is k. Where a device runs several rows at once, the scales
    are smaller, and by eq. 3 no batch would seem to pay.
    """
    rows: dict[int, dict[int, int]] = {}
    for point in points:
        if point.took_ns > 0:
            rows.setdefault(point.row, {})[point.size] = point.took_ns
    smallest = min((size for times in rows.values() for size in times), default=0)
    pairs = [
        (size, times[smallest], took_ns)
        for times in rows.values()
        if smallest in times
        for size, took_ns in times.items()
        if size > smallest and took_ns > DISTURBED * times[smallest]
    ]
    if not pairs:
        return BatchScales(linear_ns)
    bases_ns = [linear_ns, *(most_ns * step / BASES for step in range(BASES + 1))]
    fits = [(base_ns, _scales_with(base_ns, smallest, pairs)) for base_ns in bases_ns]
    base_ns, scales = min(fits, key=lambda fitted: _misfit(fitted[0], fitted[1], smallest, pairs))
    return BatchScales(base_ns, ((smallest, 1.0), *scales.items()))


def _scales_with(base_ns: float, smallest: int, pairs: Sequence[tuple[int, int, int]]) -> dict[int, float]:
    """Return the scale by size, given the base. `pairs`: (size, time of the row alone, time of the batch).

    The scale of a size is the median of its batches, weighed by what the row adds to the base: one batch that the
    machine has delayed does not move it. A larger batch never takes less.
    """
    ratios: dict[int, list[tuple[float, float]]] = {}
    for size, alone_ns, took_ns in sorted(pairs):
        added_ns = max(alone_ns - base_ns, SINGULAR * alone_ns)
        ratios.setdefault(size, []).append((max(0.0, took_ns - base_ns) / added_ns, added_ns / alone_ns))
    medians = [min(_weighted_median(ratios[size]), size / smallest * MOST_SCALE) for size in ratios]
    return dict(zip(ratios, accumulate([max(1.0, scale) for scale in medians], max), strict=True))


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    ordered, half = sorted(values), sum(weight for _, weight in values) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return ordered[-1][0]


def _misfit(base_ns: float, scales: dict[int, float], smallest: int, pairs: Sequence[tuple[int, int, int]]) -> float:
    """Return the sum of squared relative errors, and of the scales' distances from k."""
    errors = [(base_ns + scales[size] * (alone_ns - base_ns)) / took_ns - 1 for size, alone_ns, took_ns in pairs]
    return sum(min(error * error, OUTLIER) for error in errors) + LINEAR_WEIGHT * sum(
        (scale * smallest / size - 1) ** 2 for size, scale in scales.items()
    )


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
