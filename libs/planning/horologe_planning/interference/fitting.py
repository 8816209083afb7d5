"""Fit the coefficients of a GPU type and of a model, with the uncertainty of each (iGniter section 3.1).

A profile that does not determine a coefficient raises ProfileError. The message names the coefficient and the run that
is missing. A coefficient in `fixed` is not fitted, and has no deviation.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
from horologe_common.interference.prediction import MS_PER_S, Array
from horologe_planning.interference.line_fitting import NAN, Fitted, fit_line, fit_slope
from horologe_planning.interference.model_measurements import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_planning.interference.model_measurements import CopiesRun, GpuProfile, ModelProfile, SoloRun

FULL_SPEED = 0.999
"""Part of the maximum frequency above which a run counts as not throttled. NVML averages vary by less (V100)."""
NEAR_CAP = 0.9
"""Part of the power cap below which a run counts as not throttled either: its clock is lower for another reason. The
throttled runs of the V100 have 0.96 and more."""
_ACTIVE = ("k1", "k2", "k3", "k4", "k5", "k6")


class ModelFit(NamedTuple):
    """Coefficients of a model and their standard deviations.

    A deviation is NaN where the runs only just determine the coefficient: nothing is left over to measure the error.
    """

    coefficients: ModelCoefficients
    deviations: dict[str, float]


class GpuFit(NamedTuple):
    """Coefficients of a GPU type and their standard deviations."""

    coefficients: GpuCoefficients
    deviations: dict[str, float]


def fit_gpu(profile: GpuProfile, fixed: Mapping[str, float] = MappingProxyType({})) -> GpuFit:
    """Return the coefficients of a GPU type from runs of one to five copies of a model (Eq. 6, Eq. 9)."""
    profile.validate()
    slope, offset = _fit_scheduling(profile, fixed)
    frequency = _fixed("frequency_slope", fixed) or _fit_frequency(profile)
    coefficients = GpuCoefficients(
        profile.name,
        profile.max_power_w,
        profile.max_frequency_mhz,
        profile.idle_power_w,
        profile.pcie_bytes_per_ms,
        frequency.value,
        slope.value,
        offset.value,
        profile.price_per_hour,
        profile.share_unit_percent,
        fixed.get("cache_scale", 1.0),
    )
    fitted = {"frequency_slope": frequency, "scheduling_slope_ms": slope, "scheduling_offset_ms": offset}
    return GpuFit(coefficients, _deviations(fitted, fixed))


def fit_model(
    profile: ModelProfile,
    gpu: GpuCoefficients,
    *,
    row_term: bool = False,
    fixed: Mapping[str, float] = MappingProxyType({}),
) -> ModelFit:
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
    active, relative_error = _fit_active(profile, gpu, row_term, fixed)
    fitted = dict(zip(_ACTIVE, active, strict=False))
    fitted |= dict(zip(("alpha_power", "beta_power"), _fit_power(profile, gpu, fixed), strict=True))
    fitted |= dict(zip(("alpha_cacheutil", "beta_cacheutil"), _fit_cache(profile, fixed), strict=True))
    fitted["alpha_cache"] = _fixed("alpha_cache", fixed) or _fit_contention(profile, gpu)
    coefficients = ModelCoefficients(
        model=profile.model,
        **{name: float(fit.value) for name, fit in fitted.items()},
        kernels=profile.kernels,
        scheduling_delay_ms=profile.scheduling_delay_ms,
        load_bytes=profile.load_bytes,
        feedback_bytes=profile.feedback_bytes,
        relative_error=relative_error,
    )
    return ModelFit(coefficients, _deviations(fitted, fixed))


def active_time(active: Sequence[float] | Array, batch: Array, share: Array) -> Array:
    """Return k_act in ms (Eq. 11) for k1 to k5 or k1 to k6."""
    k1, k2, k3, k4, k5, *k6 = active
    return np.asarray((k1 * batch**2 + k2 * batch + k3) / (share + k4) + k5 + sum(k6) * batch)


def _fit_active(
    profile: ModelProfile, gpu: GpuCoefficients, row_term: bool, fixed: Mapping[str, float]
) -> tuple[list[Fitted], float]:
    """Return k1 to k5 (or k6), and the relative standard deviation of the runs (Eq. 11)."""
    runs, names = profile.solo, _ACTIVE[: 6 if row_term else 5]
    free = np.array([name not in fixed for name in names])
    _require_distinct(profile.model, "batch size", ("k1", "k2", "k3"), fixed, (run.batch for run in runs))
    _require_distinct(profile.model, "share", ("k4", "k5"), fixed, (run.share_percent for run in runs), more=1)
    batch, share = (np.array([getattr(run, name) for run in runs], float) for name in ("batch", "share_percent"))
    measured = np.array([run.gpu_ms * _frequency_ratio(run, gpu) for run in runs]) - profile.scheduling_delay_ms
    count, place = int(free.sum()), f"{profile.model}: {names[0]} to {names[-1]}"
    if not count:
        raise ProfileError(f"{place}: got all of them fixed, wanted one to fit")
    if len(runs) <= count:
        wanted = f"wanted at least {count + 1}: three batch sizes at three shares"
        raise ProfileError(f"{place}: {len(runs)} runs alone do not determine them, {wanted}")
    weight = 1 / measured if row_term else np.ones_like(measured)
    largest = np.argmax(batch * share)
    active = np.zeros(len(names))
    active[1] = measured[largest] * share[largest] / batch[largest]
    active[4] = 0.1 * measured.min()
    active[~free] = [fixed[name] for name in names if name in fixed]

    def residuals(values: Array) -> Array:
        active[free] = values
        return np.asarray(weight * (active_time(active, batch, share) - measured))

    result = least_squares(
        residuals,
        active[free],
        method="lm",
        x_scale=np.array([0.01, 1, 1, 0.1, 1, 0.01])[: len(names)][free],
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        max_nfev=100_000,
    )
    active[free] = result.x
    scaled = result.jac / np.linalg.norm(result.jac, axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-9) < count:
        raise ProfileError(f"{place}: the runs do not determine them, wanted every batch size at every share")
    covariance = np.linalg.inv(result.jac.T @ result.jac) * 2 * result.cost / (len(runs) - count)
    deviations = np.zeros(len(names))
    deviations[free] = np.sqrt(np.diag(covariance))
    relative = (active_time(active, batch, share) - measured) / measured
    return list(map(Fitted, active, deviations)), float(np.sqrt(np.sum(relative**2) / (len(runs) - count)))


def _fit_power(profile: ModelProfile, gpu: GpuCoefficients, fixed: Mapping[str, float]) -> tuple[Fitted, Fitted]:
    """Return alpha_power and beta_power, from the runs that the power cap did not slow."""
    runs = [run for run in profile.solo if _frequency_ratio(run, gpu) == 1.0]
    ability = [_ability(run, profile) for run in runs]
    return fit_line(
        ability,
        [run.power_w - gpu.idle_power_w for run in runs],
        profile.model,
        ("alpha_power", "beta_power"),
        "a second run alone below the power cap, at another batch size or share",
        fixed,
    )


def _fit_cache(profile: ModelProfile, fixed: Mapping[str, float]) -> tuple[Fitted, Fitted]:
    """Return alpha_cacheutil and beta_cacheutil."""
    runs = [(_ability(run, profile), run.cache_percent) for run in profile.solo if run.cache_percent is not None]
    return fit_line(
        [ability for ability, _ in runs],
        [cache for _, cache in runs],
        profile.model,
        ("alpha_cacheutil", "beta_cacheutil"),
        "a second run alone with L2 utilisation, at another batch size or share",
        fixed,
    )


def contention_slope(profile: ModelProfile, gpu: GpuCoefficients) -> Fitted:
    """Return the growth of the active time per percent of the copies' L2 utilisation: a line through 0 (Eq. 8).

    It is negative if batches beside copies were faster. Raises ProfileError without such a run.
    """
    if not profile.contention:
        raise ProfileError(f"{profile.model}: alpha_cache: not determined, missing a run beside a copy of the model")
    cache = np.array([run.cache_percent for run in profile.contention])
    growth = np.array(
        [
            run.shared_active_ms * min(run.shared_frequency_mhz / gpu.max_frequency_mhz, 1.0) / run.alone_active_ms - 1
            for run in profile.contention
        ]
    )
    return fit_slope(cache, growth)


def _fit_contention(profile: ModelProfile, gpu: GpuCoefficients) -> Fitted:
    """Return alpha_cache (Eq. 8), from runs beside copies."""
    slope = contention_slope(profile, gpu)
    if slope.value < 0:
        got = f"got {slope.value:g}, wanted a run beside a copy that is not faster"
        raise ProfileError(f"{profile.model}: alpha_cache: {got}")
    return slope


def _fit_scheduling(profile: GpuProfile, fixed: Mapping[str, float]) -> tuple[Fitted, Fitted]:
    """Return alpha_sch and beta_sch (Eq. 6), from the delay above that of one copy."""
    delays = {
        run.copies: run.scheduling_ms_per_kernel * run.frequency_mhz / profile.max_frequency_mhz for run in profile.runs
    }
    names = ("scheduling_slope_ms", "scheduling_offset_ms")
    if 1 not in delays and not all(name in fixed for name in names):
        raise ProfileError(f"{profile.name}: alpha_sch and beta_sch: not determined, missing a run of one copy")
    several = sorted(copies for copies in delays if copies > 1)
    return fit_line(
        several,
        [delays[copies] - delays.get(1, 0.0) for copies in several],
        profile.name,
        names,
        "runs of two and three copies",
        fixed,
    )


def _fit_frequency(profile: GpuProfile) -> Fitted:
    """Return alpha_f (Eq. 9).

    Measured power stops at the cap. The demand of more copies continues the line of the runs at full frequency.
    """
    runs = sorted(profile.runs, key=lambda run: run.copies)
    full = [run for run in runs if not _is_throttled(run, profile)]
    throttled = [run for run in runs if _is_throttled(run, profile)]
    if len(full) < 2 or not throttled:
        missing = "two runs below the power cap" if len(full) < 2 else "a run of enough copies to exceed the power cap"
        raise ProfileError(f"{profile.name}: alpha_f: not determined, missing {missing}")
    per_copy = (full[-1].power_w - full[0].power_w) / (full[-1].copies - full[0].copies)
    excess = np.array(
        [full[-1].power_w + per_copy * (run.copies - full[-1].copies) - profile.max_power_w for run in throttled]
    )
    if not (excess**2).sum():
        raise ProfileError(f"{profile.name}: alpha_f: not determined, missing a run with a demand above the power cap")
    drop = np.array([run.frequency_mhz - profile.max_frequency_mhz for run in throttled])
    return fit_slope(excess, drop)


def _fixed(name: str, fixed: Mapping[str, float]) -> Fitted | None:
    return Fitted(fixed[name], NAN) if name in fixed else None


def _deviations(fitted: Mapping[str, Fitted], fixed: Mapping[str, float]) -> dict[str, float]:
    return {name: float(fit.deviation) for name, fit in fitted.items() if name not in fixed}


def _frequency_ratio(run: SoloRun, gpu: GpuCoefficients) -> float:
    """Return f / F of a run, 1 where it was not throttled."""
    return run.frequency_mhz / gpu.max_frequency_mhz if _is_throttled(run, gpu) else 1.0


def _is_throttled(run: SoloRun | CopiesRun, gpu: GpuCoefficients | GpuProfile) -> bool:
    slow = run.frequency_mhz < FULL_SPEED * gpu.max_frequency_mhz
    return slow and run.power_w >= NEAR_CAP * gpu.max_power_w


def _ability(run: SoloRun, profile: ModelProfile) -> float:
    """Return the measured processing ability in rows per second."""
    return MS_PER_S * run.batch / (run.gpu_ms - profile.scheduling_delay_ms)


def _require_distinct(
    model: str, what: str, names: Sequence[str], fixed: Mapping[str, float], values: Iterable[float], more: int = 0
) -> None:
    """Raise ProfileError unless there are as many different values as free coefficients, and `more`."""
    free = [name for name in names if name not in fixed]
    distinct = sorted(set(values))
    if len(distinct) < len(free) + more:
        measured = ", ".join(f"{value:g}" for value in distinct) or "none"
        ordinal = ("first", "second", "third")[len(free) + more - 1]
        symbols = f"{', '.join(free[:-1])} and {free[-1]}" if len(free) > 1 else "".join(free) or names[-1]
        raise ProfileError(
            f"{model}: {symbols}: not determined, missing runs at a {ordinal} {what} (measured: {measured})"
        )
