"""Rehearsals: workloads that change their kind in the middle, under `auto`, the default and each other scheduler."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_controller.schedulers import AUTO
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.tournament import OURS
from horologe_experiments.tournament.traits import Traits, draw_traits
from horologe_experiments.tournament.workload import Workload, build_workload
from horologe_sim.controller_only.rehearsed_tuner import RehearsedTuner
from horologe_sim.controller_only.request_load import Chunk
from horologe_tuner.core.rehearsal.rehearsals import CANDIDATES, WINDOW
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

MOST_DEVICES = 2
TOLERANCE, RECOVERED = -0.003, 0.5
"""Bars: least margin of auto over the default, and the part of the best scheduler's lead over it that auto recovers."""
CHANGED = ("slo", "arrivals", "cv", "load", "skew", "best_effort")
"""Traits that differ between the two halves of a workload."""
PER_HALF = 6
"""Rehearsals in a half. They play the requests of the time of `WINDOW` intervals."""
TAKES = 0.3
"""Part of an interval that a rehearsal takes: with the tuner's defaults, 6 s of 20 s."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of rehearsal."""

    description: str
    first_seed: int
    seeds: int
    requests: int
    """Requests of each half, about."""
    processes: int


class Task(NamedTuple):
    """A workload to be played by all."""

    seed: int
    scene: Scene


class Rehearsal:
    """Share of requests in time under `auto`, beside the default and the best scheduler in hindsight."""

    name = "rehearsal"
    title = "Workloads that change in the middle: rehearsals against the default and the best scheduler in hindsight"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. `seed` has no effect: a workload is drawn from its own seed."""
        scene = load_scene(self.name, Scene, quick, changes)
        tasks = [Task(number, scene) for number in range(scene.first_seed, scene.first_seed + scene.seeds)]
        cost, rows = Cost(), []
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for row, requests, wall_s in pool.map(_play_workload, tasks):
                rows.append(row)
                cost.requests += requests
                cost.wall_s += wall_s
                progress(len(rows) / len(tasks), str(row["seed"]))
        facts = {
            "halves": f"two workloads of the tournament on the same models and devices, that differ in "
            f"{', '.join(CHANGED)}",
            "hindsight": "the candidate of the rehearsals, a scheduler or the default with other settings, that serves "
            "most of both halves",
            "rehearsals": f"{PER_HALF} in each half, each plays the requests of the last {WINDOW} intervals. Time is "
            "compressed: with its settings, the product would see a half in two minutes",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows), {}, cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw the lead of auto over the default against that of the best scheduler."""
        from horologe_experiments.harness.plots import make_figure

        figure, (axes,) = make_figure(1, 1)
        best = [row["best"] - row[OURS] for row in findings.rows]
        axes.scatter(best, [row["margin"] for row in findings.rows], s=8)
        axes.plot([0, max(best)], [0, max(best)], "k--", lw=0.8)
        axes.set(xlabel="lead of the best scheduler in hindsight over the default", ylabel="lead of auto")
        return figure


def build_changing(seed: int, requests: int) -> Workload:
    """Return a workload whose second half has other traits. Deterministic.

    Its capacity is that of the first half. Both halves have open loops and devices without faults.
    """
    first = _open_traits(seed, 0)
    second = msgspec.structs.replace(first, **{name: getattr(_open_traits(seed, 1), name) for name in CHANGED})
    halves = [build_workload(traits, requests) for traits in (first, second)]
    if len(halves[0].factors) != len(halves[1].factors):
        fewer = min((half.factors for half in halves), key=len)
        halves = [
            build_workload(msgspec.structs.replace(traits, devices=fewer), requests) for traits in (first, second)
        ]
    before, after = halves
    chunk = _join(before.chunk, after.chunk, before.duration_ns)
    return before._replace(chunk=chunk, duration_ns=before.duration_ns + after.duration_ns)


def _open_traits(seed: int, half: int) -> Traits:
    """Return the first random traits of a half without closed loops and faults, on at most `MOST_DEVICES` devices."""
    for trial in range(100):
        traits = draw_traits(1_000_000 + 1000 * seed + 100 * half + trial)
        if traits.arrivals != "closed":
            devices = traits.devices[:MOST_DEVICES]
            return msgspec.structs.replace(traits, name=f"{seed}", seed=seed, faults=(), devices=devices)
    raise ValueError(f"seed: got {seed}, wanted one with open loops")


def _join(first: Chunk, second: Chunk, from_ns: int) -> Chunk:
    """Return the requests of both, the second ones from `from_ns` on."""

    def both(name: str) -> list[Any]:
        return [*getattr(first, name), *getattr(second, name)]

    times_ns = [*first.times_ns, *(from_ns + at_ns for at_ns in second.times_ns)]
    return Chunk(times_ns, both("models"), both("slos_ns"), both("groups"), both("requests"))


def _play_workload(task: Task) -> tuple[dict[str, Any], int, float]:
    """Return the row of a workload, the number of simulated requests, and the seconds taken."""
    begin, scene = time.perf_counter(), task.scene
    workload = build_changing(task.seed, scene.requests)
    interval_ns = workload.duration_ns // (2 * PER_HALF)
    settings = TunerSettings(rehearsal_interval_ns=interval_ns, rehearsal_share=1.0)
    window = WINDOW * len(workload.chunk.times_ns) / (2 * PER_HALF)
    tuner = RehearsedTuner(settings, round(TAKES * interval_ns / window / len(CANDIDATES)))
    auto = play(workload, AUTO, {}, tuner=tuner)
    scores = {each.name: play(workload, each.scheduler, each.settings).value for each in CANDIDATES}
    best = max(scores, key=lambda name: scores[name])
    row = {
        "seed": task.seed,
        "auto": auto.value,
        **scores,
        "best": scores[best],
        "by": best,
        "margin": round(auto.value - scores[OURS], 5),
        "switches": sum(entry.event == "scheduler changed" for entry in tuner.journal),
        "rehearsals": tuner.calls,
        "requests": auto.sent,
        "traits": workload.traits.summary(),
    }
    return row, auto.sent * (len(scores) + 1), time.perf_counter() - begin


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    margins = np.array([row["margin"] for row in rows])
    leads = np.array([row["best"] - row[OURS] for row in rows])
    recovered = float(margins.sum() / leads.sum()) if leads.sum() > 0 else 1.0
    return [
        Bar("least margin of auto over the default", float(margins.min()), TOLERANCE),
        Bar("part of the lead of the best scheduler in hindsight that auto recovers", round(recovered, 3), RECOVERED),
    ]
