"""Prediction errors on pairs of models that were not fitted: the split is by pair of models, not by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS, Array, run_alone
from horologe_experiments.igniter.igniter_data import pairs, utilisation
from horologe_planning.interference.pair_fitting import (
    PairArrays,
    fit_pairs,
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

    `from_solo`: predictions are scaled by the measured over the predicted latency alone, which gpu-lets+ uses too. This
    keeps the predicted interference and replaces the error of Eq. 11 by that of the measurement.
    """
    runs, solo = pairs()
    arrays, groups = pair_arrays(runs, models), pair_names()
    if from_solo:  # no coefficient that is fitted changes the latency alone
        alone = run_alone(gpu, arrays.coefficients, arrays.batch, arrays.share)
        alone_ms = alone.load_ms + alone.scheduling_ms + alone.active_ms + alone.feedback_ms
        arrays = arrays._replace(latency_ms=arrays.latency_ms * alone_ms / solo)
    model, errors = INTERFERENCE_MODELS[name], np.zeros_like(solo)
    for group in np.unique(groups):
        test = groups == group
        kept, held = (
            PairArrays(arrays.coefficients[:, rows], *(values[rows] for values in arrays[1:])) for rows in (~test, test)
        )
        fit = fit_pairs(model, gpu, kept).coefficients
        errors[test] = predict_pairs(model, fit, held) / held.latency_ms - 1
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
        errors[test] = (1 + predict_slowdown(use[~test], slowdown[~test], use[test])) / (1 + slowdown[test]) - 1
    return errors.reshape(solo.shape)


def pair_names() -> NDArray[Any]:
    """Return the pair of models of each run, as `alexnet+ssd`."""
    return np.array(["+".join(run.models) for run in pairs()[0]])


def predict_slowdown(use: Array, slowdown: Array, predicted_use: Array) -> Array:
    """Return the slowdown of other runs by gpu-lets' linear model (iGniter section 5.1 and its reference 18).

    `use`: own and neighbour's L2 utilisation, own and neighbour's DRAM utilisation, in percent, one row per run.
    `slowdown`: latency over latency alone, minus 1.
    """
    fit = np.linalg.lstsq(np.column_stack([use, np.ones(len(use))]), slowdown, rcond=None)[0]
    return np.asarray(predicted_use @ fit[:4] + fit[4])
