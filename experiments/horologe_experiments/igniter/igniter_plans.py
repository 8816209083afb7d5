"""iGniter's Table 3 provisioned by each strategy (Fig. 14, 18, 19), and on a cheaper GPU type (Fig. 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.plan_figure import draw_shares, figure_rows
from horologe_experiments.igniter.provisioning_baselines import judge, plan_ffd_with_allocation, violations
from horologe_experiments.igniter.t4 import assumed_t4
from horologe_experiments.igniter.table3 import PAPER_V100, STRATEGIES, TABLE_3, V100
from horologe_planning.provisioning.device_shares import device_counts, shares_by_device
from horologe_planning.provisioning.explanation import explain_plan
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import ProvisioningOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_planning.provisioning.device_shares import PlacedShare
    from horologe_planning.provisioning.workloads import GpuType
    from horologe_planning.report import SharedPlans

TRUTH = INTERFERENCE_MODELS["pcie-contention"]
PAPER_W2 = {"ffd+": "GPU1", "ffd++": "GPU5, 15%", "gpu-lets+": "GPU2, 40%", "igniter": "GPU6, 7.5%"}
"""Place of W2 in Fig. 19."""
PAPER_T4S = 15


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-plans."""

    description: str
    margin: float
    """Safety margin of our plan in standard deviations of the prediction error."""
    t4_compute: tuple[float, ...]
    """Assumed ratios of the computing resources of a V100 and a T4."""


