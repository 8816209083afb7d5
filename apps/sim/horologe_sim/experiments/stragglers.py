"""Fig. 9 of Clipper (section 5.2.2): ensembles with a straggler, answered in time, or when all predictions are there.

Both sides are the real services. Who blocks has an SLO that nothing exceeds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.applications import Application
from horologe_sim.experiment import Bar, Cost, Findings, scene
from horologe_sim.house import House
from horologe_sim.noise import Noise
from horologe_sim.scenario import Entry, Scenario
from horologe_sim.workload import Load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_sim.experiment import Progress
    from horologe_sim.report import ApplicationRow

NAME = "ensemble"
LOSS_POINTS = 2.0


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    sizes: tuple[int, ...]
    slo_ns: int
    blocking_slo_ns: int
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
    made_of: ApplicationRow


class Stragglers:
    name = "stragglers"
    title = "Clipper Fig. 9: ensembles with a straggler"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        place = scene(self.name, Scene, quick, changes)
        cost = Cost()
        rows = []
        for at, size in enumerate(place.sizes):
            progress(at / len(place.sizes), f"{size} models, blocking")
            blocking = _play(place, size, place.blocking_slo_ns, seed, cost)
            progress((at + 0.5) / len(place.sizes), f"{size} models, in time")
            rows.append(_row(size, blocking, _play(place, size, place.slo_ns, seed, cost)))
        facts = {
            "models": f"a device each, {place.exec_ms[1]:g} ms an EXEC of one, {place.accuracy:.0%} right alone, on "
            f"{place.alike:.0%} of inputs all together; exp4 without feedback: all weigh the same",
            "noise": f"{_told(place.noise)}; of the straggler {_told(place.straggler)}",
            "load": f"{place.rate:g} queries a second, each for all models, {place.duration_ns / 1e9:g} s",
            "blocking": f"the same arrivals and services, with an SLO of {place.blocking_slo_ns / 1e6:g} ms",
            "missing": "share of the models asked that were refused or not there in time; at P99, of a query in 100",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(place, rows), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Latency, missing predictions and accuracy against the size, as the figure's panels."""
        from horologe_sim.experiments.figures import figure

        drawn, (latency, missing, accuracy) = figure(1, 3)
        sizes = [row["models"] for row in findings.rows]
        for colour, side in (("C3", "blocking_"), ("C0", "")):
            for field, line in (("mean_ms", "-"), ("p99_ms", "--"), ("p99.9_ms", ":")):
                label = f"{side.strip('_') or 'in time'}, {field.removesuffix('_ms')}"
                latency.plot(
                    sizes, [row[side + field] for row in findings.rows], colour + line, marker="o", label=label
                )
            values = [100 * row[f"{side}accuracy"] for row in findings.rows]
            accuracy.plot(sizes, values, colour, marker="o", label=side.strip("_") or "in time")
        for field, line in (("missing_mean", "-"), ("missing_p99", "--")):
            values = [100 * row[field] for row in findings.rows]
            missing.plot(sizes, values, "C0" + line, marker="o", label=field.removeprefix("missing_"))
        for axes, told in ((latency, "latency (ms)"), (missing, "predictions missing (%)"), (accuracy, "accuracy (%)")):
            axes.set(xlabel="models", ylabel=told)
            axes.legend(fontsize=7)
        latency.set(yscale="log")
        return drawn


def _play(place: Scene, size: int, slo_ns: int, seed: int, cost: Cost) -> Side:
    """One run to its end."""
    models = tuple(
        Entry(
            f"model-{number}", place.exec_ms, accuracy=place.accuracy, alike=place.alike, workers=(number,),
            noise=place.straggler if number == size - 1 else None,
        )
        for number in range(size)
    )  # fmt: skip
    application = Application(
        NAME, tuple(model.name for model in models), slo_ns / 1e6, default=place.default, cache=False
    )  # fmt: skip
    house = House(Scenario(
        models, (Load("poisson", rate=place.rate, application=NAME),), seed=seed, duration_ns=place.duration_ns,
        warmup_ns=place.warmup_ns, workers=size, noise=place.noise, applications=(application,),
    ))  # fmt: skip
    begin = time.perf_counter()
    house.run()
    house.world.check()
    cost.wall_s += time.perf_counter() - begin
    line, report = house.tally.lines[NAME], house.report()
    cost.requests += line.sent
    took_ms = np.asarray(line.took_ns) / 1e6
    p99_ms, p999_ms = map(float, np.quantile(took_ms, (0.99, 0.999), method="inverted_cdf"))
    return Side(
        line.sent, len(took_ms), report.strays, (float(took_ms.mean()), p99_ms, p999_ms), report.applications[NAME]
    )


def _row(size: int, blocking: Side, ours: Side) -> dict[str, Any]:
    row: dict[str, Any] = {"models": size, "queries": ours.sent}
    for prefix, side in (("blocking_", blocking), ("", ours)):
        for name, took_ms in zip(("mean_ms", "p99_ms", "p99.9_ms"), side.took_ms, strict=True):
            row[prefix + name] = round(took_ms, 2)
    one = ours.made_of
    accuracy, there = one.accuracy or 0.0, blocking.made_of.accuracy or 0.0
    return row | {
        "incomplete": one.incomplete, "missing_mean": one.missing_mean, "missing_p99": one.missing_p99,
        "defaulted": one.defaulted, "blocking_missing": blocking.made_of.missing_mean, "blocking_accuracy": there,
        "accuracy": accuracy, "points_lost": round(100 * (there - accuracy), 2),
        "wrong": sum(abs(side.sent - side.in_time) + side.strays for side in (blocking, ours)),
    }  # fmt: skip


def _bars(place: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    slo_ms = place.slo_ns / 1e6
    return [
        *(Bar(f"P99 of {row['models']} models in ms", row["p99_ms"], slo_ms, "at most") for row in rows),
        Bar("queries late, refused, or not answered exactly once", sum(row["wrong"] for row in rows), 0, "at most"),
        *(Bar(f"points lost by {row['models']} models", row["points_lost"], LOSS_POINTS, "at most") for row in rows),
    ]  # fmt: skip


def _told(noise: Noise) -> str:
    return f"{noise.tail_share:.0%} of EXECs take {noise.tail_ns / 1e6:g} ms longer on average"
