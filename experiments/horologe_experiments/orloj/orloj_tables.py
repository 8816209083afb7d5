"""ORLOJ's tables 2 to 5 (appendix A): finish rates of each row, upper bounds, and the values of the paper."""

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
from horologe_experiments.orloj.cases import SYSTEMS, table_rows
from horologe_experiments.orloj.contest import margin, run_contest
from horologe_experiments.orloj.critical import LLM, critical_rates
from horologe_experiments.orloj.workloads import build_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.orloj.workloads import Workload

GAP = 0.03
"""Largest mean gap between the best schedule and the bound."""
WORSE = -0.01
"""A row counts as lost if another scheduler may finish this much more."""
SHOWN = 0.8
"""Load of the figure, as a share of the critical rate."""
LLM_SLOS = (1.5, 2.0, 3.0, 4.0, 5.0)
TUNED_CASES = ("two-modal", "three-modal", "blenderbot-convAI")
"""Cases on which constants of `horologe` were chosen, with seeds that are not used here."""


class TableLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A load at which all rows are simulated."""

    share: float
    """Share of the critical rate."""
    seeds: int
    """Seeds of a row. With fewer than five, its margin is a mean instead of a lower limit."""
    bound_seeds: int
    """Seeds for which the best schedule and the bound are computed."""
    hidden_seeds: int
    """Seeds for which the bound for hidden execution times is computed."""
    llm_seeds: int = 0
    """Seeds of a row of the language model, whose finish rates vary more; 0: `seeds`."""
    searched: bool = False
    """Also run the other schedulers with settings searched for each row."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of orloj-tables."""

    description: str
    loads: tuple[TableLoad, ...]
    requests: int
    """Requests of a run."""
    processes: int
    cases: tuple[str, ...] = ()
    """Names of cases; empty: all cases, and the language model."""


class TableLine(NamedTuple):
    """A line of the result. `build` makes its workload from rate, requests and seed."""

    case: str
    table: int
    """Number of the table in the paper; 0: not in the paper."""
    slo_x_p99: float
    paper: tuple[float | None, ...]
    build: Callable[[float, int, int], Workload]


