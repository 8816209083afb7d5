"""Fig. 9 of Clipper (section 5.2.2): ensembles with a straggler, answered in time, or when all predictions are there.

All sides are the real services. Who blocks has an SLO that nothing exceeds.
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
    description: str
    sizes: tuple[int, ...]
    slo_ns: int
    blocking_slo_ns: int
    schedulers: tuple[str, ...]
    """The first is the one with bars, and the one that blocks."""
    rate: float
    duration_ns: int
    warmup_ns: int
    accuracy: float
    alike: float
    default: float
    exec_ms: dict[int, float]
    noise: Noise
    straggler: Noise


class Side(msgspec.Struct, frozen=True):
    """One run. Latencies in ms."""

    sent: int
    in_time: int
    strays: int
    took_ms: tuple[float, float, float]
    """Mean, P99, P99.9."""
    made_of: ApplicationSummary


class Stragglers:
    name = "stragglers"
    title = "Clipper Fig. 9: ensembles with a straggler"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows: list[dict[str, Any]] = []
        for at, size in enumerate(scene.sizes):
            progress(at / len(scene.sizes), f"{size} models")
            blocking = _play(scene, size, scene.schedulers[0], scene.blocking_slo_ns, seed)
            rows.append(_row(size, BLOCKING, blocking, blocking))
            for scheduler in scene.schedulers:
                ours = _play(scene, size, scheduler, scene.slo_ns, seed)
                rows.append(_row(size, scheduler, ours, blocking))
        facts = {
            "models": f"a device each, {scene.exec_ms[1]:g} ms an EXEC of one, {scene.accuracy:.0%} right alone, on "
            f"{scene.alike:.0%} of inputs all together; exp4 without feedback: all weigh the same",
            "noise": f"{_told(scene.noise)}; of the straggler {_told(scene.straggler)}",
            "load": f"{scene.rate:g} queries a second, each for all models, {scene.duration_ns / 1e9:g} s",
            "sides": f"an SLO of {scene.slo_ns / 1e6:g} ms and a scheduler; blocking: the first of them with an SLO of "
            f"{scene.blocking_slo_ns / 1e6:g} ms",
            "missing": "share of the models asked that were refused or not there in time; at P99, of a query in 100",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Latency, missing predictions and accuracy against the size, as the figure's panels."""
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
        for axes, told in ((latency, "latency (ms)"), (missing, "predictions missing (%)"), (accuracy, "accuracy (%)")):
            axes.set(xlabel="models", ylabel=told)
            axes.legend(fontsize=7)
        latency.set(yscale="log")
        return figure


def _play(scene: Scene, size: int, scheduler: str, slo_ns: int, seed: int) -> Side:
    """One run to its end."""
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
    house = SimulatedCluster(
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
    house.run()
    house.world.check()
    line, report = house.tally.counts[NAME], house.report()
    took_ms = np.asarray(line.latencies_ns) / 1e6
    p99_ms, p999_ms = map(float, np.quantile(took_ms, (0.99, 0.999), method="inverted_cdf"))
    return Side(
        line.sent, len(took_ms), report.strays, (float(took_ms.mean()), p99_ms, p999_ms), report.applications[NAME]
    )


def _row(size: int, name: str, side: Side, blocking: Side) -> dict[str, Any]:
    one, all_there = side.made_of, blocking.made_of
    accuracy, most = one.accuracy or 0.0, all_there.accuracy or 0.0
    return {
        "models": size,
        "side": name,
        "queries": side.sent,
        "unlike_once": side.sent - side.in_time + side.strays,
        **{key: round(took, 2) for key, took in zip(("mean_ms", "p99_ms", "p99.9_ms"), side.took_ms, strict=True)},
        "missing": one.missing_mean,
        "missing_p99": one.missing_p99,
        "incomplete": one.incomplete,
        "defaulted": one.defaulted,
        "accuracy": accuracy,
        "points_lost": round(100 * (most - accuracy), 2),
    }


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    ours = [row for row in rows if row["side"] == scene.schedulers[0]]
    wrong = sum(row["unlike_once"] for row in rows)
    return [
        *(Bar(f"P99 of {row['models']} models in ms", row["p99_ms"], scene.slo_ns / 1e6, "at most") for row in ours),
        Bar("queries late, refused, or not answered exactly once", wrong, 0, "at most"),
        *(Bar(f"points lost by {row['models']} models", row["points_lost"], LOSS_POINTS, "at most") for row in ours),
    ]


def _told(noise: Noise) -> str:
    return f"{noise.tail_share:.1%} of EXECs take {noise.tail_ns / 1e6:g} ms longer on average"
