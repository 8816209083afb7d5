"""From measured runs to coefficients: the profile of the GPU type, that of each model, and their fits."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL, INTERFERENCE_MODELS
from horologe_planning.interference.coefficients_file import CoefficientsFile
from horologe_planning.interference.fitting import GpuFit, contention_slope, fit_gpu, fit_model
from horologe_planning.interference.model_measurements import (
    CacheContentionRun,
    CopiesRun,
    GpuProfile,
    ModelProfile,
    PairRun,
    ProfileError,
    SoloRun,
)
from horologe_planning.interference.pair_fitting import fit_pairs, pair_arrays, predict_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.interference.coefficients import ModelCoefficients
    from horologe_common.interference.measured_runs import (
        MeasuredModel,
        MeasuredRun,
        MeasuredTimes,
        ShareLoad,
    )
    from horologe_planning.interference.coefficients_file import MeasuredRuns

NO_CAP_W = 1.0
"""Power cap of a device without a power sensor: no model needs power there."""
NO_POWER = {"alpha_power": 0.0, "beta_power": 0.0, "frequency_slope": 0.0}


class FitOptions(NamedTuple):
    """Name and price of the GPU type, and coefficients that are assumed instead of fitted."""

    name: str
    price_per_hour: float = 1.0
    share_unit_percent: float = 2.5
    interference_model: str = DEFAULT_INTERFERENCE_MODEL
    assumed: Mapping[str, float] = {}


class FittedMeasurements(NamedTuple):
    """Coefficients with their deviations, and the error of the predicted latency of each load of each pair."""

    content: CoefficientsFile
    pair_errors: dict[str, list[float]]
    """Model -> predicted over measured latency, minus 1."""


def fit_measurements(measurements: MeasuredRuns, options: FitOptions) -> FittedMeasurements:
    """Return the coefficients of the GPU type and of every model.

    Raises ProfileError that names a coefficient that the runs do not determine and the missing run, or one that they
    put outside its range.
    """
    fixed, assumed = dict(options.assumed), dict.fromkeys(options.assumed, "as demanded")
    if not measurements.device.max_power_w:
        fixed |= NO_POWER
        assumed |= dict.fromkeys(NO_POWER, "the device has no power sensor")
    runs = measurements.runs
    gpu_fit = fit_gpu(gpu_profile(measurements, options), fixed)
    models, deviations = {}, {options.name: gpu_fit.deviations}
    for measured in measurements.models:
        profile, of_model = model_profile(measurements, measured.model), dict(fixed)
        if "alpha_cache" not in fixed and contention_slope(profile, gpu_fit.coefficients).value < 0:
            of_model["alpha_cache"] = 0.0
            assumed[f"{profile.model}: alpha_cache"] = "0: its batches were not slower beside a copy"
        fit = fit_model(profile, gpu_fit.coefficients, row_term=True, fixed=of_model)
        models[profile.model] = fit.coefficients
        deviations[profile.model] = fit.deviations
    gpu_fit, errors = _fit_pairs(runs, gpu_fit, models, options, fixed)
    deviations[options.name] = gpu_fit.deviations
    models = {name: _with_errors(model, runs, errors.get(name, [])) for name, model in models.items()}
    sources = ", ".join(sorted({model.cache_source for model in measurements.models}))
    origin = msgspec.structs.replace(measurements.origin, runs=len(runs), cache_source=sources)
    content = CoefficientsFile(
        gpu_fit.coefficients, tuple(models.values()), options.interference_model, _finite(deviations), assumed, origin
    )
    try:
        content.validate()
    except ValueError as error:
        raise ProfileError(f"{error}: the runs contradict one another. Did another program use the device?") from error
    return FittedMeasurements(content, errors)


def _fit_pairs(
    runs: Sequence[MeasuredRun],
    gpu_fit: GpuFit,
    models: Mapping[str, ModelCoefficients],
    options: FitOptions,
    fixed: Mapping[str, float],
) -> tuple[GpuFit, dict[str, list[float]]]:
    """Return the coefficients of the GPU type that fit the runs of different models, and the errors by model."""
    errors: dict[str, list[float]] = {}
    pairs = [_pair(run) for run in runs if len({load.model for load in run.loads}) == 2]
    if not pairs:
        return gpu_fit, errors
    arrays, interference = pair_arrays(pairs, models), INTERFERENCE_MODELS[options.interference_model]
    fit = fit_pairs(interference, gpu_fit.coefficients, arrays, fixed)
    if kept := {name for name in fit.deviations if _is_better(gpu_fit, fit, name)}:
        fit = fit_pairs(interference, gpu_fit.coefficients, arrays, {*fixed, *kept})
    relative = predict_pairs(interference, fit.coefficients, arrays) / arrays.latency_ms - 1
    for pair, row in zip(pairs, relative.tolist(), strict=True):
        for name, error in zip(pair.models, row, strict=True):
            errors.setdefault(name, []).append(error)
    return GpuFit(fit.coefficients, gpu_fit.deviations | fit.deviations), errors


def _is_better(copies: GpuFit, pairs: GpuFit, name: str) -> bool:
    """Return whether the runs of copies determine a coefficient better than the pairs, which do not contradict them."""
    deviation = pairs.deviations[name]
    near = abs(getattr(copies.coefficients, name) - getattr(pairs.coefficients, name)) <= 2 * deviation
    return near and copies.deviations.get(name, float("inf")) < deviation


def _with_errors(model: ModelCoefficients, runs: Sequence[MeasuredRun], errors: Sequence[float]) -> ModelCoefficients:
    """Return the coefficients with the jitter of the batches, and the larger of the errors alone and in pairs."""
    jitter = _mean_square([times.deviation_ms / times.gpu_ms for _, times in _alone(runs, model.model)])
    error = max(model.relative_error, _mean_square(errors or [0.0]))
    return msgspec.structs.replace(model, jitter=jitter, relative_error=error)


def gpu_profile(measurements: MeasuredRuns, options: FitOptions) -> GpuProfile:
    """Return the profile of the GPU type, from the runs of one to several copies of a model at one share.

    The highest frequency of all runs is the maximum: a GPU may stay below that of its data sheet.
    """
    device, runs = measurements.device, measurements.runs
    frequency = max((run.frequency_mhz for run in runs), default=device.max_frequency_mhz)
    copies = []
    for run in _copies(runs):
        delays = [times.scheduling_ms / times.kernels for times in run.times]
        copies.append(CopiesRun(len(run.loads), run.power_w, run.frequency_mhz, float(np.mean(delays))))
    return GpuProfile(
        options.name,
        device.max_power_w or NO_CAP_W,
        frequency,
        device.idle_power_w,
        device.pcie_bytes_per_ms,
        tuple(copies),
        options.share_unit_percent,
        options.price_per_hour,
    )


def model_profile(measurements: MeasuredRuns, name: str) -> ModelProfile:
    """Return the profile of a model. Raises ProfileError if it was not measured."""
    model = next((model for model in measurements.models if model.model == name), None)
    if model is None or not (alone := _alone(measurements.runs, name)):
        raise ProfileError(f"{name}: k1 to k6: not determined, missing its runs alone")
    solo = tuple(
        SoloRun(
            run.loads[0].batch,
            run.loads[0].share_percent,
            times.gpu_ms,
            run.power_w,
            run.frequency_mhz,
            _cache_percent(model, run.loads[0].batch, times),
        )
        for run, times in alone
    )
    scheduling_ms = min(times.scheduling_ms for _, times in alone)
    kernels, contention = alone[0][1].kernels, _contention(measurements.runs, model)
    return ModelProfile(name, kernels, scheduling_ms, model.load_bytes, model.feedback_bytes, solo, contention)


def _alone(runs: Sequence[MeasuredRun], model: str) -> list[tuple[MeasuredRun, MeasuredTimes]]:
    """Return the runs of one copy of a model, with its times."""
    return [(run, run.times[0]) for run in runs if len(run.loads) == 1 and run.loads[0].model == model]


def _copies(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs of equal loads, of the load that ran in most copies, by number of copies."""
    equal = [run for run in runs if len(set(run.loads)) == 1]
    if not equal:
        return []
    load = max(equal, key=lambda run: len(run.loads)).loads[0]
    return list({len(run.loads): run for run in equal if run.loads[0] == load}.values())


