"""Fit the coefficients of a GPU type and of a model, with the uncertainty of each (iGniter section 3.1).

A profile that does not determine a coefficient raises ProfileError. The message names the coefficient and the run that
is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
from horologe_common.interference.prediction import MS_PER_S, Array
from horologe_tuner.core.interference.measurements import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_tuner.core.interference.measurements import GpuProfile, ModelProfile, SoloRun

FULL_SPEED = 0.999
"""Part of the maximum frequency above which a run counts as not throttled. NVML averages vary by less (V100)."""
_ACTIVE = ("k1", "k2", "k3", "k4", "k5", "k6")


class ModelFit(NamedTuple):
    """Coefficients of a model, their standard deviations and the covariance of those of Eq. 11.

    A deviation is NaN where the runs only just determine the coefficient: nothing is left over to measure the error.
    """

    coefficients: ModelCoefficients
    deviations: dict[str, float]
    active_covariance: Array
    """Of k1 to k5, or k1 to k6 with `row_term`, in this order."""


class GpuFit(NamedTuple):
    """Coefficients of a GPU type and their standard deviations."""

    coefficients: GpuCoefficients
    deviations: dict[str, float]


def fit_gpu(profile: GpuProfile) -> GpuFit:
    """Return the coefficients of a GPU type from runs of one to five copies of a model (Eq. 6, Eq. 9)."""
    profile.validate()
    (slope, offset), scheduling = _fit_scheduling(profile)
    frequency_slope, deviation = _fit_frequency(profile)
    coefficients = GpuCoefficients(
        profile.name, profile.max_power_w, profile.max_frequency_mhz, profile.idle_power_w,
        profile.pcie_bytes_per_ms, frequency_slope, slope, offset, profile.price_per_hour, profile.share_unit_percent,
    )  # fmt: skip
    names = ("scheduling_slope_ms", "scheduling_offset_ms")
    return GpuFit(coefficients, {"frequency_slope": deviation, **dict(zip(names, scheduling, strict=True))})


def fit_model(profile: ModelProfile, gpu: GpuCoefficients, *, row_term: bool = False) -> ModelFit:
    """Return the coefficients of a model on a GPU type.

    By default, k1 to k5 minimise the squared error in ms, as in the paper, and k6 is 0. With `row_term`, k1 to k6
    minimise the squared relative error, so that short runs count as much as long ones.
    """
    profile.validate()
    for run in profile.solo:
        if run.frequency_mhz > 1.01 * gpu.max_frequency_mhz:
            place = f"{profile.model}: run at batch {run.batch}, share {run.share_percent:g}%"
            wanted = f"at most the maximum of {gpu.max_frequency_mhz:g}"
            raise ProfileError(f"{place}: frequency_mhz: got {run.frequency_mhz:g}, wanted {wanted}")
    active, covariance, relative_error = _fit_active(profile, gpu, row_term)
    power, power_deviation = _fit_power(profile, gpu)
    cache, cache_deviation = _fit_cache(profile)
    alpha_cache, alpha_deviation = _fit_contention(profile, gpu)
    deviations = dict(zip(_ACTIVE, np.sqrt(np.diag(covariance)), strict=False))
    deviations |= {"alpha_cache": alpha_deviation, "alpha_power": power_deviation[0], "beta_power": power_deviation[1],
                   "alpha_cacheutil": cache_deviation[0], "beta_cacheutil": cache_deviation[1]}  # fmt: skip
    coefficients = ModelCoefficients(
        model=profile.model, **dict(zip(_ACTIVE, map(float, active), strict=False)), alpha_cache=alpha_cache,
        alpha_power=power[0], beta_power=power[1], alpha_cacheutil=cache[0], beta_cacheutil=cache[1],
        kernels=profile.kernels, scheduling_delay_ms=profile.scheduling_delay_ms, load_bytes=profile.load_bytes,
        feedback_bytes=profile.feedback_bytes, relative_error=relative_error,
    )  # fmt: skip
    return ModelFit(coefficients, {name: float(value) for name, value in deviations.items()}, covariance)


def active_time(active: Sequence[float] | Array, batch: Array, share: Array) -> Array:
    """Return k_act in ms (Eq. 11) for k1 to k5 or k1 to k6."""
    k1, k2, k3, k4, k5, *k6 = active
    return np.asarray((k1 * batch**2 + k2 * batch + k3) / (share + k4) + k5 + sum(k6) * batch)


def active_deviation(fit: ModelFit, batch: Array, share: Array) -> Array:
    """Return the standard deviation of the predicted k_act in ms, from the covariance of the fit (delta method)."""
    coefficients = fit.coefficients
    active = np.array([getattr(coefficients, name) for name in _ACTIVE[: len(fit.active_covariance)]])
    batch, share = np.broadcast_arrays(np.asarray(batch, float), np.asarray(share, float))
    steps = 1e-6 * np.maximum(np.abs(active), 1e-3)
    columns = []
    for place, step in enumerate(steps):
        moved = np.eye(len(active))[place] * step
        difference = active_time(active + moved, batch, share) - active_time(active - moved, batch, share)
        columns.append(difference / (2 * step))
    gradient = np.stack(columns, axis=-1)
    variance = np.einsum("...i,ij,...j->...", gradient, fit.active_covariance, gradient)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def _fit_active(profile: ModelProfile, gpu: GpuCoefficients, row_term: bool) -> tuple[Array, Array, float]:
    """Return k1 to k5 (or k6), their covariance and the relative standard deviation of the runs (Eq. 11)."""
    runs = profile.solo
    count = 6 if row_term else 5
    _require_distinct(profile.model, "k1, k2 and k3", "batch size", (run.batch for run in runs))
    _require_distinct(profile.model, "k4 and k5", "share", (run.share_percent for run in runs))
    batch, share = (np.array([getattr(run, name) for run in runs], float) for name in ("batch", "share_percent"))
    measured = np.array([run.gpu_ms * _frequency_ratio(run, gpu) for run in runs]) - profile.scheduling_delay_ms
    if len(runs) <= count:
        raise ProfileError(
            f"{profile.model}: k1 to k{count}: {len(runs)} runs alone do not determine them,"
            f" wanted at least {count + 1}: three batch sizes at three shares"
        )
    weight = 1 / measured if row_term else np.ones_like(measured)
    largest = np.argmax(batch * share)
    start = np.zeros(count)
    start[1] = measured[largest] * share[largest] / batch[largest]
    start[4] = 0.1 * measured.min()
    result = least_squares(
        lambda active: weight * (active_time(active, batch, share) - measured), start, method="lm",
        x_scale=np.array([0.01, 1, 1, 0.1, 1, 0.01])[:count], xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=100_000,
    )  # fmt: skip
    scaled = result.jac / np.linalg.norm(result.jac, axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-9) < count:
        raise ProfileError(
            f"{profile.model}: k1 to k{count}: the runs do not determine them, wanted every batch size at every share"
        )
    covariance = np.linalg.inv(result.jac.T @ result.jac) * 2 * result.cost / (len(runs) - count)
    relative = (active_time(result.x, batch, share) - measured) / measured
    return result.x, covariance, float(np.sqrt(np.sum(relative**2) / (len(runs) - count)))


def _fit_power(profile: ModelProfile, gpu: GpuCoefficients) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return alpha_power and beta_power with their deviations, from the runs that the power cap did not slow."""
    runs = [run for run in profile.solo if _frequency_ratio(run, gpu) == 1.0]
    ability = [_ability(run, profile) for run in runs]
    return _fit_line(
        ability, [run.power_w - gpu.idle_power_w for run in runs], f"{profile.model}: alpha_power and beta_power",
        "a second run alone below the power cap, at another batch size or share",
    )  # fmt: skip


