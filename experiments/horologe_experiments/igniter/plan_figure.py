"""Figure of the shares of each GPU, a panel for each strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def draw_shares(plans: Mapping[str, Any]) -> Figure:
    """Return the figure of plans as builtins, by strategy. A workload that violates its SLO is hatched."""
    from horologe_experiments.harness.plots import make_figure

    names = sorted(
        {share["workload"] for plan in plans.values() for gpu in plan["gpus"] for share in gpu["placements"]}
    )
    figure, axes = make_figure(-(-len(plans) // 3), min(len(plans), 3))
    for panel, (strategy, plan) in zip(axes, plans.items(), strict=False):
        for number, gpu in enumerate(plan["gpus"], start=1):
            used = 0.0
            for share in gpu["placements"]:
                missed = share["latency_ms"] > share["slo_ms"] / 2 or share["throughput"] < share["rate"] * (1 - 1e-6)
                panel.bar(
                    number, share["share_percent"], bottom=used, color=f"C{names.index(share['workload']) % 10}",
                    edgecolor="white", hatch="///" if missed else "",
                )  # fmt: skip
                panel.text(number, used + share["share_percent"] / 2, share["workload"], ha="center", fontsize=7)
                used += share["share_percent"]
        panel.axhline(100, color="k", ls="--", lw=0.8)
        panel.set(title=f"{strategy}: ${plan['cost_per_hour']:.2f}/h", xlabel="GPU", ylabel="share (%)", ylim=(0, None))
    for panel in axes[len(plans) :]:
        panel.set_visible(False)
    return figure
