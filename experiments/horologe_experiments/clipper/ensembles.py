"""Clipper's Fig. 7 (section 5.2): the error of an ensemble, and of its answers by the number of agreeing models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.clipper.classifiers import LEARNERS, load_digits
from horologe_experiments.clipper.online import Answers, Requests, serve_online
from horologe_experiments.harness.experiment import Bar, Findings, load_scene

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress

PAPER = 0.948
"""Error of the ensemble divided by that of the best model. On ImageNet, with the best models, it is 5.2% lower."""


class NoisyImages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Images with noise of this standard deviation."""

    name: str
    noise: float
    examples: int
    """Training images of each model."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of ensembles."""

    description: str
    seeds: int
    requests: int
    training: int
    learners: tuple[str, ...]
    policies: tuple[str, ...]
    settings: dict[str, dict[str, float]]
    """Settings by policy; the others have their defaults."""
    groups: tuple[int, ...]
    benchmarks: tuple[NoisyImages, ...]


class Ensembles:
    """Errors of single models, of ensembles and of groups of answers."""

    name = "ensembles"
    title = "The error of an ensemble, and of its answers by agreement"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows: list[dict[str, Any]] = []
        for at, benchmark in enumerate(scene.benchmarks):
            progress(at / len(scene.benchmarks), benchmark.name)
            served = [_requests(scene, benchmark, [seed, number]) for number in range(scene.seeds)]
            solo = np.mean([requests.wrong.mean(axis=0) for requests in served], axis=0)
            models = [f"{learner} {number + 1}" for number, learner in enumerate(scene.learners)]
            rows += [
                _row(benchmark, "model", model, "all", 1.0, error) for model, error in zip(models, solo, strict=True)
            ]
            for policy in scene.policies:
                answers = [
                    serve_online(requests, policy, seed * scene.seeds + number, settings=scene.settings.get(policy))
                    for number, requests in enumerate(served)
                ]
                rows += _group_rows(scene, benchmark, policy, answers)
        facts = {
            "models": f"{len(scene.learners)}, each trained on its own examples; {scene.seeds} seeds, "
            f"{scene.requests:,} requests each, with feedback",
            "group": "answers by the number of models that agree with them; their share is the confidence",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw the errors. The width of a group's bar is its share of the answers."""
        from horologe_experiments.harness.plots import make_figure

        names = list(dict.fromkeys(row["benchmark"] for row in findings.rows))
        figure, panels = make_figure(1, len(names))
        for axes, name in zip(panels, names, strict=True):
            rows = [row for row in findings.rows if row["benchmark"] == name]
            bars = [row for row in rows if row["kind"] == "model" or row["name"] == "exp4"]
            labels = [row["name"] if row["group"] == "all" else row["group"] for row in bars]
            colors = ["grey" if row["kind"] == "model" else "tab:blue" for row in bars]
            axes.bar(
                range(len(bars)),
                [row["error"] for row in bars],
                [0.9 * row["size"] for row in bars],
                color=colors,
            )
            axes.set_xticks(range(len(bars)), labels, rotation=40, ha="right", fontsize=7)
            axes.set(ylabel="error", title=name)
        return figure


def _requests(scene: Scene, benchmark: NoisyImages, seed: list[int]) -> Requests:
    rng = np.random.default_rng(seed)
    images, labels = load_digits()
    images = images + benchmark.noise * rng.standard_normal(images.shape)
    order = rng.permutation(len(images))
    training, held_out = order[: scene.training], order[scene.training :]
    predictions = []
    for learner in scene.learners:
        examples = rng.choice(training, benchmark.examples, replace=False)
        predictions.append(LEARNERS[learner](images[examples], labels[examples])(images[held_out]))
    drawn = rng.integers(0, len(held_out), scene.requests)
    names = tuple(f"model {number + 1}" for number in range(len(predictions)))
    return Requests(names, np.stack(predictions, axis=1)[drawn], labels[held_out][drawn])


def _group_rows(scene: Scene, benchmark: NoisyImages, policy: str, answers: list[Answers]) -> list[dict[str, Any]]:
    wrong = np.concatenate([run.wrong for run in answers])
    agreeing = np.rint(np.concatenate([run.confidence for run in answers]) * len(scene.learners))
    rows = [_row(benchmark, "policy", policy, "all", 1.0, wrong.mean())]
    for count in scene.groups:
        for group, inside in (
            (_group_name(scene, count), agreeing >= count),
            (f"fewer than {count}", agreeing < count),
        ):
            rows.append(_row(benchmark, "policy", policy, group, inside.mean(), _error(wrong, inside)))
    return rows


def _group_name(scene: Scene, count: int) -> str:
    return f"{count} or more agree" if count < len(scene.learners) else f"all {count} agree"


def _error(wrong: NDArray[np.bool_], inside: NDArray[np.bool_]) -> float:
    return float(wrong[inside].mean()) if inside.any() else 0.0


def _row(benchmark: NoisyImages, kind: str, name: str, group: str, size: float, error: float) -> dict[str, Any]:
    return {
        "benchmark": benchmark.name,
        "kind": kind,
        "name": name,
        "group": group,
        "size": round(float(size), 4),
        "error": round(float(error), 4),
    }


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    for benchmark in scene.benchmarks:
        here = [row for row in rows if row["benchmark"] == benchmark.name]
        best = min(row["error"] for row in here if row["kind"] == "model")
        errors = {row["group"]: row["error"] for row in here if row["name"] == scene.policies[0]}
        most = _group_name(scene, max(scene.groups))
        name = f"{benchmark.name}: error of {scene.policies[0]}"
        of_best, of_all = round(errors["all"] / best, 4), round(errors[most] / errors["all"], 4)
        bars.append(Bar(f"{name} / the best model's", of_best, PAPER, "at most"))
        bars.append(Bar(f"{name} where {most} / that of all", of_all, 0.5, "at most"))
    return bars