def _fit_cache(profile: ModelProfile) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return alpha_cacheutil and beta_cacheutil with their deviations."""
    runs = [(_ability(run, profile), run.cache_percent) for run in profile.solo if run.cache_percent is not None]
    return _fit_line(
        [ability for ability, _ in runs], [cache for _, cache in runs],
        f"{profile.model}: alpha_cacheutil and beta_cacheutil",
        "a second run alone with L2 utilisation, at another batch size or share",
    )  # fmt: skip


def _fit_contention(profile: ModelProfile, gpu: GpuCoefficients) -> tuple[float, float]:
    """Return alpha_cache (Eq. 8) with its deviation, from runs beside a copy."""
    if not profile.contention:
        raise ProfileError(f"{profile.model}: alpha_cache: not determined, missing a run beside a copy of the model")
    values = np.array([
        (run.shared_active_ms * min(run.shared_frequency_mhz / gpu.max_frequency_mhz, 1.0) / run.alone_active_ms - 1)
        / run.cache_percent
        for run in profile.contention
    ])  # fmt: skip
    mean = float(values.mean())
    if mean < 0:
        raise ProfileError(f"{profile.model}: alpha_cache: got {mean:g}, wanted a run beside a copy that is not faster")
    return mean, float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _fit_scheduling(profile: GpuProfile) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return alpha_sch and beta_sch with their deviations (Eq. 6), from the delay above that of one copy."""
    delays = {
        run.copies: run.scheduling_ms_per_kernel * run.frequency_mhz / profile.max_frequency_mhz
        for run in profile.runs
    }  # fmt: skip
    name = f"{profile.name}: alpha_sch and beta_sch"
    if 1 not in delays:
        raise ProfileError(f"{name}: not determined, missing a run of one copy")
    several = sorted(copies for copies in delays if copies > 1)
    return _fit_line(several, [delays[copies] - delays[1] for copies in several], name, "runs of two and three copies")


