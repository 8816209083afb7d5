"""The tournament: all schedulers play the same random workloads, and the default is compared with the best other."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.service.settings import SettingsError
from horologe_controller.schedulers import SCHEDULERS
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.tournament.match import Score, play
from horologe_experiments.tournament.separate_queues import SEPARATE, register_separate_queues
from horologe_experiments.tournament.traits import FIXED, find_traits
from horologe_experiments.tournament.workload import build_workload
from horologe_sim.comparison.bound import score_bound
from horologe_sim.scenario.table_reading import convert_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

OURS = "horologe"
AWARE = (OURS, "orloj")
"""Schedulers that know distributions by application and length. The others also play with a queue for each kind."""
NEARLY, BEHIND = -0.005, -0.02
WITHIN, AHEAD = 0.95, 0.005
OF_BOUND = 0.93
SERVABLE, OF_MEAN = 1.2, 0.5
"""Bars: a margin of at least `NEARLY` in the part `WITHIN` of the workloads, of `BEHIND` in all, `AHEAD` on average.
The mean score is `OF_BOUND` of the mean bound. In the part `WITHIN` of those with loads below `SERVABLE`, the worst
model is served `OF_MEAN` of the mean."""
LEAST_WORKLOADS = 20
"""Random workloads from which on their bars count: shares and means of fewer are chance."""
WORST = 10
COLUMNS = (
    "workload", "best other", "by", "margin", "bound", "score / bound", "late", "timed_out", "refused", "worst model",
    "its worst model", "best effort", "requests", "load", "traits",
)  # fmt: skip
"""Columns of a row beside the schedulers and variants."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of tournament."""

    description: str
    workloads: tuple[str, ...]
    """Seeds and names of fixed workloads; empty: the fixed ones, and `seeds` seeds from `first_seed` on."""
    first_seed: Annotated[int, msgspec.Meta(ge=0)]
    seeds: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    requests: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    """Requests of a workload, about."""
    processes: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    schedulers: tuple[str, ...]
    variants: dict[str, dict[str, Any]] = {}
    """Name -> settings of the controller: further columns, which count as none of the others."""
    timelines: str = ""
    """Folder for a Perfetto trace of each scheduler in each workload; empty: none."""


class Task(NamedTuple):
    """A workload to be played by all."""

    name: str
    scene: Scene


