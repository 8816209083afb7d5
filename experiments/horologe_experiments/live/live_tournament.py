"""`horologe experiment live-tournament`: workloads of the tournament on the real services, with one emulated device.

All times of a workload (executions, LOADs, SLOs, gaps between arrivals) are longer by the same factor, so that the
overhead of the machine is small beside them. The default and the best other scheduler of the simulation play the same
arrivals in turn.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.models import PAGE_BYTES
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.local_services import READY_S, changed_settings, local_services, write_emulated
from horologe_experiments.live.model_traffic import ModelTraffic
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.tournament import OURS
from horologe_experiments.tournament.traits import FIXED
from horologe_experiments.tournament.workload import build_workload
from horologe_sim.scenario.scenario import ModelEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.tournament.workload import Workload

CLEAR = 0.01
"""Simulated differences below this are noise: then the live ones must be below twice as much."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of live-tournament."""

    description: str
    workloads: tuple[str, ...]
    """Names of fixed workloads of the tournament, without faults. They play on one device."""
    models: int
    time_factor: float
    """How many times as long everything takes as in the tournament."""
    requests: int
    """Requests of a workload, about."""
    runs: int
    schedulers: tuple[str, ...]


class LiveTournament:
    """Share of requests in time, simulated and live, of the default and the best other scheduler."""

    name = "live-tournament"
    title = "Workloads of the tournament on the real services"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows, runs = [], []
        for number, name in enumerate(scene.workloads):
            workload = _build(name, scene)
            progress(number / len(scene.workloads), f"{name}, simulated")
            simulated = {scheduler: play(workload, scheduler, {}).value for scheduler in scene.schedulers}
            other = max((each for each in simulated if each != OURS), key=lambda each: simulated[each])
            live: dict[str, list[float]] = {OURS: [], other: []}
            for turn in range(scene.runs):
                for scheduler in sorted(live, reverse=turn % 2 == 1):
                    progress((number + turn / scene.runs) / len(scene.workloads), f"{name}, live, {scheduler}")
                    live[scheduler].append(_play_live(workload, scheduler, scene.time_factor))
            medians = {scheduler: statistics.median(shares) for scheduler, shares in live.items()}
            rows.append(_row(name, other, simulated, medians))
            runs.append({"workload": name, **live})
        facts = {
            "scenario": f"{scene.models} emulated models on one device; all times are {scene.time_factor:g} times as "
            "long as in the tournament",
            "live": f"medians of {scene.runs} runs on newly started services, with the arrivals of the simulation",
        }
        same = sum(row["same order"] for row in rows)
        bars = [Bar("workloads with the same order, simulated and live", float(same), float(len(rows)))]
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, {"runs": runs})

    def draw(self, findings: Findings) -> Figure:
        """Draw the live difference of the two schedulers against the simulated one."""
        from horologe_experiments.harness.plots import make_figure

        figure, (axes,) = make_figure(1, 1)
        for row in findings.rows:
            simulated, live = (row[f"{side}, {OURS}"] - row[f"{side}, other"] for side in ("simulated", "live"))
            axes.scatter([simulated], [live], s=20)
            axes.annotate(row["workload"], (simulated, live), fontsize=7)
        axes.axline((0, 0), slope=1, color="k", lw=0.8)
        axes.set(xlabel="simulated: default minus best other", ylabel="live")
        return figure


def _build(name: str, scene: Scene) -> Workload:
    traits = msgspec.structs.replace(FIXED[name], devices=(1.0,), models=scene.models, faults=(), noise="none")
    return build_workload(traits, scene.requests)


def _row(name: str, other: str, simulated: Mapping[str, float], live: Mapping[str, float]) -> dict[str, Any]:
    before, after = simulated[OURS] - simulated[other], live[OURS] - live[other]
    same = before * after > 0 if abs(before) >= CLEAR else abs(after) < 2 * CLEAR or before * after > 0
    return {
        "workload": name,
        "other": other,
        f"simulated, {OURS}": simulated[OURS],
        "simulated, other": simulated[other],
        f"live, {OURS}": round(live[OURS], 4),
        "live, other": round(live[other], 4),
        "same order": same,
    }


def _entries(workload: Workload, factor: float) -> list[ModelEntry]:
    """Return the models as emulated ones."""
    entries = []
    for number, model in enumerate(workload.models):
        spec, profile = model.report.spec, model.report.profile
        assert profile is not None
        exec_ms = {size: factor * time_ns / 1e6 for size, time_ns in profile.exec_ns.items()}
        weights_mb = (spec.pages - 0.5) * PAGE_BYTES / 1e6
        load_ms = factor * profile.load_ns / 1e6
        entries.append(ModelEntry(f"m{number}", exec_ms, load_ms=load_ms, weights_mb=weights_mb))
    return entries


def _play_live(workload: Workload, scheduler: str, factor: float) -> float:
    """Return the share of the measured requests that are answered in time."""
    import uvloop

    entries = _entries(workload, factor)
    pages = f"worker.pages_bytes={workload.cluster.pages * PAGE_BYTES}B"
    settings = (*changed_settings("controller", ControllerSettings(scheduler=scheduler)), pages)
    with tempfile.TemporaryDirectory() as folder:
        write_emulated(Path(folder), entries)
        with local_services(folder, settings) as house:
            house.wait_ready(READY_S)
            return uvloop.run(_send(house.topology.clients[0], house.topology.keys or "", workload, entries, factor))


async def _send(endpoint: str, keys: str, workload: Workload, entries: Sequence[ModelEntry], factor: float) -> float:
    from horologe import AsyncClient

    chunk = workload.chunk
    slo_ns = round(factor * chunk.slos_ns[0])
    async with AsyncClient(endpoint, keys=keys or None) as client:
        traffic = ModelTraffic(client, [entry.name for entry in entries], slo_ns)
        requests = await traffic.send_at([round(factor * time_ns) for time_ns in chunk.times_ns], chunk.models)
    begin_ns = factor * workload.warmup_ns
    counted = [request for request in requests if request.sent_ns >= begin_ns]
    return sum(request.ok and request.took_ns <= slo_ns for request in counted) / max(1, len(counted))
