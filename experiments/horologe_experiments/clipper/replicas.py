"""Clipper's Fig. 6 (section 4.4.1): one model on one to four devices, each with its own batch limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.clockwork.catalogue_models import CatalogueModel, batch_limited_rate
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.experiment_world import ChargedCluster
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.harness.runner import BatchLog, SimulationRuns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

PAPER_QPS = {1: 19_500, 4: 77_000}
PAPER_SPEEDUP = {1: 1.0, 4: 3.95}
"""Speedup over a network of 10 Gbit/s. With 1 Gbit/s the second remote replica saturates the network."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of replicas."""

    description: str
    replicas: tuple[int, ...]
    slo_ns: int
    base_ms: float
    row_ms: float
    largest: int
    overload: float
    warmup_ns: int
    duration_ns: int
    cluster: ChargedCluster

    @property
    def model(self) -> CatalogueModel:
        """Return the model whose batches take `base_ms` plus `row_ms` per row."""
        exec_ms = {size: self.base_ms + size * self.row_ms for size in range(1, self.largest + 1)}
        return CatalogueModel("gpu", 16.0, 5.0, exec_ms)


class Replicas:
    """Throughput by number of devices."""

    name = "replicas"
    title = "Throughput against the number of replicas"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        cost = Cost()
        runs = SimulationRuns(len(scene.replicas), cost, progress)
        rows: list[dict[str, Any]] = []
        for replicas in scene.replicas:
            rows.append(_row(scene, replicas, rows[0]["throughput"] if rows else 0.0, seed, runs))
        facts = {
            "device": f"a batch takes {scene.base_ms:g} ms plus {scene.row_ms:g} ms per row, SLO "
            f"{scene.slo_ns / 1e6:g} ms; the load is {scene.overload:g} times what batches within the SLO serve",
            "network": "messages take time, tensors take none: compare with the paper's run over 10 Gbit/s",
        }
        last = rows[-1]
        name = f"throughput of {last['replicas']} / of {rows[0]['replicas']}"
        bars = [Bar(name, last["speedup"], PAPER_SPEEDUP.get(last["replicas"], 0.98 * last["replicas"]))]
        bars += [
            Bar(
                "p99 of a batch in ms, maximum", max(row["batch_p99_ms"] for row in rows), scene.slo_ns / 1e6, "at most"
            )
        ]
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw total and per-device throughput beside the paper's."""
        from horologe_experiments.harness.plots import make_figure

        figure, (axes,) = make_figure(1, 1)
        replicas = [row["replicas"] for row in findings.rows]
        axes.plot(replicas, [row["throughput"] for row in findings.rows], marker="o", label="total")
        axes.plot(replicas, [row["each"] for row in findings.rows], "--", marker="o", label="per device")
        axes.plot(list(PAPER_QPS), list(PAPER_QPS.values()), "k*", label="paper")
        axes.set(xlabel="replicas", ylabel="requests a second", ylim=(0, None), xticks=replicas)
        axes.legend()
        return figure


def _row(scene: Scene, replicas: int, first: float, seed: int, runs: SimulationRuns) -> dict[str, Any]:
    rate = scene.overload * replicas * batch_limited_rate(scene.model, scene.slo_ns / 1e6)
    setting = msgspec.structs.replace(scene.cluster, devices=replicas)
    ledger = IntervalLedger(["all"], 1, scene.duration_ns, scene.warmup_ns)
    stream = PoissonStream(lambda step: np.array([rate]), scene.duration_ns, lambda step: scene.slo_ns)
    batches = BatchLog()
    chunks = poisson([stream], scene.duration_ns, [seed, 3])
    label, models = f"{replicas} replicas", scene.model.copies(1)
    world = runs.simulate(label, setting, models, ledger, seed, scene.duration_ns, chunks, watch=batches.record_result)
    counts, took_ms = batches.between(world.begin_ns + scene.warmup_ns, world.begin_ns + scene.duration_ns)
    throughput = float(counts.sum()) / ((scene.duration_ns - scene.warmup_ns) / 1e9)
    return {
        "replicas": replicas,
        "throughput": round(throughput),
        "speedup": round(throughput / (first or throughput), 3),
        "each": round(throughput / replicas),
        "rows": round(float(counts.mean()), 1),
        "batch_p99_ms": round(float(np.quantile(took_ms, 0.99)), 2),
        "request_p99_ms": ledger.lines[0].times.quantile_ms(0.99),
        "paper": PAPER_QPS.get(replicas),
        "paper_speedup": PAPER_SPEEDUP.get(replicas),
    }
