"""ORLOJ's tables 2 to 5 (appendix A): what each row can come to, beside what the paper's systems made of it."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_sim.experiment import Bar, Cost, Findings, scene
from horologe_sim.orloj import llm
from horologe_sim.orloj.cases import SYSTEMS, rows
from horologe_sim.orloj.critical import LLM, rates
from horologe_sim.orloj.workloads import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_sim.experiment import Progress
    from horologe_sim.orloj.workloads import Workload

GAP = 0.03
LLM_SLOS = (1.5, 2.0, 3.0, 4.0, 5.0)


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    loads: tuple[float, ...]
    """Shares of the critical rate."""
    requests: int
    """Of a run."""
    seeds: int
    hidden_seeds: int
    """Of them, those for which the bound for hidden execution times is computed."""
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
        place = scene(self.name, Scene, quick, changes)
        cost = Cost()
        todo = [(line, load) for line in lines() if line.case in (place.cases or rates()) for load in place.loads]
        found = []
        for number, (line, load) in enumerate(todo):
            progress(number / len(todo), f"{line.case} x{line.slo_x_p99:g} at {load:g}")
            found.append(_row(line, load, place, seed, cost))
        facts = {"arrivals": f"{place.requests} requests a run, {place.seeds} seeds, 480 minutes of the Azure trace"}
        return Findings(self.name, self.title, seed, quick, facts, found, _bars(place, found), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Best schedule and bound of each row, beside the paper's systems."""
        from horologe_sim.experiments.figures import figure

        drawn, axes = figure(2, 2)
        for one, table in zip(axes, (2, 3, 4, 5), strict=True):
            shown = [row for row in findings.rows if row["table"] == table]
            for field in ("bound", "best", *SYSTEMS):
                one.plot([row[field] for row in shown], marker=".", ls="", label=field)
            one.set(title=f"table {table}", xlabel="row", ylabel="finish rate", ylim=(0, 1.05))
        axes[0].legend(fontsize=7)
        return drawn


def lines() -> list[Line]:
    """The 125 rows, and the language model at the same SLOs."""
    found = [
        Line(row.case.name, row.case.table, row.slo_x_p99, row.paper, functools.partial(build, row)) for row in rows()
    ]
    return found + [Line(LLM, 0, slo, (None,) * 4, functools.partial(llm.build, slo)) for slo in LLM_SLOS]


def _row(line: Line, load: float, place: Scene, seed: int, cost: Cost) -> dict[str, Any]:
    from horologe_sim.orloj.clairvoyant import solve  # needs numba

    rate = load * rates()[line.case]
    begin = time.perf_counter()
    workloads = [line.build(rate, place.requests, seed + more) for more in range(place.seeds)]
    solved = [solve(workload) for workload in workloads]
    hidden = _hidden(workloads[: place.hidden_seeds]) if line.table else None
    cost.wall_s += time.perf_counter() - begin
    cost.requests += place.requests * place.seeds
    best, bound = (float(np.mean(one)) for one in zip(*((one.rate, one.bound_rate) for one in solved), strict=True))
    return {
        "case": line.case, "table": line.table, "slo_x_p99": line.slo_x_p99, "load": load, "rate": round(rate, 3),
        **dict(zip(SYSTEMS, line.paper, strict=True)),
        "best": round(best, 4), "bound": round(bound, 4), "gap": round(bound - best, 4), "hidden_bound": hidden,
    }  # fmt: skip


def _hidden(workloads: Sequence[Workload]) -> float | None:
    """On the expected finish rate. There is none for the language model: part of its execution times is known."""
    from horologe_sim.orloj.hidden import hidden_bound

    if not workloads:
        return None
    return round(float(np.mean([hidden_bound(one) / one.requests for one in workloads])), 4)


def _bars(place: Scene, found: list[dict[str, Any]]) -> list[Bar]:
    return [
        Bar(
            f"gap between best schedule and bound, mean at load {load:g}",
            round(float(np.mean(gaps)), 4),
            GAP,
            "at most",
        )
        for load in place.loads
        if (gaps := [row["gap"] for row in found if row["load"] == load])
    ]
