"""Distance of the provisioner and of iGniter's Algorithm 1 from the cheapest plan, and from lower bounds."""

from __future__ import annotations

from itertools import chain, combinations, product
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.random_workloads import random_workloads
from horologe_experiments.igniter.t4 import assumed_t4
from horologe_experiments.igniter.table3 import TABLE_3, V100
from horologe_planning.provisioning.exact_sharing import cheapest_partition, feasible_sets
from horologe_planning.provisioning.placement import RULES
from horologe_planning.provisioning.provisioner import empty_fleets, fleet_choices, place_all, provision
from horologe_planning.provisioning.share_tables import ShareTables
from horologe_planning.provisioning.workloads import DEFAULT_OPTIONS, ProvisioningOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_planning.provisioning.fleet import Fleet
    from horologe_planning.provisioning.workloads import GpuType, Workload

TYPES = {"v100": [V100], "v100 and t4": [V100, assumed_t4()]}
EXACT = 1.05
LARGEST_SET = 3
"""Workloads of a set that is tried with all batch sizes."""


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
    batch_workloads: int
    """Workloads whose sets are tried with all batch sizes."""


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
        missed, rescued = _rescued(random_workloads(rng, scene.batch_workloads), LARGEST_SET)
        facts = {
            "workloads": "iGniter's four models, 0.05 to 1 times the highest rate, 1 to 2.2 times the shortest SLO"
            " of Table 3",
            "exact": "all sets that fit on one GPU, and the cheapest partition (HiGHS), for the batch sizes that need"
            " the least share alone",
            "other batch sizes": f"{missed} sets of two and three of {scene.batch_workloads} workloads fit by their"
            f" shares alone but not together; {rescued} of them fit with any other batch sizes",
            "greedy": "the best of the provisioner's rules",
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
    options = ProvisioningOptions(free_margin=0.0)
    plan = provision(workloads, kinds, options)
    fleets = empty_fleets(workloads, kinds, options)
    costs = {
        "provision": plan.report.cost_per_hour,
        "greedy": min(
            _greedy_cost(choice, rule) for choice in fleet_choices(workloads, kinds, options) for rule in RULES
        ),
        "igniter": _greedy_cost(fleets, "least-interference"),
    }
    ratios = {f"{name}_over_bound": cost / plan.report.cost_bound for name, cost in costs.items()}
    optimum = _cheapest(workloads, kinds, options) if exact else None
    if optimum is None:
        return ratios
    return {f"{name}_over_exact": cost / optimum for name, cost in costs.items()}


def _greedy_cost(fleets: Sequence[Fleet], rule: str) -> float:
    return sum(fleet.cost for fleet in place_all(fleets, rule))


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


def _rescued(workloads: list[Workload], largest: int) -> tuple[int, int]:
    """Return the sets that fit alone but not together, and how many of them fit with other batch sizes."""
    kind, model = V100, INTERFERENCE_MODELS[DEFAULT_OPTIONS.model]
    chosen, every = (ShareTables(kind, model, DEFAULT_OPTIONS.margin) for _ in range(2))
    chosen.append(workloads)
    sizes = [[msgspec.structs.replace(load, batch_sizes=(size,)) for size in load.batches] for load in workloads]
    every.append([variant for variants in sizes for variant in variants])
    rows = [np.flatnonzero(every.least[at : at + len(own)] <= kind.whole) + at
            for own, at in zip(sizes, np.cumsum([0, *map(len, sizes[:-1])]), strict=True)]  # fmt: skip
    missed = rescued = 0
    for members in chain.from_iterable(combinations(range(len(workloads)), count) for count in range(2, largest + 1)):
        least = chosen.least[list(members)]
        if least.sum() > kind.whole or chosen.allocate(np.array([members]), least[None]).fits[0]:
            continue
        missed += 1
        variants = np.array(list(product(*(rows[row] for row in members))))
        variants = variants[every.least[variants].sum(axis=1) <= kind.whole]
        rescued += bool(len(variants) and every.allocate(variants, every.least[variants]).fits.any())
    return missed, rescued


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
