"""Fig. 8 (section 6.5): the Azure Functions trace on 4,026 models, 4,860 r/s, an SLO of 100 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_experiments.clockwork.trace_replay import Scene, errors, panels, play, row, told
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.runner import SimulationRuns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

COLD_SHARE = 0.03
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
    "max_ms": 100.0,
    "cold_share": 0.037,
    "cold_rate": 178.0,
    "cold_models_a_minute": 2190,
}
"""Six workers; section 6.1 says that each has two V100."""


class Fig8:
    name = "fig8"
    title = "Is it predictable? The Azure trace on 4,026 models"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        cost = Cost()
        runs = SimulationRuns(len(scene.runs), cost, progress)
        rows, bars = [], []
        facts: dict[str, str] = {}
        series: dict[str, Any] = {}
        for number, run in enumerate(scene.all()):
            ledger, laid = play(run, runs, seed)
            rows.append(row(run, ledger, laid))
            if run.wanted:
                bars += _bars(rows[-1], run.wanted)
            facts[run.name] = told(run, laid)
            if not number:
                series = {"minutes": panels(run, ledger), "errors": errors(ledger)}
        return Findings(self.name, self.title, seed, quick, facts, [*rows, PAPER], bars, series, cost)

    def draw(self, findings: Findings) -> Figure:
        """The five panels, minute by minute, of the first run."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(5, 1, sharex=True)
        minutes = findings.series["minutes"]
        at = [one["minute"] for one in minutes]
        lines = (
            (("offered", "goodput"), "(a) r/s", 4860.6),
            (("p50_ms", "p99_ms", "max_ms"), "(b) latency (ms)", None),
            (("rows_a_batch",), "(c) batch size", None),
            (("cold_models",), "(d) models with a cold start", 2190),
            (("cold_rate",), "(e) cold starts (r/s)", 178),
        )
        for one, (fields, label, paper) in zip(axes, lines, strict=True):
            for field in fields:
                one.plot(at, [row[field] for row in minutes], marker=".", label=field)
            if paper:
                one.axhline(paper, color="k", ls="--", lw=0.8, label="paper, mean")
            one.set(ylabel=label, ylim=(0, None))
            one.legend(fontsize=7)
        axes[-1].set(xlabel="minute")
        return figure


def _bars(found: dict[str, Any], wanted: float) -> list[Bar]:
    name = found["run"]
    return [
        Bar(f"{name}: share within 100 ms", found["satisfaction"], wanted),
        Bar(f"{name}: answers after 100 ms", found["late"], 0, "at most"),
        Bar(f"{name}: share of cold starts", found["cold_share"], COLD_SHARE),
    ]
