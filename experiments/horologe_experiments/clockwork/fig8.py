"""Clockwork's Fig. 8 (section 6.5): the Azure Functions trace on 4,026 models, 4,860 r/s, an SLO of 100 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_experiments.clockwork.trace_replay import (
    Scene,
    TraceRun,
    describe_replay,
    error_rows,
    minute_rows,
    replay_row,
    simulate_replay,
)
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.runner import SimulationRuns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

MISSED = 4511 / 140_000_000
"""Most requests that are answered late or never, as a share: those of the paper that timed out."""
PAPER = {
    "run": "paper",
    "devices": 6,
    "slo_ms": 100.0,
    "sent": 140_000_000,
    "offered": 4860.6,
    "goodput": 4860.5,
    "satisfaction": 0.99997,
    "timed_out": 4511,
    "late": 0,
    "missed": round(MISSED, 7),
    "max_ms": 100.0,
    "cold_share": 0.037,
    "cold_rate": 178.0,
    "cold_models_a_minute": 2190,
}
"""Six workers. By section 6.1 each has two V100s."""


class Fig8:
    """Satisfaction, latency and cold starts by minute."""

    name = "fig8"
    title = "Is it predictable? The Azure trace on 4,026 models"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        cost = Cost()
        replays = scene.replays()
        runs = SimulationRuns(len(replays), cost, progress)
        rows, bars = [], []
        facts: dict[str, str] = {}
        series: dict[str, Any] = {}
        for number, run in enumerate(replays):
            ledger, trace = simulate_replay(run, runs, seed)
            rows.append(replay_row(run, ledger, trace))
            if run.wanted:
                bars += _bars(rows[-1], run)
            facts[run.name] = describe_replay(run, trace)
            if not number:
                series = {"minutes": minute_rows(run, ledger), "errors": error_rows(ledger)}
        return Findings(self.name, self.title, seed, quick, facts, [*rows, PAPER], bars, series, cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw the five panels of the first run, by minute."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(5, 1, sharex=True)
        minutes = findings.series["minutes"]
        numbers = [row["minute"] for row in minutes]
        curves = (
            (("offered", "goodput"), "(a) r/s", 4860.6),
            (("p50_ms", "p99_ms", "max_ms"), "(b) latency (ms)", None),
            (("rows_a_batch",), "(c) batch size", None),
            (("cold_models",), "(d) models with a cold start", 2190),
            (("cold_rate",), "(e) cold starts (r/s)", 178),
        )
        for panel, (fields, label, paper) in zip(axes, curves, strict=True):
            for field in fields:
                panel.plot(numbers, [row[field] for row in minutes], marker=".", label=field)
            if paper:
                panel.axhline(paper, color="k", ls="--", lw=0.8, label="paper, mean")
            panel.set(ylabel=label, ylim=(0, None))
            panel.legend(fontsize=7)
        axes[-1].set(xlabel="minute")
        return figure


def _bars(row: dict[str, Any], run: TraceRun) -> list[Bar]:
    return [
        Bar(f"{run.name}: share within 100 ms", row["satisfaction"], run.wanted),
        Bar(f"{run.name}: share answered after 100 ms or never", row["missed"], MISSED, "at most"),
        Bar(f"{run.name}: share of cold starts", row["cold_share"], run.wanted_cold),
    ]
