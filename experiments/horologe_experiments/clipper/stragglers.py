"""Clipper's Fig. 9 (section 5.2.2): ensembles with a straggler, answered at the deadline or after all predictions.

All sides run the cores of the services. The blocking side has an SLO that no request exceeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.applications import Application
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_sim.engine.noise import Noise
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_sim.report.report import ApplicationSummary

NAME, BLOCKING = "ensemble", "blocking"
LOSS_POINTS = 2.0


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of stragglers."""

    description: str
    sizes: tuple[int, ...]
    slo_ns: int
    blocking_slo_ns: int
    schedulers: tuple[str, ...]
    """Schedulers of the sides. The first one has the bars, and also runs the blocking side."""
    rate: float
    duration_ns: int
    warmup_ns: int
    accuracy: float
    alike: float
    default: float
    exec_ms: dict[int, float]
    noise: Noise
    straggler: Noise


class SideRun(msgspec.Struct, frozen=True):
    """The result of one run."""

    sent: int
    in_time: int
    strays: int
    took_ms: tuple[float, float, float]
    """Latency in milliseconds: mean, P99, P99.9."""
    summary: ApplicationSummary


class Stragglers:
    """Latency, missing predictions and accuracy by size of the ensemble."""

    name = "stragglers"
    title = "Clipper Fig. 9: ensembles with a straggler"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows: list[dict[str, Any]] = []
        for at, size in enumerate(scene.sizes):
            progress(at / len(scene.sizes), f"{size} models")
            blocking = _simulate(scene, size, scene.schedulers[0], scene.blocking_slo_ns, seed)
            rows.append(_row(size, BLOCKING, blocking, blocking))
            for scheduler in scene.schedulers:
                ours = _simulate(scene, size, scheduler, scene.slo_ns, seed)
                rows.append(_row(size, scheduler, ours, blocking))
        facts = {
            "models": f"a device each, {scene.exec_ms[1]:g} ms per EXEC of one row, {scene.accuracy:.0%} right alone, "
            f"on {scene.alike:.0%} of the inputs right or wrong together; exp4 without feedback: equal weights",
            "noise": f"{_describe_noise(scene.noise)}; of the straggler {_describe_noise(scene.straggler)}",
            "load": f"{scene.rate:g} queries a second, each to all models, {scene.duration_ns / 1e9:g} s",
            "sides": f"an SLO of {scene.slo_ns / 1e6:g} ms and a scheduler; blocking: the first one with an SLO of "
            f"{scene.blocking_slo_ns / 1e6:g} ms",
            "missing": "share of the models of a query without an answer in time; missing_p99 is its 99th percentile",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw latency, missing predictions and accuracy against the size, as in the paper."""
        from horologe_experiments.harness.plots import make_figure

        figure, (latency, missing, accuracy) = make_figure(1, 3)
        for number, side in enumerate(dict.fromkeys(row["side"] for row in findings.rows)):
            rows, colour = [row for row in findings.rows if row["side"] == side], f"C{number}"
            sizes = [row["models"] for row in rows]
            for field, line in (("mean_ms", "-"), ("p99_ms", "--"), ("p99.9_ms", ":")):
                label = f"{side}, {field.removesuffix('_ms')}"
                latency.plot(sizes, [row[field] for row in rows], colour + line, marker="o", label=label)
            for field, line in (("missing", "-"), ("missing_p99", "--")):
                label = side + (", p99" if line == "--" else ", mean")
                missing.plot(sizes, [100 * row[field] for row in rows], colour + line, marker="o", label=label)
            accuracy.plot(sizes, [100 * row["accuracy"] for row in rows], colour, marker="o", label=side)
        for axes, label in (
            (latency, "latency (ms)"),
            (missing, "predictions missing (%)"),
            (accuracy, "accuracy (%)"),
        ):
            axes.set(xlabel="models", ylabel=label)
            axes.legend(fontsize=7)
        latency.set(yscale="log")
        return figure


def _simulate(scene: Scene, size: int, scheduler: str, slo_ns: int, seed: int) -> SideRun:
    """Simulate one run to its end."""
    models = tuple(
        ModelEntry(
            f"model-{number}",
            scene.exec_ms,
            accuracy=scene.accuracy,
            alike=scene.alike,
            workers=(number,),
            noise=scene.straggler if number == size - 1 else None,
        )
        for number in range(size)
    )
    application = Application(
        NAME, tuple(model.name for model in models), slo_ns / 1e6, default=scene.default, cache=False
    )
    cluster = SimulatedCluster(
        Scenario(
            models,
            (LoadPhase("poisson", rate=scene.rate, application=NAME),),
            seed=seed,
            duration_ns=scene.duration_ns,
            warmup_ns=scene.warmup_ns,
            workers=size,
            noise=scene.noise,
            applications=(application,),
            controller=ControllerSettings(scheduler=scheduler),
        )
    )
    cluster.run()
    cluster.world.check()
    line, report = cluster.tally.counts[NAME], cluster.report()
    took_ms = np.asarray(line.times) / 1e6
    p99_ms, p999_ms = map(float, np.quantile(took_ms, (0.99, 0.999), method="inverted_cdf"))
    return SideRun(
        line.sent, len(took_ms), report.strays, (float(took_ms.mean()), p99_ms, p999_ms), report.applications[NAME]
    )


def _row(size: int, name: str, side: SideRun, blocking: SideRun) -> dict[str, Any]:
    summary = side.summary
    accuracy, blocking_accuracy = summary.accuracy or 0.0, blocking.summary.accuracy or 0.0
    return {
        "models": size,
        "side": name,
        "queries": side.sent,
        "unlike_once": side.sent - side.in_time + side.strays,
        **{key: round(took, 2) for key, took in zip(("mean_ms", "p99_ms", "p99.9_ms"), side.took_ms, strict=True)},
        "missing": summary.missing_mean,
        "missing_p99": summary.missing_p99,
        "incomplete": summary.incomplete,
        "defaulted": summary.defaulted,
        "accuracy": accuracy,
        "points_lost": round(100 * (blocking_accuracy - accuracy), 2),
    }


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    ours = [row for row in rows if row["side"] == scene.schedulers[0]]
    wrong = sum(row["unlike_once"] for row in rows)
    return [
        *(Bar(f"P99 of {row['models']} models in ms", row["p99_ms"], scene.slo_ns / 1e6, "at most") for row in ours),
        Bar("queries late, refused, or not answered exactly once", wrong, 0, "at most"),
        *(Bar(f"points lost by {row['models']} models", row["points_lost"], LOSS_POINTS, "at most") for row in ours),
    ]


def _describe_noise(noise: Noise) -> str:
    return f"{noise.tail_share:.1%} of EXECs take {noise.tail_ns / 1e6:g} ms longer on average"
