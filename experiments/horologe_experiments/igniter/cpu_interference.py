"""iGniter's interference model on a CPU, where a core is a share: coefficients from runs beside a probe.

A CPU counts no L2 utilisation per model. A probe that streams through memory takes its place: the utilisation of a
model is the growth, in percent, of the probe's time beside it. A model's alpha_cache (Eq. 8) is the growth of its own
time beside the probe, over the utilisation of the probe, which is that beside its own copy. Cores have no kernel
scheduler and no power cap in common, so these terms are 0. All shares are one core, so Eq. 11 is fitted in the batch
size alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
from horologe_common.interference.prediction import (
    INTERFERENCE_MODELS,
    MS_PER_S,
    predict_shares,
    stack_coefficients,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CORE_PERCENT = 50.0
"""The share that a core is of two."""
MODEL = "igniter"
_NO_TERM = {"alpha_power": 0.0, "beta_power": 0.0, "scheduling_delay_ms": 0.0, "load_bytes": 0.0, "feedback_bytes": 0.0}
CPU = GpuCoefficients("cpu", 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0)


class Load(NamedTuple):
    """A model that runs batches of one size on a core, one after another."""

    model: str
    batch: int


class ProbeRuns(NamedTuple):
    """Times in ms from which coefficients are fitted."""

    alone: Mapping[Load, float]
    beside_probe: Mapping[Load, float]
    """Time of the load beside the probe."""
    probe_alone: float
    probe_beside: Mapping[Load, float]
    """Time of the probe beside the load."""
    probe_copy: float
    """Time of the probe beside its copy."""


def fit_cpu(runs: ProbeRuns) -> dict[str, ModelCoefficients]:
    """Return the coefficients of each model. It needs runs alone at three batch sizes, beside the probe at two."""
    probe_percent = 100 * (runs.probe_copy / runs.probe_alone - 1)
    if probe_percent <= 0:
        raise ValueError(f"probe: got {probe_percent:.1f}% growth beside its copy, wanted a probe that disturbs")
    return {model: _fit_model(model, runs, probe_percent) for model in dict.fromkeys(load.model for load in runs.alone)}


def predict_pair(coefficients: Mapping[str, ModelCoefficients], pair: Sequence[Load]) -> tuple[float, float]:
    """Return the predicted growth of each side's time: the time beside the other over the time alone."""
    stacked = stack_coefficients([coefficients[load.model] for load in pair])
    batch, share = np.array([float(load.batch) for load in pair]), np.full(2, CORE_PERCENT)
    together = predict_shares(INTERFERENCE_MODELS[MODEL], CPU, stacked, batch, share).latency_ms
    alone = predict_shares(INTERFERENCE_MODELS[MODEL], CPU, stacked[..., None], batch[:, None], share[:, None])
    growth = together / alone.latency_ms[:, 0]
    return float(growth[0]), float(growth[1])


def _fit_model(model: str, runs: ProbeRuns, probe_percent: float) -> ModelCoefficients:
    loads = [load for load in runs.alone if load.model == model]
    batch, alone = np.array([float(load.batch) for load in loads]), np.array([runs.alone[load] for load in loads])
    beside = [at for at, load in enumerate(loads) if load in runs.beside_probe]
    if len(loads) < 3 or len(beside) < 2:
        got = f"{len(loads)} runs alone and {len(beside)} beside the probe"
        raise ValueError(f"{model}: got {got}, wanted at least 3 and 2, of different batch sizes")
    design = np.column_stack([batch**2, batch, np.ones_like(batch)]) / alone[:, None]  # relative errors
    k1, k2, k3 = np.linalg.lstsq(design, np.ones_like(batch), rcond=None)[0] * CORE_PERCENT
    growth = np.array([runs.beside_probe[loads[at]] / alone[at] - 1 for at in beside])
    percent = np.array([100 * max(0.0, runs.probe_beside[loads[at]] / runs.probe_alone - 1) for at in beside])
    ability = MS_PER_S * batch[beside] / alone[beside]
    if np.ptp(ability) > 0.1 * ability.mean():
        slope, offset = np.polyfit(ability, percent, 1)
    else:  # larger batches are no more efficient: a line through these points would be noise
        slope, offset = 0.0, percent.mean()
    return ModelCoefficients(
        model, float(k1), float(k2), float(k3), 0.0, 0.0, alpha_cache=max(0.0, float(growth.mean()) / probe_percent),
        alpha_cacheutil=float(slope), beta_cacheutil=float(offset), kernels=0, **_NO_TERM,
    )  # fmt: skip