def _contention(runs: Sequence[MeasuredRun], model: MeasuredModel) -> tuple[CacheContentionRun, ...]:
    """Return the runs of a model beside copies of itself, of each load that also ran alone."""
    alone: dict[ShareLoad, MeasuredTimes] = {run.loads[0]: times for run, times in _alone(runs, model.model)}
    contention = []
    for run in runs:
        load, copies = run.loads[0], len(run.loads)
        if copies > 1 and load in alone and set(run.loads) == {load}:
            before = alone[load]
            contention += [
                CacheContentionRun(
                    before.gpu_ms - before.scheduling_ms,
                    times.gpu_ms - times.scheduling_ms,
                    run.frequency_mhz,
                    (copies - 1) * _cache_percent(model, load.batch, before),
                )
                for times in run.times
            ]
    return tuple(contention)


def _cache_percent(model: MeasuredModel, batch: int, times: MeasuredTimes) -> float:
    """Return the L2 utilisation of a run alone."""
    counted = model.cache_percent_ms.get(batch)
    return times.cache_percent if counted is None else counted / (times.gpu_ms - times.scheduling_ms)


def _pair(run: MeasuredRun) -> PairRun:
    (first, second), (one, other) = run.loads, run.times
    latency = tuple(times.load_ms + times.gpu_ms + times.feedback_ms for times in (one, other))
    return PairRun(
        (first.model, second.model),
        (first.batch, second.batch),
        (first.share_percent, second.share_percent),
        (latency[0], latency[1]),
    )


def _mean_square(values: Sequence[float]) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def _finite(deviations: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Replace NaN, which JSON does not have, by None."""
    return {
        owner: {name: value if isfinite(value) else None for name, value in values.items()}
        for owner, values in deviations.items()
    }
