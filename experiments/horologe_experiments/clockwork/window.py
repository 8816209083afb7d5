"""The width of an INFER's window (Clockwork section 4.2): noise exceeds narrow windows; wide ones let work run late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.harness.runner import SimulationRuns
from horologe_sim.controller_only.controller_world import ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of window."""

    description: str
    model: str
    copies: int
    rate: float
    slo_ns: int
    widths_ms: tuple[float, ...]
    """Widths of [earliest, latest]; 0 is as wide as deadlines allow."""
    warmup_ns: int
    duration_ns: int
    cluster: ClusterSettings


class Window:
    """Goodput and TOO_LATE results by width of the window."""

    name = "window"
    title = "Goodput and TOO_LATE against the width of the window"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        cost = Cost()
        runs = SimulationRuns(len(scene.widths_ms), cost, progress)
        rows = [_row(scene, width_ms, seed, runs) for width_ms in scene.widths_ms]
        best = max(row["goodput"] for row in rows)
        default = _row_of_default(scene, rows)
        bars = [Bar("goodput of the default width / the best", round(default["goodput"] / best, 4), 0.99)]
        facts = {"load": f"{scene.rate:g} r/s on {scene.cluster.devices} devices, SLO {scene.slo_ns / 1e6:g} ms"}
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw goodput and rejected actions against the width."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        widths = [row["width_ms"] for row in findings.rows]
        left.plot(widths, [row["goodput"] for row in findings.rows], marker="o")
        right.plot(widths, [row["too_late_share"] for row in findings.rows], marker="o", label="TOO_LATE")
        right.plot(widths, [row["timed_out_share"] for row in findings.rows], marker="o", label="timed out")
        left.set(xscale="log", xlabel="width of the window (ms)", ylabel="goodput (r/s)")
        right.set(xscale="log", xlabel="width of the window (ms)", ylabel="share")
        right.legend()
        return figure


def _row(scene: Scene, width_ms: float, seed: int, runs: SimulationRuns) -> dict[str, Any]:
    (variety,) = catalogue_models([scene.model])
    rates = np.full(scene.copies, scene.rate / scene.copies)
    controller = msgspec.structs.replace(scene.cluster.controller, policy={"window_ns": ms(width_ms)})
    setting = msgspec.structs.replace(scene.cluster, controller=controller)
    ledger = IntervalLedger(["all"], scene.copies, scene.duration_ns, scene.warmup_ns)
    stream = PoissonStream(lambda step: rates, scene.duration_ns, lambda step: scene.slo_ns)
    chunks = poisson([stream], scene.duration_ns, [seed, 3])
    runs.simulate(f"{width_ms:g} ms", setting, variety.copies(scene.copies), ledger, seed, scene.duration_ns, chunks)
    (line,), batches = ledger.lines, max(1, sum(ledger.batch_rows))
    return {
        "width_ms": width_ms,
        "goodput": round(line.ok / ((scene.duration_ns - scene.warmup_ns) / 1e9), 1),
        "satisfaction": round(line.satisfaction, 5),
        "too_late": ledger.too_late,
        "too_late_share": round(ledger.too_late / (batches + ledger.too_late), 5),
        "timed_out_share": round(line.lost / max(1, line.sent), 6),
        "p99_ms": line.times.quantile_ms(0.99),
    }


def _row_of_default(scene: Scene, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row whose width is nearest to the width of the scene's controller."""
    default_ms = PolicyParameters().window_ns / 1e6 or max(scene.widths_ms)
    return min(rows, key=lambda row: abs(row["width_ms"] - default_ms))
