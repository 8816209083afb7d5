"""Clipper's Fig. 8 (section 5.2): selection policies against single models, the best of which fails for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.clipper.classifiers import CLASSES, LEARNERS, crop_rows, load_digits
from horologe_experiments.clipper.online import Requests, serve_online
from horologe_experiments.harness.experiment import Bar, Findings, load_scene

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress

    Errors = dict[str, NDArray[np.float64]]
    """Model or policy -> [seeds, requests], 1 for a wrong answer."""

POINTS = 100
"""Points of a curve."""
PAPERS = ("exp3", "exp4")
"""The policies of the paper's figure."""


class ModelChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model: its learner and the part of the image that it sees."""

    name: str
    learner: str
    rows: tuple[int, int]
    """Rows of pixels: from, to (exclusive)."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of bandits."""

    description: str
    seeds: int
    requests: int
    fails_at: int
    recovers_at: int
    training: int
    policies: tuple[str, ...]
    settings: dict[str, dict[str, float]]
    """Settings by policy; the others have their defaults."""
    models: tuple[ModelChoice, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the models."""
        return tuple(model.name for model in self.models)


class Bandits:
    """Errors of policies and of single models."""

    name = "bandits"
    title = "Policies that learn from feedback, while the best model fails"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        steps = scene.seeds * len(scene.policies)
        solo: list[NDArray[np.float64]] = []
        errors: dict[str, list[NDArray[np.float64]]] = {name: [] for name in (*scene.names, *scene.policies)}
        for number in range(scene.seeds):
            requests, alone = _requests(scene, [seed, number])
            solo.append(alone)
            for model, wrong in zip(scene.names, requests.wrong.T, strict=True):
                errors[model].append(wrong.astype(float))
            for at, policy in enumerate(scene.policies):
                progress((number * len(scene.policies) + at) / steps, f"seed {number + 1}, {policy}")
                answers = serve_online(
                    requests, policy, seed * scene.seeds + number, settings=scene.settings.get(policy)
                )
                errors[policy].append(answers.wrong.astype(float))
        stacked = {name: np.stack(runs) for name, runs in errors.items()}
        rows = _rows(scene, stacked, np.mean(solo, axis=0))
        facts = {
            "models": "trained for each seed; requests are held-out images, drawn with replacement",
            "failure": f"the best model answers at random from request {scene.fails_at:,} to {scene.recovers_at:,}",
            "seeds_below": "seeds in which the policy makes fewer errors than every single model",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, stacked), _series(stacked))

    def draw(self, findings: Findings) -> Figure:
        """Draw the cumulative error against requests, averaged over the seeds."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        curves = findings.series["cumulative error"]
        thousands = [request / 1000 for request in curves["request"]]
        for row in findings.rows:
            name, single = row["name"], row["kind"] == "model"
            if single or name in PAPERS:
                left.plot(thousands, curves[name], "--" if single else "-", label=name)
            if not single:
                right.plot(thousands, curves[name], label=name)
        for axes in (left, right):
            axes.set(xlabel="requests (thousands)", ylabel="cumulative error", ylim=(0, 0.45))
            axes.legend(fontsize=7, loc="upper right", ncols=2)
        return figure


def _requests(scene: Scene, seed: list[int]) -> tuple[Requests, NDArray[np.float64]]:
    """Return the predictions for each request, and the error of each model without a failure."""
    rng = np.random.default_rng(seed)
    images, labels = load_digits()
    order = rng.permutation(len(images))
    training, held_out = order[: scene.training], order[scene.training :]
    predictions = []
    for model in scene.models:
        cropped = crop_rows(images, *model.rows)
        predictions.append(LEARNERS[model.learner](cropped[training], labels[training])(cropped[held_out]))
    drawn = rng.integers(0, len(held_out), scene.requests)
    requests = Requests(scene.names, np.stack(predictions, axis=1)[drawn], labels[held_out][drawn])
    alone = requests.wrong.mean(axis=0)
    failing = slice(scene.fails_at, scene.recovers_at)
    at_random = rng.integers(0, CLASSES, scene.requests)
    requests.predictions[failing, alone.argmin()] = at_random[failing]
    return requests, alone


def _rows(scene: Scene, errors: Errors, solo: NDArray[np.float64]) -> list[dict[str, Any]]:
    best = _best_single(scene, errors)
    phases = {
        "before": slice(0, scene.fails_at),
        "failing": slice(scene.fails_at, scene.recovers_at),
        "after": slice(scene.recovers_at, None),
    }
    rows = []
    for name, wrong in errors.items():
        ends = wrong.mean(axis=1)
        single = name in scene.names
        row: dict[str, Any] = {"name": name, "kind": "model" if single else "policy"}
        row |= {"solo": round(float(solo[scene.names.index(name)]), 4) if single else None}
        row |= {"error": round(float(ends.mean()), 4), "worst_seed": round(float(ends.max()), 4)}
        row |= {phase: round(float(wrong[:, part].mean()), 4) for phase, part in phases.items()}
        row |= {"seeds_below": None if single else int((ends < best).sum())}
        rows.append(row)
    return rows


def _best_single(scene: Scene, errors: Errors) -> NDArray[np.float64]:
    """Return the smallest error of a single model, by seed."""
    ends = np.stack([errors[name].mean(axis=1) for name in scene.names])
    return np.asarray(ends.min(axis=0))


def _bars(scene: Scene, errors: Errors) -> list[Bar]:
    best = _best_single(scene, errors)
    bars = []
    if "exp4" in errors:
        below = int((errors["exp4"].mean(axis=1) < best).sum())
        bars.append(Bar("exp4: seeds in which it ends below every single model", below, scene.seeds))
    if "exp3" in errors:
        ratio = float(errors["exp3"].mean() / best.mean())
        bars.append(Bar("exp3: error over that of each seed's best single model, mean", round(ratio, 4), 1, "at most"))
    return bars


def _series(errors: Errors) -> dict[str, Any]:
    (requests,) = {wrong.shape[1] for wrong in errors.values()}
    at = np.unique(np.linspace(1, requests, min(POINTS, requests)).astype(int))
    curves = {name: (wrong.mean(axis=0).cumsum()[at - 1] / at).round(4).tolist() for name, wrong in errors.items()}
    return {"cumulative error": {"request": at.tolist(), **curves}}
