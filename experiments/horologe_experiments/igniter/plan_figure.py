"""Figure of the shares of each GPU, a panel for each strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_experiments.igniter.provisioning_baselines import is_violated
from horologe_planning.provisioning.device_shares import shares_by_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_planning.report import SharedPlans


def figure_rows(plans: Mapping[str, SharedPlans]) -> dict[str, Any]:
    """Return cost and shares of each strategy's plan."""
    return {
        strategy: {
            "cost_per_hour": plan.report.cost_per_hour,
            "shares": [
                {
                    "gpu": number, "workload": share.workload, "percent": share.placement.percent,
                    "violated": is_violated(share),
                }
                for number, shares in enumerate(shares_by_device(plan.plans).values(), start=1) for share in shares
            ],
        }
        for strategy, plan in plans.items()
    }  # fmt: skip


def draw_shares(plans: Mapping[str, Any]) -> Figure:
    """Return the figure of `figure_rows`. A workload that violates its SLO is hatched."""
    from horologe_experiments.harness.plots import make_figure

    names = sorted({share["workload"] for plan in plans.values() for share in plan["shares"]})
    figure, axes = make_figure(-(-len(plans) // 3), min(len(plans), 3))
    for panel, (strategy, plan) in zip(axes, plans.items(), strict=False):
        used: dict[int, float] = {}
        for share in plan["shares"]:
            number, bottom = share["gpu"], used.get(share["gpu"], 0.0)
            panel.bar(
                number, share["percent"], bottom=bottom, color=f"C{names.index(share['workload']) % 10}",
                edgecolor="white", hatch="///" if share["violated"] else "",
            )  # fmt: skip
            panel.text(number, bottom + share["percent"] / 2, share["workload"], ha="center", fontsize=7)
            used[number] = bottom + share["percent"]
        panel.axhline(100, color="k", ls="--", lw=0.8)
        panel.set(title=f"{strategy}: ${plan['cost_per_hour']:.2f}/h", xlabel="GPU", ylabel="share (%)", ylim=(0, None))
    for panel in axes[len(plans) :]:
        panel.set_visible(False)
    return figure
