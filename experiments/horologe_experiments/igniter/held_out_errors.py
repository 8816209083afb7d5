"""Prediction errors on pairs of models that were not fitted: the split is by pair of models, not by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_experiments.igniter.igniter_data import pairs, utilisation
from horologe_planning.interference.pair_fitting import (
    PairArrays,
    fit_linear_slowdown,
    fit_pairs,
    linear_slowdown,
    pair_arrays,
    predict_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients


def model_errors(
    name: str, models: Mapping[str, ModelCoefficients], gpu: GpuCoefficients, *, from_solo: bool
) -> NDArray[Any]:
    """Return the relative error of each side of each pair, with the GPU's coefficients fitted on other pairs of models.

    `from_solo`: predictions are scaled to the measured latency alone, which gpu-lets+ uses too.
    """
    runs, solo = pairs()
    arrays, groups = pair_arrays(runs, models), pair_names()
    model, errors = INTERFERENCE_MODELS[name], np.zeros_like(solo)
    for group in np.unique(groups):
        test = groups == group
        kept, held = (
            PairArrays(arrays.coefficients[:, rows], *(values[rows] for values in arrays[1:])) for rows in (~test, test)
        )
        fit = fit_pairs(model, gpu, kept, solo[~test] if from_solo else None).coefficients
        predicted = predict_pairs(model, fit, held, solo[test] if from_solo else None)
        errors[test] = predicted / held.latency_ms - 1
    return np.asarray(errors)


def gpu_lets_errors() -> NDArray[Any]:
    """Return the same errors for the linear model of gpu-lets+, fitted on the same pairs."""
    runs, solo = pairs()
    latency = np.array([run.latency_ms for run in runs])
    groups = np.repeat(pair_names()[:, None], 2, axis=1).ravel()
    use, slowdown = utilisation(runs), (latency / solo - 1).ravel()
    errors = np.zeros(len(slowdown))
    for group in np.unique(groups):
        test = groups == group
        predicted = linear_slowdown(fit_linear_slowdown(use[~test], slowdown[~test]), use[test])
        errors[test] = (1 + predicted) / (1 + slowdown[test]) - 1
    return errors.reshape(solo.shape)


def pair_names() -> NDArray[Any]:
    """Return the pair of models of each run, as `alexnet+ssd`."""
    return np.array(["+".join(run.models) for run in pairs()[0]])
