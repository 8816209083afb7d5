"""iGniter section 5.2: predicted beside measured latency, alone and in pairs of models that were not fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.interference.prediction import (
    DEFAULT_INTERFERENCE_MODEL,
    INTERFERENCE_MODELS,
    predict_shares,
    stack_coefficients,
)
from horologe_common.interference.v100 import CALIBRATED
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.held_out_errors import gpu_lets_errors, model_errors, pair_names
from horologe_experiments.igniter.igniter_data import MODELS, gpu_profile, model_profile, pairs, solo_points
from horologe_planning.interference.fitting import fit_gpu, fit_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_experiments.harness.experiment import Progress

PAPER = {
    "alexnet": ("3.91-5.90", "2.67-6.23"),
    "resnet50": ("1.10-9.29", "0.78-9.76"),
    "vgg19": ("0.04-2.32", "1.30-4.19"),
    "ssd": ("0.89-7.61", "0.02-4.43"),
}
"""Range of the errors in percent beside one neighbour, of iGniter and of gpu-lets+ (Fig. 11, 12)."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-error."""

    description: str


class Predictor(NamedTuple):
    """A way to predict, with its relative error on each side of each held-out pair."""

    name: str
    errors: NDArray[Any]


class IgniterError:
    """Errors alone and in pairs, per model, beside the paper's and those of gpu-lets+."""

    name = "igniter-error"
    title = "iGniter Fig. 11 to 13: error of the predicted latency alone and beside a neighbour"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Deterministic: the seed changes nothing."""
        load_scene(self.name, Scene, quick, changes)
        gpu = fit_gpu(gpu_profile()).coefficients
        eleven, row_term = (
            {model: fit_model(model_profile(model), gpu, row_term=term).coefficients for model in MODELS}
            for term in (False, True)
        )
        progress(0.2, "pairs")
        predictors = [
            Predictor("igniter", model_errors("igniter", eleven, gpu, from_solo=False)),
            Predictor("ours", model_errors(DEFAULT_INTERFERENCE_MODEL, row_term, gpu, from_solo=False)),
            Predictor("ours, measured alone", model_errors(DEFAULT_INTERFERENCE_MODEL, row_term, gpu, from_solo=True)),
            Predictor("gpu-lets+, measured alone", gpu_lets_errors()),
        ]
        rows = [*_solo_rows("igniter", eleven, gpu), *_solo_rows("ours", row_term, gpu)]
        rows += [row for predictor in predictors for row in _pair_rows(predictor)]
        facts = {
            "alone": "points that were not fitted; k1 to k5 (igniter) or k1 to k6 (ours) from 11 runs of each model",
            "pairs": f"{len(pairs()[0])} measured pairs, predicted with the GPU's coefficients fitted on the other five"
            " pairs of models",
            "measured alone": "predicted slowdown times the measured latency alone, which gpu-lets+ needs for every"
            " batch size and share",
            "paper": "range of the errors of the few points in Fig. 11 and 12",
        }
        series: dict[str, Any] = {
            "pairs of models": [row for predictor in predictors for row in _group_rows(predictor)]
        }
        series["errors"] = {p.name: np.sort(np.abs(p.errors).ravel()).round(5).tolist() for p in predictors}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(predictors), series)

    def draw(self, findings: Findings) -> Figure:
        """Draw the distribution of the errors on pairs, and mean and P95 by model."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        for name, errors in findings.series["errors"].items():
            left.plot(100 * np.array(errors), np.arange(1, len(errors) + 1) / len(errors), label=name)
        left.axvline(12, color="k", ls="--", lw=0.8)
        left.set(xlabel="error on held-out pairs (%)", ylabel="part of the sides", xlim=(0, 25))
        left.legend(fontsize=7)
        rows = [row for row in findings.rows if row["runs"] == "pairs"]
        names = list(dict.fromkeys(row["predictor"] for row in rows))
        for at, name in enumerate(names):
            own = [row for row in rows if row["predictor"] == name and row["model"] != "all"]
            places = np.arange(len(own)) + (at - len(names) / 2) * 0.2
            right.bar(places, [row["mean_percent"] for row in own], 0.2, label=name)
            right.plot(places, [row["p95_percent"] for row in own], "k_", ms=8)
        right.set_xticks(range(len(MODELS)), MODELS)
        right.set(ylabel="mean error (%), dash: P95")
        return figure


