"""Clockwork section 6.5, "tighter SLOs at larger scale": 20 devices, the mapping of fig8, 6,174 r/s, 100 and 25 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_experiments.clockwork.trace_replay import Scene, describe_replay, error_rows, replay_row, simulate_replay
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.runner import SimulationRuns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

PAPER = {
    100.0: {"goodput": 6174.0, "late": 0, "p50_ms": 6.28, "p9999_ms": 49.92, "satisfaction": 1.0},
    25.0: {"goodput": 6060.0, "late": 361, "p50_ms": 5.77, "p9999_ms": 21.60, "satisfaction": 0.982, "max_ms": 43.7},
}


class Scale:
    """Latency distributions at two SLOs."""

    name = "scale"
    title = "Tighter SLOs at larger scale: 20 devices"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        cost = Cost()
        replays = scene.replays()
        runs = SimulationRuns(len(replays), cost, progress)
        rows, bars = [], []
        facts: dict[str, str] = {}
        series: dict[str, Any] = {}
        for run in replays:
            ledger, trace = simulate_replay(run, runs, seed)
            measured = replay_row(run, ledger, trace)
            rows.append(measured)
            if run.wanted:
                paper = {"run": "paper", "devices": 20, "slo_ms": measured["slo_ms"]}
                rows.append(paper | PAPER.get(measured["slo_ms"], {}))
                bars.append(Bar(f"{run.name}: share served in time", measured["satisfaction"], run.wanted))
            facts[run.name] = describe_replay(run, trace)
            series[f"{run.name}, {measured['scheduler']}"] = {"counts": _cdf(ledger), "errors": error_rows(ledger)}
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, series, cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw the latency distributions on a logarithmic scale, and two quantiles of the paper."""
        from horologe_experiments.harness.plots import make_figure

        figure, (axes,) = make_figure(1, 1)
        for name, series in findings.series.items():
            axes.plot(*zip(*series["counts"], strict=True), label=name)
        for slo_ms, paper in PAPER.items():
            axes.plot([paper["p50_ms"], paper["p9999_ms"]], [0.5, 1e-4], "*", label=f"paper, {slo_ms:g} ms")
        axes.set(yscale="log", xlabel="latency (ms)", ylabel="share of answers beyond it")
        axes.legend(fontsize=7)
        return figure


def _cdf(ledger: Any) -> list[tuple[float, float]]:
    """Return (latency in ms, share of answers that took longer) at each change."""
    times = ledger.lines[0].times
    points, seen = [], 0
    for bucket, count in sorted(times.counts.items()):
        seen += count
        points.append(((bucket + 1) * times.width_ns / 1e6, 1 - seen / times.total))
    return points