class IgniterPlans:
    """GPUs, dollars and predicted violations of each strategy for the twelve workloads."""

    name = "igniter-plans"
    title = "iGniter Fig. 14 and 18 to 20: plans of the twelve workloads by five strategies, and on a cheaper GPU"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Deterministic: the seed changes nothing."""
        scene = load_scene(self.name, Scene, quick, changes)
        plans = {name: strategy.plan(scene.margin) for name, strategy in STRATEGIES.items()}
        plans["ffd++"] = plan_ffd_with_allocation(TABLE_3, PAPER_V100)
        judged = {name: judge(plan, [V100], TRUTH) for name, plan in plans.items()}
        rows = [_row(name, plans[name], judged[name]) for name in plans]
        progress(0.5, "GPU types")
        types = _type_rows(scene)
        options = ProvisioningOptions(margin=scene.margin)
        explanation = explain_plan(plans["ours"], TABLE_3, [V100], options)
        facts = {
            "own violations": "by the strategy's own model and the coefficients of the paper's 11 runs (ours: its own)",
            "violations": "by the model that is better on pairs that were not fitted, with coefficients from all"
            " measurements; the paper measured them. `igniter-run` runs the plans",
            "next cheaper plan": explanation.cheaper.text() if explanation.cheaper else "none",
            "safety margin": f"{plans['ours'].report.margin:g} standard deviations at the cost of the "
            f"{scene.margin:g} wanted",
            "cost without the safety margin": f"${explanation.cost_without_margin:.2f} per hour",
            "T4": "assumed coefficients: twice a V100's times, three times the part that no share shortens. The paper"
            f" needs {PAPER_T4S} T4s, $7.89 per hour",
        }
        series = {
            "plans": figure_rows(judged), "shares (Fig. 18)": _share_rows(plans),
            "place of W2 (Fig. 19)": [_w2_row(name, plan) for name, plan in plans.items()],
            "GPU types (Fig. 20)": types,
        }  # fmt: skip
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows, types, plans["ours"]), series)

    def draw(self, findings: Findings) -> Figure:
        """Draw the shares of each GPU by strategy."""
        return draw_shares(findings.series["plans"])


def _row(name: str, plan: SharedPlans, judged: SharedPlans) -> dict[str, Any]:
    strategy = STRATEGIES.get(name)
    gpus, missed = (strategy.paper_gpus, strategy.paper_violations) if strategy else (None, None)
    return {
        "strategy": name, "gpus": len(shares_by_device(plan.plans)), "dollars": round(plan.report.cost_per_hour, 2),
        "shares_percent": round(sum(one.placement.percent for one in _shares(plan)), 1),
        "own_violations": len(violations(plan)), "violations": len(violations(judged)),
        "violated": " ".join(sorted(violations(judged), key=lambda name: int(name[1:]))),
        "paper_gpus": gpus, "paper_dollars": None if gpus is None else round(gpus * V100.gpu.price_per_hour, 2),
        "paper_violations": missed,
    }  # fmt: skip


def _shares(plan: SharedPlans) -> list[PlacedShare]:
    return [share for shares in shares_by_device(plan.plans).values() for share in shares]


def _share_rows(plans: Mapping[str, SharedPlans]) -> list[dict[str, Any]]:
    """Return share and batch of each workload by strategy."""
    rows: dict[str, dict[str, Any]] = {workload.name: {"workload": workload.name} for workload in TABLE_3}
    for name, plan in plans.items():
        for share in _shares(plan):
            rows[share.workload][name] = f"{share.placement.percent:g}%, {share.placement.max_batch}"
    return list(rows.values())


def _w2_row(name: str, plan: SharedPlans) -> dict[str, Any]:
    devices = list(shares_by_device(plan.plans).values())
    number, share = next(
        (number, share) for number, shares in enumerate(devices, start=1) for share in shares if share.workload == "W2"
    )
    neighbours = " ".join(other.workload for other in devices[number - 1] if other is not share)
    place = f"GPU{number}, {share.placement.percent:g}%"
    return {"strategy": name, "W2": place, "neighbours": neighbours, "paper": PAPER_W2.get(name)}


def _type_rows(scene: Scene) -> list[dict[str, Any]]:
    """Return the plans on V100s, on T4s, and on both."""
    options = ProvisioningOptions(margin=scene.margin, free_margin=0.0)
    rows = [_type_row("v100", None, [V100], options)]
    for compute in scene.t4_compute:
        t4 = assumed_t4(compute)
        rows += [_type_row("t4", compute, [t4], options), _type_row("v100 and t4", compute, [V100, t4], options)]
    return rows


def _type_row(
    name: str, compute: float | None, kinds: Sequence[GpuType], options: ProvisioningOptions
) -> dict[str, Any]:
    plan = provision(TABLE_3, kinds, options)
    split = sorted((p.name for p in plan.plans if len(p.placements) > 1), key=lambda name: int(name[1:]))
    counts = ", ".join(f"{count} x {kind}" for kind, count in device_counts(plan.plans).items())
    return {
        "types": name, "v100_over_t4": compute, "gpus": counts, "dollars": round(plan.report.cost_per_hour, 2),
        "bound": round(plan.report.cost_bound, 2), "on several GPUs": " ".join(split),
        "violations": len(violations(plan)),
    }  # fmt: skip


def _bars(rows: list[dict[str, Any]], types: list[dict[str, Any]], ours: SharedPlans) -> list[Bar]:
    own = next(row for row in rows if row["strategy"] == "ours")
    others = [row["dollars"] for row in rows if not row["violations"]]
    both = [row["dollars"] for row in types if row["types"] == "v100 and t4"]
    single = [row["dollars"] for row in types if row["types"] == "t4"]
    return [
        Bar("ours: GPUs", own["gpus"], 6, "at most"),
        Bar("ours: predicted violations", own["violations"], 0, "at most"),
        Bar("ours: cost / lower bound", round(ours.report.cost_per_hour / ours.report.cost_bound, 4), 1.05, "at most"),
        Bar("ours: cost / cheapest without violations", round(own["dollars"] / min(others), 4), 1, "at most"),
        Bar("mixture: cost / cheapest single type, largest", round(max(
            cost / min(alone, types[0]["dollars"]) for cost, alone in zip(both, single, strict=True)
        ), 4), 1, "at most"),
        Bar("predicted violations on any type", max(row["violations"] for row in types), 0, "at most"),
    ]  # fmt: skip
