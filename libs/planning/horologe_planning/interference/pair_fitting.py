"""Fit a GPU type's contention coefficients from measured pairs of different models.

Copies of one model do not determine how different models disturb each other. On the V100's pairs, the scheduling delay
per kernel is 9 times the delay that copies of VGG-19 show (iGniter's data; `v100.py` holds both).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from horologe_common.interference.prediction import Array, predict_shares, stack_coefficients
from horologe_planning.interference.fitting import GpuFit
from horologe_planning.interference.model_measurements import ProfileError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from scipy.optimize import OptimizeResult

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_common.interference.prediction import InterferenceModel
    from horologe_planning.interference.model_measurements import PairRun

_STEP = {"scheduling_offset_ms": 0.001, "cache_scale": 1.0, "frequency_slope": 1.0}
"""Typical size of each fitted coefficient."""


class PairArrays(NamedTuple):
    """Pairs as arrays with an axis of pairs and an axis of two slots."""

    coefficients: Array
    batch: Array
    share: Array
    latency_ms: Array


def pair_arrays(pairs: Sequence[PairRun], models: Mapping[str, ModelCoefficients]) -> PairArrays:
    """Return the pairs as arrays. Raises ProfileError for an unknown model or an absurd run."""
    for pair in pairs:
        for model in pair.models:
            if model not in models:
                raise ProfileError(
                    f"pair {pair.models}: got model {model!r}, wanted one of {', '.join(sorted(models))}"
                )
        figures = (*pair.batch, *pair.share_percent, *pair.latency_ms)
        if not all(np.isfinite(figures)) or min(figures) <= 0 or sum(pair.share_percent) > 100:
            raise ProfileError(f"pair {pair.models}: got {figures}, wanted positive numbers and shares of at most 100%")
    names = sorted(models)
    index = np.array([[names.index(model) for model in pair.models] for pair in pairs], dtype=np.intp)
    coefficients = stack_coefficients([models[name] for name in names])[:, index]
    batch, share, latency = (
        np.array([getattr(pair, field) for pair in pairs], dtype=np.float64)
        for field in ("batch", "share_percent", "latency_ms")
    )
    return PairArrays(coefficients, batch, share, latency)


def fit_pairs(
    model: InterferenceModel,
    gpu: GpuCoefficients,
    arrays: PairArrays,
    fixed: Collection[str] = (),
) -> GpuFit:
    """Return `gpu` with beta_sch, cache_scale and alpha_f that minimise the relative error of the pairs.

    alpha_sch stays: pairs cannot separate it from beta_sch (Eq. 6 with two workloads). So do the coefficients named in
    `fixed`, and those that the pairs do not determine: they have no deviation.
    """
    free = [name for name in _STEP if name not in fixed]
    if not free:
        return GpuFit(gpu, {})

    def residuals(values: Array) -> Array:
        changed = msgspec.structs.replace(gpu, **dict(zip(free, values.tolist(), strict=True)))
        predicted = predict_pairs(model, changed, arrays)
        return np.asarray((predicted / arrays.latency_ms - 1).ravel())

    limits = _limits(gpu)
    low, high = np.array([limits[name] for name in free]).T
    steps, start = np.array([_STEP[name] for name in free]), np.array([getattr(gpu, name) for name in free])
    result = least_squares(residuals, np.clip(start, low, high), x_scale=steps, bounds=(low, high))
    strength = np.linalg.norm(result.jac, axis=0) * steps
    for name, effect in zip(free, strength, strict=True):
        if effect < 1e-6:
            return fit_pairs(model, gpu, arrays, {*fixed, name})
    fitted = dict(zip(free, result.x.tolist(), strict=True))
    deviations = dict(zip(free, _standard_deviations(result).tolist(), strict=True))
    return GpuFit(msgspec.structs.replace(gpu, **fitted), deviations)


def _standard_deviations(result: OptimizeResult) -> Array:
    """Return the standard deviation of each fitted value, from the covariance of a linear least-squares fit."""
    left = max(result.fun.size - result.x.size, 1)
    covariance = np.linalg.pinv(result.jac.T @ result.jac) * 2 * result.cost / left
    return np.asarray(np.sqrt(np.diag(covariance)))


def _limits(gpu: GpuCoefficients) -> dict[str, tuple[float, float]]:
    """Return the least and largest value of each fitted coefficient. No delay of two workloads is negative (Eq. 6)."""
    offset = (-2 * gpu.scheduling_slope_ms, np.inf)
    return {"scheduling_offset_ms": offset, "cache_scale": (0.0, np.inf), "frequency_slope": (-np.inf, 0.0)}


def predict_pairs(model: InterferenceModel, gpu: GpuCoefficients, arrays: PairArrays) -> Array:
    """Return the predicted latency in ms of each slot of each pair."""
    return predict_shares(model, gpu, arrays.coefficients, arrays.batch, arrays.share).latency_ms