def _solo_rows(name: str, models: Mapping[str, ModelCoefficients], gpu: GpuCoefficients) -> list[dict[str, Any]]:
    """Return the errors of each model alone."""
    rows = []
    for model in MODELS:
        batch, share, latency = solo_points(model)
        coefficients = stack_coefficients([models[model]])
        predicted = predict_shares(
            INTERFERENCE_MODELS["igniter"], gpu, coefficients, batch[:, None], share[:, None]
        ).latency_ms[:, 0]
        rows.append(_row("alone", model, name, predicted / latency - 1))
    return rows


def _pair_rows(predictor: Predictor) -> list[dict[str, Any]]:
    """Return the errors of each model beside a neighbour, and of all."""
    sides = np.array([run.models for run in pairs()[0]])
    paper = {"igniter": 0, "gpu-lets+, measured alone": 1}.get(predictor.name)
    rows = []
    for model in MODELS:
        errors = predictor.errors[sides == model]
        row = _row("pairs", model, predictor.name, errors)
        if paper is not None:
            row["paper_percent"] = PAPER[model][paper]
        if predictor.name == "ours":
            stated = CALIBRATED.models[model].relative_error
            row["stated_deviation_percent"] = 100 * stated
            row["within_two_deviations"] = round(float(np.mean(np.abs(errors) <= 2 * stated)), 3)
        rows.append(row)
    return [*rows, _row("pairs", "all", predictor.name, predictor.errors)]


def _group_rows(predictor: Predictor) -> list[dict[str, Any]]:
    """Return the errors of each pair of models, held out as a whole."""
    groups = pair_names()
    return [_row("pairs", str(group), predictor.name, predictor.errors[groups == group]) for group in np.unique(groups)]


def _row(runs: str, model: str, predictor: str, errors: NDArray[Any]) -> dict[str, Any]:
    size = 100 * np.abs(errors)
    return {
        "runs": runs, "model": model, "predictor": predictor, "points": int(size.size),
        "mean_percent": round(float(size.mean()), 2), "p95_percent": round(float(np.quantile(size, 0.95)), 2),
        "max_percent": round(float(size.max()), 2), "bias_percent": round(float(100 * errors.mean()), 2),
    }  # fmt: skip


def _bars(predictors: list[Predictor]) -> list[Bar]:
    """Return the bars: our error on held-out pairs, and beside gpu-lets+ on the same split."""
    sizes = {predictor.name: np.abs(predictor.errors) for predictor in predictors}
    ours, measured, lets = (sizes[name] for name in ("ours", "ours, measured alone", "gpu-lets+, measured alone"))
    p95 = [float(np.quantile(size, 0.95)) for size in (ours, measured, lets)]
    sides = np.array([run.models for run in pairs()[0]])
    return [
        Bar("mean error on held-out pairs, %", round(100 * float(ours.mean()), 2), 5, "at most"),
        Bar("P95 error on held-out pairs, %", round(100 * p95[0], 2), 12, "at most"),
        Bar("mean error / gpu-lets+", round(float(measured.mean() / lets.mean()), 3), 1, "at most"),
        Bar("P95 error / gpu-lets+", round(p95[1] / p95[2], 3), 1, "at most"),
        Bar("mean error / gpu-lets+, worst model", round(max(
            float(measured[sides == model].mean() / lets[sides == model].mean()) for model in MODELS
        ), 3), 1, "at most"),
    ]  # fmt: skip
