"""`horologe experiment live`: the same arrivals to the real services on emulated devices, and to the simulator.

What the way of a request takes on this machine without a queue is measured first, one request at a time, and is what
the simulator's network gets; nothing else of it is adapted.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_cli.local.local_services import READY_S, changed_settings, local_services, model_names, write_emulated
from horologe_common.clock import ms, s
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.model_traffic import ModelRequest, ModelTraffic
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.scenario import scenario as scenarios
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_cli.local.local_system import LocalSystem
    from horologe_experiments.harness.experiment import Progress

HOPS = 4
"""Ways between processes on the path of a request: client, edge, worker, edge, client."""
GOODPUT, MEDIAN, TAIL, TAIL_MS = 0.02, 0.05, 0.10, 2.0


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    slo_ns: int
    loads: tuple[float, ...]
    runs: int
    seconds: float
    warmup_s: float
    probes: int
    models: tuple[ModelEntry, ...]
    controller: ControllerSettings = ControllerSettings()

    @property
    def names(self) -> list[str]:
        return [name for entry in self.models for name in model_names(entry)]

    @property
    def capacity(self) -> float:
        """Requests a second of one device that runs full batches of all models in turn."""
        took_ms = [entry.exec_ms[max(entry.exec_ms)] for entry in self.models for _ in model_names(entry)]
        rows = [max(entry.exec_ms) for entry in self.models for _ in model_names(entry)]
        return 1e3 * len(rows) / sum(took / size for took, size in zip(took_ms, rows, strict=True))


class Live:
    name = "live"
    title = "Simulator against reality"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        found, networks = [], []
        with tempfile.TemporaryDirectory() as folder:
            write_emulated(Path(folder), scene.models)
            for number in range(scene.runs):
                for at, load in enumerate(scene.loads):
                    done = (number * len(scene.loads) + at) / scene.runs / len(scene.loads)
                    progress(done, f"run {number + 1}, load {load:g}")
                    both, network = _both(folder, scene, load, [seed, number, at])
                    found.append({"run": number, "load": load} | both)
                    networks.append(network)
        rows = [_median(load, [one for one in found if one["load"] == load]) for load in scene.loads]
        facts = {
            "scenario": f"{len(scene.names)} emulated models, one device; full batches allow {scene.capacity:.0f} r/s",
            "network": _told(networks),
            "runs": f"medians of {scene.runs}, {scene.seconds - scene.warmup_s:g} s each with services of its own; "
            "latencies count from the moment a request was sent, and the simulator is given these moments",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, [*_bars(rows)], {"runs": found})

    def draw(self, findings: Findings) -> Figure:
        """Live beside simulated: goodput, p50, p99."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(1, 3)
        loads = [row["load"] for row in findings.rows]
        for one, field in zip(axes, ("goodput", "p50_ms", "p99_ms"), strict=True):
            for side in ("live", "sim"):
                one.plot(loads, [row[f"{side}_{field}"] for row in findings.rows], marker="o", label=side)
            one.set(xlabel="load / capacity", ylabel=field, ylim=(0, None))
            one.legend()
        return figure


def _both(folder: str, scene: Scene, load: float, seed: list[int]) -> tuple[dict[str, Any], NetworkSettings]:
    """One run: live, then simulated with the network as it was measured just before."""
    import uvloop

    with local_services(folder, changed_settings("controller", scene.controller)) as house:
        house.wait_ready(READY_S)
        ways, ended = uvloop.run(_measure(house, scene, load, seed))
    network = _network(ways, scene)
    return _live(ended, scene) | _simulated(ended, scene, network, seed[0]), network


async def _measure(
    house: LocalSystem, scene: Scene, load: float, seed: list[int]
) -> tuple[list[ModelRequest], list[ModelRequest]]:
    """Requests one at a time, then the load."""
    from horologe import AsyncClient

    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        traffic = ModelTraffic(client, scene.names, scene.slo_ns)
        ways = await traffic.send_one_by_one(scene.probes)
        return ways, await traffic.send_poisson(load * scene.capacity, scene.seconds, np.random.default_rng(seed))


