"""Clipper's Fig. 10 (section 5.3): models for dialects, and a policy that learns which model a user needs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_experiments.clipper.classifiers import LEARNERS, load_digits, rotate
from horologe_experiments.clipper.online import Requests, serve_online
from horologe_experiments.harness.experiment import Bar, Findings, load_scene

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress

OBLIVIOUS, REPORTED, BEST = "one model of all dialects", "model of the reported dialect", "best model of each writer"
LEARNED = 20
"""Feedbacks of a writer after which the bars count."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of personal."""

    description: str
    angles: tuple[float, ...]
    spread: float
    writers: int
    requests: int
    training: int
    examples: int
    learner: str
    steps: tuple[int, ...]
    """Numbers of feedbacks at which the columns of the table begin."""
    policies: tuple[str, ...]


class Writers(NamedTuple):
    """Requests of all writers, with the predictions of all models."""

    requests: Requests
    """Requests of all writers in turn."""
    oblivious: NDArray[np.int64]
    """Predictions of the model of all dialects."""
    dialects: NDArray[np.int64]
    """Dialect by writer."""


class Personal:
    """Errors with a state for each writer, and with one state."""

    name = "personal"
    title = "Models for dialects, selected for each writer"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        writing = _write_digits(scene, np.random.default_rng(seed))
        requests, writers = writing.requests, len(writing.dialects)
        wrong = requests.wrong
        writer = np.tile(np.arange(writers), scene.requests)
        best = wrong.reshape(scene.requests, writers, -1).mean(axis=0).argmin(axis=1)
        index = np.arange(len(writer))
        errors = {
            OBLIVIOUS: writing.oblivious != requests.truth,
            REPORTED: wrong[index, writing.dialects[writer]],
            BEST: wrong[index, best[writer]],
        }
        for number, policy in enumerate(scene.policies):
            progress(number / len(scene.policies), policy)
            errors[f"{policy}, a state for each writer"] = serve_online(requests, policy, seed, writer.tolist()).wrong
            errors[f"{policy}, one state"] = serve_online(requests, policy, seed).wrong
        curves = {name: values.reshape(scene.requests, writers).mean(axis=1) for name, values in errors.items()}
        facts = {
            "writers": f"{writers}, their digits rotated by their dialect's angle, +- {scene.spread:g} degrees",
            "columns": "error on the requests sent after this many feedbacks of the same writer",
            BEST: "known only afterwards",
        }
        rows = [_row(scene, name, curve) for name, curve in curves.items()]
        series = {"error by feedbacks": {name: curve.round(4).tolist() for name, curve in curves.items()}}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, curves), series)

    def draw(self, findings: Findings) -> Figure:
        """Draw the error against feedbacks, averaged over intervals of growing length."""
        from horologe_experiments.harness.plots import make_figure

        figure, (axes,) = make_figure(1, 1)
        figure.set_size_inches(9, 4)
        for name, values in findings.series["error by feedbacks"].items():
            edges = np.unique(np.geomspace(1, len(values) + 1, 14).astype(int)) - 1
            means = [np.mean(values[begin:end]) for begin, end in pairwise(edges)]
            style = "--" if name in (OBLIVIOUS, REPORTED, BEST) else ":" if "one state" in name else "-"
            axes.plot(edges[:-1] + 1, means, style, label=name)
        axes.set(xscale="log", xlabel="request of a writer", ylabel="error", ylim=(0, None))
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        return figure


def _write_digits(scene: Scene, rng: np.random.Generator) -> Writers:
    images, labels = load_digits()
    order = rng.permutation(len(images))
    training, held_out = order[: scene.training], order[scene.training :]
    fit, seen, digits = LEARNERS[scene.learner], [], []
    for angle in scene.angles:
        examples = rng.choice(training, scene.examples, replace=False)
        seen.append(rotate(images[examples], angle))
        digits.append(labels[examples])
    models = [fit(images_seen, truths) for images_seen, truths in zip(seen, digits, strict=True)]
    of_all = fit(np.concatenate(seen), np.concatenate(digits))
    dialects = np.repeat(np.arange(len(scene.angles)), scene.writers)
    predictions, oblivious, truth = [], [], []
    for dialect in dialects:
        sent = rng.choice(held_out, scene.requests)
        written = rotate(images[sent], scene.angles[dialect] + scene.spread * rng.standard_normal())
        predictions.append(np.stack([model(written) for model in models], axis=1))
        oblivious.append(of_all(written))
        truth.append(labels[sent])
    names = tuple(f"{angle:g} degrees" for angle in scene.angles)
    requests = Requests(names, np.stack(predictions, axis=1).reshape(-1, len(names)), np.stack(truth, axis=1).ravel())
    return Writers(requests, np.stack(oblivious, axis=1).ravel(), dialects)


def _row(scene: Scene, name: str, curve: NDArray[np.float64]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name}
    for begin, end in zip(scene.steps, [*scene.steps[1:], scene.requests], strict=True):
        row[f"{begin}-{end - 1}" if end - begin > 1 else str(begin)] = round(float(curve[begin:end].mean()), 4)
    return row | {"error": round(float(curve.mean()), 4)}


def _bars(scene: Scene, curves: dict[str, NDArray[np.float64]]) -> list[Bar]:
    learned = {name: float(curve[LEARNED:].mean()) for name, curve in curves.items()}
    policy = scene.policies[0]
    own, shared = learned[f"{policy}, a state for each writer"], learned[f"{policy}, one state"]
    since = f"after {LEARNED} feedbacks"
    return [
        Bar(
            "error of the reported dialect's model over that of all dialects",
            round(learned[REPORTED] / learned[OBLIVIOUS], 4),
            1,
            "at most",
        ),
        Bar(f"{since}: {policy} over the reported dialect's model", round(own / learned[REPORTED], 4), 1, "at most"),
        Bar(f"{since}: {policy}, a state for each writer over one state", round(own / shared, 4), 1, "at most"),
    ]
