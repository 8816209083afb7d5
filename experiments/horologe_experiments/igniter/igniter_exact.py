"""Distance of the provisioner and of iGniter's Algorithm 1 from the cheapest plan, and from lower bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.random_workloads import random_workloads
from horologe_experiments.igniter.t4 import assumed_t4
from horologe_experiments.igniter.table3 import TABLE_3, V100
from horologe_tuner.core.provisioning.exact_sharing import cheapest_partition, feasible_sets
from horologe_tuner.core.provisioning.provisioner import (
    ProvisioningOptions,
    empty_fleets,
    fleet_choices,
    place_all,
    provision,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_tuner.core.provisioning.share_tables import GpuType
    from horologe_tuner.core.provisioning.workloads import Workload

TYPES = {"v100": [V100], "v100 and t4": [V100, assumed_t4()]}
EXACT = 1.05


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-exact."""

    description: str
    sizes: tuple[int, ...]
    """Numbers of workloads that are also planned exactly."""
    cases: int
    """Random cases of each size."""
    large: tuple[int, ...]
    """Numbers of workloads that are compared with a lower bound."""
    large_cases: int


class IgniterExact:
    """Cost over the exact optimum and over lower bounds, for random workloads."""

    name = "igniter-exact"
    title = "Cost of plans over the exact optimum, and over lower bounds for many workloads"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rng = np.random.default_rng(seed)
        jobs = [(kinds, count, scene.cases, True) for kinds in TYPES for count in scene.sizes]
        jobs += [(kinds, count, scene.large_cases, False) for kinds in TYPES for count in scene.large]
        rows = [_row("v100", [TABLE_3], exact=True) | {"cases": "Table 3"}]
        for number, (kinds, count, cases, exact) in enumerate(jobs):
            progress(number / len(jobs), f"{count} workloads on {kinds}")
            rows.append(_row(kinds, [random_workloads(rng, count) for _ in range(cases)], exact=exact))
        facts = {
            "workloads": "iGniter's four models, 0.05 to 1 times the highest rate, 1 to 2.2 times the shortest SLO"
            " of Table 3",
            "exact": "all sets that fit on one GPU, and the cheapest partition (HiGHS), for the batch sizes that need"
            " the least share alone",
            "greedy": "`provision` without its exact solution",
            "igniter": "Algorithm 1 with the same batch sizes and coefficients",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw the ratios of the costs to the optimum, or to the lower bound, by number of workloads."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(1, len(TYPES))
        for panel, kinds in zip(axes, TYPES, strict=True):
            rows = [row for row in findings.rows if row["types"] == kinds and row["cases"] != "Table 3"]
            for name in ("provision", "greedy", "igniter"):
                for reference, style in (("exact", "-o"), ("bound", ":s")):
                    points = [(row["workloads"], row[f"{name}_over_{reference}"]) for row in rows
                              if row.get(f"{name}_over_{reference}")]  # fmt: skip
                    if points:
                        panel.plot(*zip(*points, strict=True), style, label=f"{name} / {reference}, mean", ms=4)
            panel.set(title=kinds, xlabel="workloads", xscale="log", ylabel="cost ratio")
            panel.legend(fontsize=6)
        return figure


def _row(kinds: str, cases: Sequence[list[Workload]], *, exact: bool) -> dict[str, Any]:
    """Return mean and largest ratios of the costs over the cases."""
    ratios: dict[str, list[float]] = {}
    for workloads in cases:
        for name, ratio in _ratios(workloads, TYPES[kinds], exact=exact).items():
            ratios.setdefault(name, []).append(ratio)
    row: dict[str, Any] = {"types": kinds, "workloads": len(cases[0]), "cases": len(cases)}
    for name, values in ratios.items():
        row[name] = round(float(np.mean(values)), 4)
        row[f"{name}_max"] = round(max(values), 4)
    return row


def _ratios(workloads: list[Workload], kinds: list[GpuType], *, exact: bool) -> dict[str, float]:
    """Return the ratios of the costs of three provisioners to the optimum, or to the lower bound."""
    options = ProvisioningOptions()
    plan = provision(workloads, kinds, options)
    fleets = empty_fleets(workloads, kinds, options)
    costs = {
        "provision": plan.cost_per_hour,
        "greedy": provision(workloads, kinds, msgspec.structs.replace(options, exact_workloads=0)).cost_per_hour,
        "igniter": sum(fleet.cost for fleet in place_all(fleets, "least-interference")),
    }
    ratios = {f"{name}_over_bound": cost / plan.cost_bound for name, cost in costs.items()}
    optimum = _cheapest(workloads, kinds, options) if exact else None
    if optimum is None:
        return ratios
    return {f"{name}_over_exact": cost / optimum for name, cost in costs.items()}


def _cheapest(workloads: list[Workload], kinds: list[GpuType], options: ProvisioningOptions) -> float | None:
    """Return the cost of the cheapest partition, over the sets of GPU types. None if one has too many sets."""
    costs = []
    for fleets in fleet_choices(workloads, kinds, options):
        sets = feasible_sets(fleets)
        if sets is None:
            return None
        chosen, bound = cheapest_partition(fleets, sets)
        cost = sum(fleets[shared.fleet].price for shared in chosen)
        if not chosen or bound < cost * (1 - 1e-6):
            return None
        costs.append(cost)
    return min(costs)


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    exact = [row for row in rows if "provision_over_exact" in row]
    bars = [
        Bar("provision / exact, largest", max(row["provision_over_exact_max"] for row in exact), EXACT, "at most"),
        Bar("greedy / exact, largest mean", max(row["greedy_over_exact"] for row in exact), EXACT, "at most"),
    ]
    bound = [row for row in rows if "provision_over_bound" in row]
    for row in bound:
        name = f"{row['workloads']} workloads on {row['types']}: provision / lower bound, largest"
        bars.append(Bar(name, row["provision_over_bound_max"], 1.2, "at most"))
    return bars