def _fit_frequency(profile: GpuProfile) -> tuple[float, float]:
    """Return alpha_f with its deviation (Eq. 9).

    Measured power stops at the cap. The demand of more copies continues the line of the runs at full frequency.
    """
    runs = sorted(profile.runs, key=lambda run: run.copies)
    full = [run for run in runs if run.frequency_mhz >= FULL_SPEED * profile.max_frequency_mhz]
    throttled = [run for run in runs if run.frequency_mhz < FULL_SPEED * profile.max_frequency_mhz]
    if len(full) < 2 or not throttled:
        missing = "two runs below the power cap" if len(full) < 2 else "a run of enough copies to exceed the power cap"
        raise ProfileError(f"{profile.name}: alpha_f: not determined, missing {missing}")
    per_copy = (full[-1].power_w - full[0].power_w) / (full[-1].copies - full[0].copies)
    excess = np.array([
        full[-1].power_w + per_copy * (run.copies - full[-1].copies) - profile.max_power_w for run in throttled
    ])  # fmt: skip
    if not (excess**2).sum():
        raise ProfileError(f"{profile.name}: alpha_f: not determined, missing a run with a demand above the power cap")
    drop = np.array([run.frequency_mhz - profile.max_frequency_mhz for run in throttled])
    slope = float(excess @ drop / (excess @ excess))
    left = len(throttled) - 1
    error = float(((drop - slope * excess) ** 2).sum())
    return slope, float(np.sqrt(error / left / (excess @ excess))) if left else float("nan")


def _fit_line(
    x: Sequence[float], y: Sequence[float], name: str, missing: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return slope and intercept of the least-squares line, and the standard deviation of each."""
    if len(set(x)) < 2:
        raise ProfileError(f"{name}: not determined, missing {missing}")
    design = np.stack([np.asarray(x, float), np.ones(len(x))], axis=1)
    (slope, intercept), *_ = np.linalg.lstsq(design, np.asarray(y, float), rcond=None)
    left = len(x) - 2
    variance = float(((design @ (slope, intercept) - y) ** 2).sum()) / left if left else float("nan")
    deviations = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * variance)
    return (float(slope), float(intercept)), (float(deviations[0]), float(deviations[1]))


def _frequency_ratio(run: SoloRun, gpu: GpuCoefficients) -> float:
    """Return f / F of a run, 1 where it was not throttled."""
    ratio = run.frequency_mhz / gpu.max_frequency_mhz
    return ratio if ratio < FULL_SPEED else 1.0


def _ability(run: SoloRun, profile: ModelProfile) -> float:
    """Return the measured processing ability in rows per second."""
    return MS_PER_S * run.batch / (run.gpu_ms - profile.scheduling_delay_ms)


def _require_distinct(model: str, coefficients: str, what: str, values: Iterable[float]) -> None:
    """Raise ProfileError unless there are three different values."""
    distinct = sorted(set(values))
    if len(distinct) < 3:
        measured = ", ".join(f"{value:g}" for value in distinct) or "none"
        raise ProfileError(
            f"{model}: {coefficients}: not determined, missing runs at a third {what} (measured: {measured})"
        )
