"""Proactive drop under overload: the selector's pipelines with and without it, in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

FOLDER = Path(__file__).parent / "overload_pipelines"
PIPELINE = "four_stages"
STAGES = ("first", "second", "third", "fourth")
GAIN = 1.3
WASTED = 0.02


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-drop."""

    description: str
    exec_ms: dict[int, float]
    """Execution time of every stage by batch size."""
    loads: tuple[float, ...]
    """Rates as multiples of the capacity: one device per stage, in full batches."""
    wanted: float
    """Load of the bars."""
    duration_ns: int


class InferLineDrop:
    """Goodput and wasted device time by load, on devices of each stage and on shared devices."""

    name = "inferline-drop"
    title = "Pipelines under overload, with and without proactive drop"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        points = [(load, shared, drop) for load in scene.loads for shared in (False, True) for drop in (True, False)]
        rows = []
        for number, (load, shared, drop) in enumerate(points):
            progress(number / len(points), f"load {load:g}, {'with' if drop else 'without'} drop")
            rows.append(_row(scene, load, shared, drop, seed))
        facts = {
            "pipeline": f"{len(STAGES)} stages of equal time, 100 ms SLO, four devices, Poisson arrivals",
            "wasted": "share of the devices' time that was used for queries without an answer",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw goodput and wasted device time by load."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        for devices, drop in dict.fromkeys((row["devices"], row["drop"]) for row in findings.rows):
            line = [row for row in findings.rows if (row["devices"], row["drop"]) == (devices, drop)]
            loads, label = [row["load"] for row in line], f"{devices}, drop {'on' if drop else 'off'}"
            left.plot(loads, [row["goodput"] for row in line], "-" if drop else "--", marker="o", label=label)
            right.plot(loads, [row["wasted"] for row in line], "-" if drop else "--", marker="o", label=label)
        left.set(xlabel="load / capacity", ylabel="queries/s in time", ylim=(0, None))
        right.set(xlabel="load / capacity", ylabel="wasted device time", ylim=(0, None))
        left.legend(fontsize=7)
        return figure


def _row(scene: Scene, load: float, shared: bool, drop: bool, seed: int) -> dict[str, Any]:
    largest = max(scene.exec_ms)
    rate = load * largest * 1e3 / scene.exec_ms[largest]
    cluster = SimulatedCluster(
        Scenario(
            tuple(
                ModelEntry(name, scene.exec_ms, workers=() if shared else (number,))
                for number, name in enumerate(STAGES)
            ),
            (LoadPhase(rate=rate, models=(PIPELINE,)),),
            seed=seed,
            duration_ns=scene.duration_ns,
            workers=len(STAGES),
            pipelines=str(FOLDER),
            selector=SelectorSettings(pipeline_drop=drop),
        )
    )
    cluster.run()
    total = cluster.report().total
    selector = next(core for core in cluster.world.processes["edge"].cores.values() if isinstance(core, Selector))
    selector.refresh_stats()
    answered_s = selector.stats.values["horologe_pipeline_device_seconds_total", PIPELINE, "answered"]
    used_ns = sum(sum(meter.busy_ns.values()) for meter in cluster.meters.values())
    return {
        "load": load,
        "devices": "shared" if shared else "of each stage",
        "drop": drop,
        "offered": round(rate, 1),
        "goodput": round(total.ok * 1e9 / scene.duration_ns, 1),
        "wasted": round(1 - answered_s * 1e9 / max(1, used_ns), 4),
    }


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    for devices in dict.fromkeys(row["devices"] for row in rows):
        on, off = (
            next(row for row in rows if (row["load"], row["devices"], row["drop"]) == (scene.wanted, devices, drop))
            for drop in (True, False)
        )
        gain = on["goodput"] / max(off["goodput"], 1.0)
        bars.append(Bar(f"devices {devices}, load {scene.wanted:g}: goodput with / without drop", round(gain, 2), GAIN))
        bars.append(
            Bar(f"devices {devices}, load {scene.wanted:g}: wasted device time", on["wasted"], WASTED, "at most")
        )
    return bars