def _told(networks: list[NetworkSettings]) -> str:
    delay_us = statistics.median(one.delay_ns for one in networks) / 1e3
    more_us = statistics.median(one.jitter_ns for one in networks) / 1e3
    return (
        f"measured before each run, one request at a time: {HOPS} hops of {delay_us:.0f} us and on average "
        f"{more_us:.0f} us more (medians)"
    )


def _network(ended: list[ModelRequest], scene: Scene) -> NetworkSettings:
    """What the way takes beside EXEC of one row: its shortest time, and the mean of what comes on top, by hop."""
    alone_ns = {name: ms(entry.exec_ms[1]) for entry in scene.models for name in model_names(entry)}
    ways = sorted(one.took_ns - alone_ns[scene.names[one.model]] for one in ended if one.ok)
    ways = ways[: max(1, len(ways) * 99 // 100)]
    least = ways[len(ways) // 100]
    return NetworkSettings(
        delay_ns=max(1, least // HOPS), jitter_ns=max(1, round(statistics.fmean(ways) - least) // HOPS)
    )


def _live(ended: list[ModelRequest], scene: Scene) -> dict[str, Any]:
    counted = [one for one in ended if one.sent_ns >= s(scene.warmup_s)]
    took = sorted(one.took_ns for one in counted if one.ok and one.took_ns <= scene.slo_ns)
    seconds = scene.seconds - scene.warmup_s
    return _side("live", len(took) / seconds, took[len(took) // 2] / 1e6, took[len(took) * 99 // 100] / 1e6)


def _simulated(ended: list[ModelRequest], scene: Scene, network: NetworkSettings, seed: int) -> dict[str, Any]:
    """The same moments of sending, in the simulator."""
    times = [tuple(one.sent_ns for one in ended if one.model == at) for at in range(len(scene.names))]
    loads = tuple(
        LoadPhase("trace", times_ns=sent, models=(name,), slo_ns=scene.slo_ns)
        for name, sent in zip(scene.names, times, strict=True)
        if sent
    )
    total = scenarios.run_scenario(
        Scenario(
            scene.models,
            loads,
            seed=seed,
            duration_ns=s(scene.seconds + 1),
            warmup_ns=s(scene.warmup_s),
            network=network,
            controller=scene.controller,
        )
    ).total
    return _side("sim", total.ok / (scene.seconds - scene.warmup_s), total.p50_ms, total.p99_ms)


def _side(name: str, goodput: float, p50_ms: float, p99_ms: float) -> dict[str, Any]:
    fields = {"goodput": goodput, "p50_ms": p50_ms, "p99_ms": p99_ms}
    return {f"{name}_{field}": round(value, 3) for field, value in fields.items()}


def _median(load: float, found: list[dict[str, Any]]) -> dict[str, Any]:
    fields = [f"{side}_{what}" for what in ("goodput", "p50_ms", "p99_ms") for side in ("live", "sim")]
    return {"load": load} | {field: round(statistics.median(one[field] for one in found), 3) for field in fields}


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    for row in rows:
        at = f"at {row['load']:g} of capacity"
        for field, wanted in (("goodput", GOODPUT), ("p50_ms", MEDIAN)):
            off = abs(row[f"sim_{field}"] - row[f"live_{field}"]) / row[f"live_{field}"]
            bars.append(Bar(f"{field} {at}, relative difference", round(off, 4), wanted, "at most"))
        off_ms = abs(row["sim_p99_ms"] - row["live_p99_ms"])
        wanted_ms = max(TAIL * row["live_p99_ms"], TAIL_MS)
        bars.append(Bar(f"p99_ms {at}, difference", round(off_ms, 3), round(wanted_ms, 3), "at most"))
    return bars
