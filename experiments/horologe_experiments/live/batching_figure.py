"""The figure of `horologe experiment batching`: Clipper's Fig. 3, 4 and 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Findings

BATCHING = ("none", "aimd", "quantile")
WIDTH = 0.27
SLO_MS = 20


def draw_batching(findings: Findings) -> Figure:
    """Draw latency profiles, throughput and batch p99 by strategy, and gain and latency by delay."""
    from horologe_experiments.harness.plots import make_figure

    figure, (profiles, throughput, p99, delays) = make_figure(2, 2)
    for name, points in findings.series["profiles"].items():
        profiles.plot(*zip(*points, strict=True), label=name)
    profiles.axhline(SLO_MS, color="k", linestyle="--")
    profiles.set(xscale="log", yscale="log", xlabel="rows of a batch", ylabel="ms (median)")
    profiles.legend(fontsize=7)
    _bars(throughput, findings.rows, "throughput")
    throughput.set(yscale="log", ylabel="rows a second")
    _bars(p99, findings.rows, "batch_p99_ms")
    p99.axhline(SLO_MS, color="k", linestyle="--")
    p99.set(ylabel="ms, p99 of a batch")
    _delays(delays, findings.series["Delayed batches (Fig. 5)"])
    return figure


def _bars(axes: Any, rows: list[dict[str, Any]], field: str) -> None:
    names = list(dict.fromkeys(row["model"] for row in rows))
    for number, batching in enumerate(BATCHING):
        values = [row[field] for row in rows if row["batching"] == batching]
        axes.bar([position + (number - 1) * WIDTH for position in range(len(names))], values, WIDTH, label=batching)
    axes.set_xticks(range(len(names)), names, rotation=30, fontsize=7)
    axes.legend(fontsize=7)


def _delays(axes: Any, rows: list[dict[str, Any]]) -> None:
    beside = axes.twinx()
    for name in dict.fromkeys(row["model"] for row in rows):
        model_rows = [row for row in rows if row["model"] == name]
        delays = [row["delay_ms"] for row in model_rows]
        axes.plot(delays, [row["gain"] for row in model_rows], marker="o", label=f"{name}: gain")
        beside.plot(delays, [row["p99_ms"] for row in model_rows], linestyle=":", label=f"{name}: p99")
    axes.set(xlabel="delay (ms)", ylabel="gain in rows a busy second", ylim=(0, None))
    beside.set(ylabel="ms, p99 of a request (dotted)", ylim=(0, None))
    axes.legend(fontsize=7)
