"""A network that becomes slower: all schedulers play the same workloads with several delays of each message."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.tournament import NEARLY, OURS
from horologe_experiments.tournament.traits import FIXED, Slo
from horologe_experiments.tournament.workload import build_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of network."""

    description: str
    delays_ms: tuple[float, ...]
    """Delays of a message between the controller and a device, one way."""
    slos_ms: tuple[float, ...]
    load: float
    """Part of what the best batches could serve."""
    first_seed: int
    seeds: int
    requests: int
    """Requests of each seed, about."""
    processes: int
    schedulers: tuple[str, ...]


class Task(NamedTuple):
    """One seed, to be played by all at this SLO and delay."""

    slo_ms: float
    delay_ms: float
    seed: int
    scene: Scene


class NetworkSweep:
    """Share of requests in time by SLO, delay and scheduler."""

    name = "network"
    title = "A slower network: the default scheduler against the best other at each delay"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. `seed` has no effect: the scene names the seeds."""
        scene = load_scene(self.name, Scene, quick, changes)
        seeds = range(scene.first_seed, scene.first_seed + scene.seeds)
        tasks = [Task(*point, scene) for point in itertools.product(scene.slos_ms, scene.delays_ms, seeds)]
        begin, played = time.perf_counter(), []
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for task, scores in zip(tasks, pool.map(_play, tasks), strict=True):
                played.append((task, scores))
                progress(len(played) / len(tasks), f"SLO {task.slo_ms:g} ms, {task.delay_ms:g} ms one way")
        rows = [_row(*point, played) for point in itertools.product(scene.slos_ms, scene.delays_ms)]
        cost = Cost(len(tasks) * len(scene.schedulers) * scene.requests, time.perf_counter() - begin)
        facts = {
            "workload": f"100 models of Clockwork's appendix A on four devices, {scene.load:g} of what the best "
            "batches within the SLO could serve, the rate of a day of NASA's server",
            "shares": f"mean of {scene.seeds} seeds with about {scene.requests} requests each",
        }
        bars = [Bar("least margin over the best other", min(row["margin"] for row in rows), NEARLY)]
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, {}, cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw the share in time of each scheduler against the delay, one panel for each SLO."""
        from horologe_experiments.harness.plots import make_figure

        slos = list(dict.fromkeys(row["SLO ms"] for row in findings.rows))
        figure, axes = make_figure(1, len(slos))
        names = [name for name in findings.rows[0] if name not in NOT_SCHEDULERS]
        for panel, slo in zip(axes, slos, strict=True):
            rows = [row for row in findings.rows if row["SLO ms"] == slo]
            for name in names:
                delays, shares = ([row[key] for row in rows] for key in ("one way ms", name))
                panel.plot(delays, shares, marker="o", ms=3, lw=2 if name == OURS else 1, label=name)
            panel.set(xscale="log", xlabel="delay one way, ms", ylabel="share in time", title=f"SLO {slo:g} ms")
        axes[0].legend()
        return figure


NOT_SCHEDULERS = ("SLO ms", "one way ms", "best other", "by", "margin")


def _play(task: Task) -> dict[str, float]:
    """Return the share in time of each scheduler."""
    traits = msgspec.structs.replace(
        FIXED["slo-50ms"],
        name="network",
        seed=task.seed,
        slo=Slo("ms", task.slo_ms, task.slo_ms),
        load=task.scene.load,
        network_ns=ms(task.delay_ms),
    )
    workload = build_workload(traits, task.scene.requests)
    return {scheduler: play(workload, scheduler, {}).value for scheduler in task.scene.schedulers}


def _row(slo_ms: float, delay_ms: float, played: Sequence[tuple[Task, dict[str, float]]]) -> dict[str, Any]:
    """Return the means of one point."""
    scores = [scores for task, scores in played if (task.slo_ms, task.delay_ms) == (slo_ms, delay_ms)]
    means = {name: round(float(np.mean([each[name] for each in scores])), 5) for name in scores[0]}
    best = max((name for name in means if name != OURS), key=lambda name: means[name], default=OURS)
    facts = {"best other": means[best], "by": best, "margin": round(means[OURS] - means[best], 5)}
    return {"SLO ms": slo_ms, "one way ms": delay_ms, **means, **facts}
