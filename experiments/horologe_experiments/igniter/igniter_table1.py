"""iGniter's Table 1: three workloads, planned by GSLICE+, gpu-lets+, iGniter and the default provisioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.paper_provisioning import provision_as_paper
from horologe_experiments.igniter.plan_figure import draw_shares, figure_rows
from horologe_experiments.igniter.provisioning_baselines import judge, plan_gpu_lets, plan_gslice, violations
from horologe_experiments.igniter.table3 import PAPER_V100, V100
from horologe_planning.provisioning.device_shares import shares_by_device
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_planning.report import SharedPlans

PAPER = {
    "gslice+": ("A(37.5%, 18) R(30%, 8) V(40%, 6)", "A R"),
    "gpu-lets+": ("A(40%, 23) | R(60%, 18) V(40%, 6)", "A R"),
    "igniter": ("A(10%, 4) R(30%, 8) V(37.5%, 6)", ""),
}
"""Plan and violations. A bar separates GPUs. GSLICE and gpu-lets choose the largest batches in Table 1."""
TRUTH = INTERFERENCE_MODELS["pcie-contention"]


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-table1. `workloads`: name -> (model, requests per second, SLO in ms)."""

    description: str
    workloads: dict[str, tuple[str, float, float]]


class IgniterTable1:
    """Plans and predicted violations of three workloads."""

    name = "igniter-table1"
    title = "iGniter's Table 1: shares and batch sizes of three workloads by four strategies"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Deterministic: the seed changes nothing."""
        scene = load_scene(self.name, Scene, quick, changes)
        workloads = [Workload(name, *row) for name, row in scene.workloads.items()]
        paper_model = INTERFERENCE_MODELS["igniter"]
        plans = {
            "gslice+": plan_gslice(workloads, PAPER_V100, paper_model),
            "gpu-lets+": plan_gpu_lets(workloads, PAPER_V100, paper_model),
            "igniter": provision_as_paper(workloads, PAPER_V100),
            "ours": provision(workloads, [V100]),
        }
        judged = {name: judge(plan, [V100], TRUTH) for name, plan in plans.items()}
        rows = [_row(name, plan) for name, plan in judged.items()]
        ours = judged["ours"]
        bars = [
            Bar("igniter: plan equal to Table 1", float(plan_text(plans["igniter"]) == PAPER["igniter"][0]), 1),
            Bar("ours: GPUs", len(shares_by_device(ours.plans)), 1, "at most"),
            Bar("ours: predicted violations", len(violations(ours)), 0, "at most"),
        ]
        facts = {
            "notation": "workload(share, batch); a bar separates GPUs",
            "violations": "predicted with the coefficients fitted to all measurements; the paper measured them",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, {"plans": figure_rows(judged)})

    def draw(self, findings: Findings) -> Figure:
        """Draw the shares of each GPU by strategy."""
        return draw_shares(findings.series["plans"])


def plan_text(plan: SharedPlans) -> str:
    """Return the plan as in Table 1, with the workloads of a GPU by name."""
    gpus = [
        sorted(f"{one.workload}({one.placement.percent:g}%, {one.placement.max_batch})" for one in shares)
        for shares in shares_by_device(plan.plans).values()
    ]
    return " | ".join(sorted(" ".join(shares) for shares in gpus))


def _row(name: str, plan: SharedPlans) -> dict[str, Any]:
    paper_plan, paper_violations = PAPER.get(name, ("", None))
    return {
        "strategy": name, "plan": plan_text(plan), "gpus": len(shares_by_device(plan.plans)),
        "dollars": round(plan.report.cost_per_hour, 2),
        "violations": " ".join(sorted(violations(plan))) or "none", "paper_plan": paper_plan,
        "paper_violations": paper_violations if paper_violations is None else paper_violations or "none",
    }  # fmt: skip