class OrlojTables:
    """Finish rates of all schedulers in every row, beside the bounds."""

    name = "orloj-tables"
    title = "Requests of unknown length: ORLOJ's tables 2 to 5"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Raises `SettingsError` without numba."""
        scene = load_scene(self.name, Scene, quick, changes)
        names = scene.cases or critical_rates()
        chosen = [number for number, line in enumerate(table_lines()) if line.case in names]
        tasks = [(number, load, scene.requests, seed) for load in scene.loads for number in chosen]
        cost, rows = Cost(), []
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for row, requests, wall_s in pool.map(_simulate_row, tasks):
                rows.append(row)
                cost.requests += requests
                cost.wall_s += wall_s
                progress(len(rows) / len(tasks), f"{row['case']} x{row['slo_x_p99']:g} at {row['load']:g}")
        facts = {"arrivals": f"{scene.requests} requests a run, 480 minutes of the Azure trace", **_mean_margins(rows)}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw the finish rates and the bound of each row at the load `SHOWN`."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(2, 2)
        for panel, table in zip(axes, (2, 3, 4, 5), strict=True):
            shown = [row for row in findings.rows if row["table"] == table and row["load"] == SHOWN]
            for field in ("bound", "horologe+", "horologe", "orloj", "clockwork", "nexus", "clipper"):
                panel.plot([row[field] for row in shown], marker=".", ls="", label=field)
            panel.set(title=f"table {table}", xlabel="row", ylabel="finish rate", ylim=(0, 1.05))
        axes[0].legend(fontsize=7)
        return figure


def table_lines() -> list[TableLine]:
    """Return the 125 rows, and the language model at the same SLOs."""
    lines = [
        TableLine(row.case.name, row.case.table, row.slo_x_p99, row.paper, functools.partial(build_row, row))
        for row in table_rows()
    ]
    return lines + [TableLine(LLM, 0, slo, (None,) * 4, functools.partial(llm.build_llm, slo)) for slo in LLM_SLOS]


def _simulate_row(task: tuple[int, TableLoad, int, int]) -> tuple[dict[str, Any], int, float]:
    """Return a row of the table, the number of simulated requests, and the seconds taken."""
    from horologe_experiments.orloj.bounds.clairvoyant import solve  # needs numba

    number, load, requests, seed = task
    line, begin = table_lines()[number], time.perf_counter()
    rate = load.share * critical_rates()[line.case]
    seeds = [seed + offset for offset in range(load.seeds if line.table else load.llm_seeds or load.seeds)]
    finished = run_contest(line.build, rate, requests, seeds, load.searched)
    workloads = [line.build(rate, requests, workload_seed) for workload_seed in seeds[: load.bound_seeds]]
    solutions = [solve(workload) for workload in workloads]
    best, bound = (
        float(np.mean(values))
        for values in zip(*((solution.rate, solution.bound_rate) for solution in solutions), strict=True)
    )
    hidden = _mean_hidden_bound(workloads[: load.hidden_seeds]) if line.table else None
    margins = {lengths: margin(finished, lengths) for lengths in (False, True)}
    row = {
        "case": line.case,
        "table": line.table,
        "slo_x_p99": line.slo_x_p99,
        "load": load.share,
        "seeds": len(seeds),
        **{f"paper {system}": rate for system, rate in zip(SYSTEMS, line.paper, strict=True)},
        **{name: round(float(np.mean(rates)), 4) for name, rates in finished.items()},
        "margin": round(margins[False][0], 4),
        "against": margins[False][1],
        "margin+": round(margins[True][0], 4),
        "against+": margins[True][1],
        "best": round(best, 4),
        "bound": round(bound, 4),
        "gap": round(bound - best, 4),
        "hidden_bound": hidden,
    }
    return row, requests * len(seeds) * len(finished), time.perf_counter() - begin


def _mean_hidden_bound(workloads: Sequence[Workload]) -> float | None:
    """Return the mean bound on the expected finish rate; None without workloads.

    The language model has no such bound, because part of its execution times is known.
    """
    from horologe_experiments.orloj.bounds.hidden import hidden_bound

    if not workloads:
        return None
    return round(float(np.mean([hidden_bound(workload) / workload.requests for workload in workloads])), 4)


def _mean_margins(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return mean margins of the cases that constants of `horologe` were chosen on, and of the other cases."""
    shown = [row for row in rows if row["load"] == SHOWN]
    groups = (
        ("mean margin, cases that constants were chosen on", [row for row in shown if row["case"] in TUNED_CASES]),
        ("mean margin, other cases", [row for row in shown if row["case"] not in TUNED_CASES]),
    )
    return {
        name: ", ".join(f"{float(np.mean([row[field] for row in group])):+.4f}" for field in ("margin", "margin+"))
        for name, group in groups
        if group
    }


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    """Return the bars. Rows of the language model count like the others."""
    bars = []
    for load in scene.loads:
        here = [row for row in rows if row["load"] == load.share]
        at = f"at {load.share:g} of the critical rate"
        if load.searched:
            bars += [
                Bar(f"rows where another may finish {-WORSE:g} more, lengths {knowledge}, {at}", count, 0, "at most")
                for knowledge, field in (("known", "margin+"), ("hidden", "margin"))
                for count in [sum(row[field] <= WORSE for row in here)]
            ]
            part = float(np.mean([row["horologe+"] for row in here]) / np.mean([row["bound"] for row in here]))
            bars.append(Bar(f"part of the clairvoyant bound, lengths known, {at}", round(part, 4), 0.95))
        gap = round(float(np.mean([row["gap"] for row in here])), 4)
        bars.append(Bar(f"gap between best schedule and bound, {at}", gap, GAP, "at most"))
    return bars
