"""ORLOJ's tables 2 to 5 (appendix A): what each row can come to, beside what the paper's systems made of it."""

from __future__ import annotations

import functools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.orloj import llm
from horologe_experiments.orloj.cases import SYSTEMS, rows
from horologe_experiments.orloj.contest import contest, margin, undecided
from horologe_experiments.orloj.critical import LLM, rates
from horologe_experiments.orloj.workloads import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.orloj.workloads import Workload

GAP = 0.03
WORSE = -0.01
SHOWN = 0.8
"""The load that is drawn."""
LLM_SLOS = (1.5, 2.0, 3.0, 4.0, 5.0)


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: float
    """Of the critical rate."""
    seeds: int
    bound_seeds: int
    """Of them, those for which the best schedule and the bound are computed."""
    hidden_seeds: int
    """Of them, those for which the bound for hidden execution times is."""
    undecided_seeds: int = 0
    """So many instead, for a row where the mean says `horologe` is not worse but the 95% limit leaves it open."""
    searched: bool = False
    """Whether the others also run with their knobs searched for each row."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    loads: tuple[Load, ...]
    requests: int
    """Of a run."""
    processes: int
    cases: tuple[str, ...] = ()
    """Only these; none: all, and the language model."""


class Line(NamedTuple):
    """A line of the table. `build`: its workload by rate, requests and seed."""

    case: str
    table: int
    """Of the paper; 0: not there."""
    slo_x_p99: float
    paper: tuple[float | None, ...]
    build: Callable[[float, int, int], Workload]


class OrlojTables:
    name = "orloj-tables"
    title = "Requests of unknown length: ORLOJ's tables 2 to 5"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Raises `SettingsError` without numba."""
        scene = load_scene(self.name, Scene, quick, changes)
        chosen = [number for number, line in enumerate(lines()) if line.case in (scene.cases or rates())]
        todo = [(number, load, scene.requests, seed) for load in scene.loads for number in chosen]
        cost, found = Cost(), []
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for row, requests, wall_s in pool.map(_row, todo):
                found.append(row)
                cost.requests += requests
                cost.wall_s += wall_s
                progress(len(found) / len(todo), f"{row['case']} x{row['slo_x_p99']:g} at {row['load']:g}")
        facts = {"arrivals": f"{scene.requests} requests a run, 480 minutes of the Azure trace"}
        return Findings(self.name, self.title, seed, quick, facts, found, _bars(scene, found), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Ours and the bound of each row, beside the others as they are here."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(2, 2)
        for one, table in zip(axes, (2, 3, 4, 5), strict=True):
            shown = [row for row in findings.rows if row["table"] == table and row["load"] == SHOWN]
            for field in ("bound", "horologe+", "horologe", "orloj", "clockwork", "nexus", "clipper"):
                one.plot([row[field] for row in shown], marker=".", ls="", label=field)
            one.set(title=f"table {table}", xlabel="row", ylabel="finish rate", ylim=(0, 1.05))
        axes[0].legend(fontsize=7)
        return figure


def lines() -> list[Line]:
    """The 125 rows, and the language model at the same SLOs."""
    found = [
        Line(row.case.name, row.case.table, row.slo_x_p99, row.paper, functools.partial(build, row)) for row in rows()
    ]
    return found + [Line(LLM, 0, slo, (None,) * 4, functools.partial(llm.build, slo)) for slo in LLM_SLOS]


def _row(todo: tuple[int, Load, int, int]) -> tuple[dict[str, Any], int, float]:
    """(a row of the table, requests simulated, seconds)."""
    from horologe_experiments.orloj.bounds.clairvoyant import solve  # needs numba

    number, load, requests, seed = todo
    line, begin = lines()[number], time.perf_counter()
    rate = load.share * rates()[line.case]
    seeds = [seed + more for more in range(load.seeds)]
    found = contest(line.build, rate, requests, seeds, load.searched)
    if load.undecided_seeds > load.seeds and any(undecided(found, lengths, WORSE) for lengths in (False, True)):
        seeds = [seed + more for more in range(load.undecided_seeds)]
        found = contest(line.build, rate, requests, seeds, load.searched)
    workloads = [line.build(rate, requests, one) for one in seeds[: load.bound_seeds]]
    solved = [solve(workload) for workload in workloads]
    best, bound = (float(np.mean(one)) for one in zip(*((one.rate, one.bound_rate) for one in solved), strict=True))
    hidden = _hidden(workloads[: load.hidden_seeds]) if line.table else None
    margins = {lengths: margin(found, lengths) for lengths in (False, True)}
    row = {
        "case": line.case,
        "table": line.table,
        "slo_x_p99": line.slo_x_p99,
        "load": load.share,
        "seeds": len(seeds),
        **{f"paper {one}": rate for one, rate in zip(SYSTEMS, line.paper, strict=True)},
        **{name: round(float(np.mean(rates)), 4) for name, rates in found.items()},
        "margin": round(margins[False][0], 4),
        "against": margins[False][1],
        "margin+": round(margins[True][0], 4),
        "against+": margins[True][1],
        "best": round(best, 4),
        "bound": round(bound, 4),
        "gap": round(bound - best, 4),
        "hidden_bound": hidden,
    }
    return row, requests * len(seeds) * len(found), time.perf_counter() - begin


def _hidden(workloads: Sequence[Workload]) -> float | None:
    """On the expected finish rate. There is none for the language model: part of its execution times is known."""
    from horologe_experiments.orloj.bounds.hidden import hidden_bound

    if not workloads:
        return None
    return round(float(np.mean([hidden_bound(one) / one.requests for one in workloads])), 4)


def _bars(scene: Scene, found: list[dict[str, Any]]) -> list[Bar]:
    """The language model's rows stand beside the paper's: they are in the means, and in no count."""
    bars = []
    for load in scene.loads:
        here = [row for row in found if row["load"] == load.share]
        at = f"at {load.share:g} of the critical rate"
        if load.searched:
            bars += [
                Bar(f"rows where another may finish {-WORSE:g} more, lengths {known}, {at}", count, 0, "at most")
                for known, field in (("known", "margin+"), ("hidden", "margin"))
                for count in [sum(row[field] <= WORSE for row in here if row["table"])]
            ]
            part = float(np.mean([row["horologe+"] for row in here]) / np.mean([row["bound"] for row in here]))
            bars.append(Bar(f"part of the clairvoyant bound, lengths known, {at}", round(part, 4), 0.95))
        gap = round(float(np.mean([row["gap"] for row in here])), 4)
        bars.append(Bar(f"gap between best schedule and bound, {at}", gap, GAP, "at most"))
    return bars
