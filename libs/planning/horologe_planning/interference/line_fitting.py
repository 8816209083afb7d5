"""Fit lines of which one coefficient or both may be fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.interference.prediction import Array
from horologe_planning.interference.model_measurements import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAN = float("nan")
_SYMBOLS = {"scheduling_slope_ms": "alpha_sch", "scheduling_offset_ms": "beta_sch"}
"""Names of coefficients in the paper, where they differ."""


class Fitted(NamedTuple):
    """A coefficient and its standard deviation."""

    value: float
    deviation: float


def fit_slope(x: Array, y: Array) -> Fitted:
    """Return the slope of the least-squares line through the origin."""
    slope, left = float(x @ y / (x @ x)), len(x) - 1
    error = float(((y - slope * x) ** 2).sum())
    return Fitted(slope, float(np.sqrt(error / left / (x @ x))) if left else NAN)


def fit_line(
    x: Sequence[float],
    y: Sequence[float],
    owner: str,
    names: tuple[str, str],
    missing: str,
    fixed: Mapping[str, float],
) -> tuple[Fitted, Fitted]:
    """Return slope and intercept of the least-squares line, which are the coefficients `names` of `owner`.

    Raises ProfileError that names the coefficients and the missing runs, if there are too few different `x`.
    """
    free = [name not in fixed for name in names]
    line = np.array([fixed.get(name, 0.0) for name in names])
    deviations = np.zeros(2)
    if len(set(x)) < sum(free):
        symbols = " and ".join(_SYMBOLS.get(name, name) for name, wanted in zip(names, free, strict=True) if wanted)
        raise ProfileError(f"{owner}: {symbols}: not determined, missing {missing}")
    if any(free):
        design = np.stack([np.asarray(x, float), np.ones(len(x))], axis=1)
        rest = np.asarray(y, float) - design @ line
        chosen = design[:, free]
        line[free] = np.linalg.lstsq(chosen, rest, rcond=None)[0]
        left = len(x) - sum(free)
        variance = float(((chosen @ line[free] - rest) ** 2).sum()) / left if left else NAN
        deviations[free] = np.sqrt(np.diag(np.linalg.inv(chosen.T @ chosen)) * variance)
    slope, intercept = (
        Fitted(float(value), float(deviation)) for value, deviation in zip(line, deviations, strict=True)
    )
    return slope, intercept