class Tournament:
    """Shares of requests in time by workload and scheduler."""

    name = "tournament"
    title = "Random workloads: the default scheduler against the best other of each"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. `seed` has no effect: a workload is drawn from the seed in its name."""
        scene = load_scene(self.name, Scene, quick, changes)
        _check_scene(scene)
        names = scene.workloads or (*FIXED, *map(str, range(scene.first_seed, scene.first_seed + scene.seeds)))
        try:
            tasks = [Task(find_traits(name).name, scene) for name in names]
        except ValueError as error:
            raise SettingsError(f"scene {self.name}: {error}") from error
        if not tasks:
            raise SettingsError("scene tournament: seeds: got 0 and no workloads, wanted at least one of either")
        cost, rows = Cost(), []
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for row, requests, wall_s in pool.map(_play_workload, tasks):
                rows.append(row)
                cost.requests += requests
                cost.wall_s += wall_s
                progress(len(rows) / len(tasks), str(row["workload"]))
        facts = {
            "score": "share of the requests with deadlines that are answered in time; in closed loops, answers in time "
            "as a part of what the best batches could serve",
            "best other": f"the best of {', '.join(name for name in scene.schedulers if name != OURS)}; where a "
            "scheduler without distributions knows applications or lengths, also with a queue for each",
            "worst model": "smallest share in time of a model with 20 requests, as a part of the mean of all models; "
            "its worst model: under the best other",
            "bound": "no schedule serves more, even one that knows all but the noise (bound.py); none for closed loops",
        }
        drawn = sum(task.name not in FIXED for task in tasks)
        if drawn < LEAST_WORKLOADS:
            facts["bars"] = f"none for {drawn} random workloads, which are too few: {LEAST_WORKLOADS} are needed"
        series = {f"The {WORST} least margins": [_worst_row(row, scene) for row in sorted(rows, key=_margin)[:WORST]]}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows), series, cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw the distribution of the margins, and the default's score against the best other's."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        margins = np.sort([row["margin"] for row in findings.rows])
        left.plot(margins, np.arange(1, len(margins) + 1) / len(margins), marker="." if len(margins) < WORST else "")
        left.axvline(0.0, color="k", lw=0.8)
        left.set(xlabel="margin over the best other", ylabel="share of the workloads")
        right.plot([0, 1], [0, 1], "k--", lw=0.8)
        right.scatter([row["best other"] for row in findings.rows], [row[OURS] for row in findings.rows], s=8)
        right.set(xlabel="best other", ylabel=f"score of {OURS}")
        return figure


def _check_scene(scene: Scene) -> None:
    """Raise SettingsError for an unknown scheduler, a missing default, or a variant with a wrong name or setting."""
    for scheduler in scene.schedulers:
        if scheduler not in SCHEDULERS:
            wanted = f"wanted some of {', '.join(SCHEDULERS)}"
            raise SettingsError(f"scene tournament: schedulers: got {scheduler!r}, {wanted}")
    if OURS not in scene.schedulers:
        wanted = f"wanted {OURS!r} among them, with which the others are compared"
        raise SettingsError(f"scene tournament: schedulers: got {', '.join(scene.schedulers) or 'none'}, {wanted}")
    for name, settings in scene.variants.items():
        where = f"scene tournament: variants.{name}"
        if name in SCHEDULERS or name in COLUMNS or name.endswith(SEPARATE):
            raise SettingsError(f"{where}: got the name of another column, wanted a new name")
        controller = convert_table(where, settings, ControllerSettings)
        if controller.scheduler not in SCHEDULERS:
            raise SettingsError(
                f"{where}.scheduler: got {controller.scheduler!r}, wanted one of {', '.join(SCHEDULERS)}"
            )


def _play_workload(task: Task) -> tuple[dict[str, Any], int, float]:
    """Return the row of a workload, the number of simulated requests, and the seconds taken."""
    begin, scene = time.perf_counter(), task.scene
    workload = build_workload(find_traits(task.name), scene.requests)
    scores: dict[str, Score] = {}
    for scheduler in scene.schedulers:
        scores[scheduler] = play(workload, scheduler, {}, _timeline(task, scheduler))
    others = [scheduler for scheduler in scene.schedulers if scheduler not in AWARE]
    if any(len(distributions) > 1 for distributions in workload.distributions.values()):
        for scheduler in others:
            name = register_separate_queues(scheduler)
            scores[name] = play(workload, name, {}, _timeline(task, name))
    best = max((name for name in scores if name != OURS), key=lambda name: scores[name].value, default=OURS)
    for name, settings in scene.variants.items():
        scores[name] = play(workload, OURS, settings, _timeline(task, name))
    ours, bound = scores[OURS], None if workload.loops else score_bound(workload)
    row = {
        "workload": task.name,
        **{name: score.value for name, score in scores.items()},
        "best other": scores[best].value,
        "by": best,
        "margin": round(ours.value - scores[best].value, 5),
        "bound": None if bound is None else round(bound, 5),
        "score / bound": None if not bound else round(ours.value / bound, 4),
        "late": ours.late,
        "timed_out": ours.timed_out,
        "refused": ours.refused,
        "worst model": ours.worst_model,
        "its worst model": scores[best].worst_model,
        **{f"{name}: worst model": scores[name].worst_model for name in scene.variants},
        "best effort": ours.best_effort,
        "requests": ours.sent,
        "load": round(workload.traits.load, 2),
        "traits": workload.traits.summary(),
    }
    return row, sum(score.sent for score in scores.values()), time.perf_counter() - begin


def _timeline(task: Task, scheduler: str) -> Path | None:
    if not task.scene.timelines:
        return None
    folder = Path(task.scene.timelines)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{task.name} {scheduler}.json"


def _margin(row: Mapping[str, Any]) -> float:
    return float(row["margin"])


def _worst_row(row: Mapping[str, Any], scene: Scene) -> dict[str, Any]:
    """Return the row with the command that replays it. The number of requests is one of a workload's parameters."""
    command = (
        f"horologe experiment tournament --set 'workloads=[\"{row['workload']}\"]' --set requests={scene.requests} "
        "--set timelines=timelines"
    )
    return {key: row[key] for key in ("workload", "margin", "by", OURS, "best other", "traits")} | {"replay": command}


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    fixed = [_margin(row) for row in rows if row["workload"] in FIXED]
    fixed = fixed if len(fixed) == len(FIXED) else []
    drawn = np.array([_margin(row) for row in rows if row["workload"] not in FIXED])
    bars = [Bar("fixed workloads: least margin", min(fixed), NEARLY)] if fixed else []
    if drawn.size >= LEAST_WORKLOADS:
        part = round(float((drawn >= NEARLY).mean()), 4)
        bars += [
            Bar(f"share of the random workloads with a margin of at least {NEARLY:g}", part, WITHIN),
            Bar("random workloads: least margin", float(drawn.min()), BEHIND),
            Bar("random workloads: mean margin", round(float(drawn.mean()), 5), AHEAD),
        ]
    bounded = [row for row in rows if row["bound"] and row["workload"] not in FIXED]
    if bounded and drawn.size >= LEAST_WORKLOADS:
        part = sum(row[OURS] for row in bounded) / sum(row["bound"] for row in bounded)
        bars.append(Bar("random workloads, open loops: mean score / mean bound", round(part, 4), OF_BOUND))
    servable = [
        row["worst model"] >= OF_MEAN for row in rows if row["workload"] not in FIXED and row["load"] < SERVABLE
    ]
    if servable and drawn.size >= LEAST_WORKLOADS:
        part = round(sum(servable) / len(servable), 4)
        bars.append(
            Bar(f"loads below {SERVABLE}: worst model at {OF_MEAN} of the mean, share of workloads", part, WITHIN)
        )
    return bars
