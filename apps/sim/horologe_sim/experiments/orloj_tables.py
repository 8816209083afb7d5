"""ORLOJ's tables 2 to 5 (appendix A): what each row can come to, beside what the paper's systems made of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_sim.experiment import Bar, Cost, Findings, scene
from horologe_sim.orloj.cases import SYSTEMS, Row, rows
from horologe_sim.orloj.critical import rates
from horologe_sim.orloj.workloads import build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_sim.experiment import Progress
    from horologe_sim.orloj.clairvoyant import Solution

GAP = 0.03


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    loads: tuple[float, ...]
    """Shares of the critical rate."""
    requests: int
    """Of a run."""
    seeds: int
    cases: tuple[str, ...] = ()
    """Only these; none: all."""


class OrlojTables:
    name = "orloj-tables"
    title = "Requests of unknown length: ORLOJ's tables 2 to 5"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Raises `SettingsError` without numba."""
        place = scene(self.name, Scene, quick, changes)
        cost = Cost()
        todo = [
            (row, load) for row in rows() if not place.cases or row.case.name in place.cases for load in place.loads
        ]
        found = []
        for number, (row, load) in enumerate(todo):
            progress(number / len(todo), f"{row.name} at {load:g}")
            found.append(_row(row, load, place, seed, cost))
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


def _row(row: Row, load: float, place: Scene, seed: int, cost: Cost) -> dict[str, Any]:
    from horologe_sim.orloj.clairvoyant import solve  # needs numba

    rate = load * rates()[row.case.name]
    begin = time.perf_counter()
    solved: list[Solution] = [solve(build(row, rate, place.requests, seed + more)) for more in range(place.seeds)]
    cost.wall_s += time.perf_counter() - begin
    cost.requests += place.requests * place.seeds
    best, bound = (float(np.mean(one)) for one in zip(*((one.rate, one.bound_rate) for one in solved), strict=True))
    return {
        "case": row.case.name, "table": row.case.table, "slo_x_p99": row.slo_x_p99, "load": load,
        "rate": round(rate, 3),
        **dict(zip(SYSTEMS, row.paper, strict=True)),
        "best": round(best, 4), "bound": round(bound, 4), "gap": round(bound - best, 4),
    }  # fmt: skip


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
