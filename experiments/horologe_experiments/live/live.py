"""`horologe experiment live`: the same arrivals for the real services on emulated devices, and for the simulator.

The latency of a request without queueing is measured first, one request at a time. It sets the delays of the
simulator's network. Nothing else in the simulator is fitted.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.local_services import (
    READY_S,
    changed_settings,
    local_services,
    model_names,
    write_emulated,
)
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
"""Hops between processes on the path of a request: client, edge, worker, edge, client."""
GOODPUT, MEDIAN, TAIL, TAIL_MS = 0.02, 0.05, 0.10, 2.0
"""Largest relative differences of goodput, p50 and p99. For p99, TAIL_MS are allowed in any case."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of live."""

    description: str
    slo_ns: int
    loads: tuple[float, ...]
    runs: int
    seconds: float
    warmup_s: float
    probes: int
    models: tuple[ModelEntry, ...]
    schedulers: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of all models."""
        return [name for entry in self.models for name in model_names(entry)]

    @property
    def capacity(self) -> float:
        """Return the requests per second of one device that runs full batches of all models in turn."""
        took_ms = [entry.exec_ms[max(entry.exec_ms)] for entry in self.models for _ in model_names(entry)]
        rows = [max(entry.exec_ms) for entry in self.models for _ in model_names(entry)]
        return 1e3 * len(rows) / sum(took / size for took, size in zip(took_ms, rows, strict=True))


class Live:
    """Goodput and latency, live and simulated, by scheduler and load."""

    name = "live"
    title = "Simulator against reality"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        points = list(itertools.product(range(scene.runs), range(len(scene.loads)), scene.schedulers))
        runs, networks = [], []
        with tempfile.TemporaryDirectory() as folder:
            write_emulated(Path(folder), scene.models)
            for done, (number, index, scheduler) in enumerate(points):
                load = scene.loads[index]
                progress(done / len(points), f"run {number + 1}, load {load:g}, {scheduler}")
                both, network = _run_both(folder, scene, scheduler, load, [seed, number, index])
                runs.append({"run": number, "scheduler": scheduler, "load": load} | both)
                networks.append(network)
        rows = [_median_row(*point, runs) for point in itertools.product(scene.schedulers, scene.loads)]
        facts = {
            "scenario": f"{len(scene.names)} emulated models, one device; full batches allow {scene.capacity:.0f} r/s",
            "network": _describe_networks(networks),
            "runs": f"medians of {scene.runs}, {scene.seconds - scene.warmup_s:g} s each on newly started services; "
            "latencies count from the time a request was sent; the simulator gets the same send times",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, [*_bars(rows)], {"runs": runs})

    def draw(self, findings: Findings) -> Figure:
        """Draw goodput, p50 and p99, live beside simulated."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(1, 3)
        for panel, field in zip(axes, ("goodput", "p50_ms", "p99_ms"), strict=True):
            for scheduler in dict.fromkeys(row["scheduler"] for row in findings.rows):
                rows = [row for row in findings.rows if row["scheduler"] == scheduler]
                for side, style in (("live", "-"), ("sim", "--")):
                    values = [row[f"{side}_{field}"] for row in rows]
                    panel.plot([row["load"] for row in rows], values, style, marker="o", label=f"{scheduler}, {side}")
            panel.set(xlabel="load / capacity", ylabel=field, ylim=(0, None))
            panel.legend()
        return figure


def _run_both(
    folder: str, scene: Scene, scheduler: str, load: float, seed: list[int]
) -> tuple[dict[str, Any], NetworkSettings]:
    """Run live, then simulate with the measured network. Return the row of the run, and the network."""
    import uvloop

    controller = ControllerSettings(scheduler=scheduler)
    with local_services(folder, changed_settings("controller", controller)) as house:
        house.wait_ready(READY_S)
        probes, requests = uvloop.run(_measure(house, scene, load, seed))
    network = _fit_network(probes, scene)
    simulated = _simulated_values(requests, scene, controller, network, seed[0])
    return _live_values(requests, scene) | simulated, network


async def _measure(
    house: LocalSystem, scene: Scene, load: float, seed: list[int]
) -> tuple[list[ModelRequest], list[ModelRequest]]:
    """Send the probes one at a time, then the load. Return the requests of both."""
    from horologe import AsyncClient

    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        traffic = ModelTraffic(client, scene.names, scene.slo_ns)
        probes = await traffic.send_one_by_one(scene.probes)
        return probes, await traffic.send_poisson(load * scene.capacity, scene.seconds, np.random.default_rng(seed))


def _describe_networks(networks: list[NetworkSettings]) -> str:
    delay_us = statistics.median(network.delay_ns for network in networks) / 1e3
    jitter_us = statistics.median(network.jitter_ns for network in networks) / 1e3
    return (
        f"measured before each run, one request at a time: {HOPS} hops of {delay_us:.0f} us plus {jitter_us:.0f} us "
        "on average (medians)"
    )


def _fit_network(probes: list[ModelRequest], scene: Scene) -> NetworkSettings:
    """Return the delays per hop: the shortest latency without EXEC, and the mean of what exceeds it."""
    alone_ns = {name: ms(entry.exec_ms[1]) for entry in scene.models for name in model_names(entry)}
    latencies_ns = sorted(probe.took_ns - alone_ns[scene.names[probe.model]] for probe in probes if probe.ok)
    latencies_ns = latencies_ns[: max(1, len(latencies_ns) * 99 // 100)]
    least_ns = latencies_ns[len(latencies_ns) // 100]
    return NetworkSettings(
        delay_ns=max(1, least_ns // HOPS), jitter_ns=max(1, round(statistics.fmean(latencies_ns) - least_ns) // HOPS)
    )


def _live_values(requests: list[ModelRequest], scene: Scene) -> dict[str, Any]:
    counted = [request for request in requests if request.sent_ns >= s(scene.warmup_s)]
    took = sorted(request.took_ns for request in counted if request.ok and request.took_ns <= scene.slo_ns)
    seconds = scene.seconds - scene.warmup_s
    return _side("live", len(took) / seconds, took[len(took) // 2] / 1e6, took[len(took) * 99 // 100] / 1e6)


def _simulated_values(
    requests: list[ModelRequest], scene: Scene, controller: ControllerSettings, network: NetworkSettings, seed: int
) -> dict[str, Any]:
    """Simulate with the same send times. Return the values of the simulation."""
    times = [
        tuple(request.sent_ns for request in requests if request.model == number) for number in range(len(scene.names))
    ]
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
            controller=controller,
        )
    ).total
    return _side("sim", total.ok / (scene.seconds - scene.warmup_s), total.p50_ms, total.p99_ms)


def _side(name: str, goodput: float, p50_ms: float, p99_ms: float) -> dict[str, Any]:
    fields = {"goodput": goodput, "p50_ms": p50_ms, "p99_ms": p99_ms}
    return {f"{name}_{field}": round(value, 3) for field, value in fields.items()}


def _median_row(scheduler: str, load: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
    runs = [run for run in runs if (run["scheduler"], run["load"]) == (scheduler, load)]
    fields = [f"{side}_{field}" for field in ("goodput", "p50_ms", "p99_ms") for side in ("live", "sim")]
    return {"scheduler": scheduler, "load": load} | {
        field: round(statistics.median(run[field] for run in runs), 3) for field in fields
    }


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    for row in rows:
        at = f"{row['scheduler']} at {row['load']:g} of capacity"
        for field, wanted in (("goodput", GOODPUT), ("p50_ms", MEDIAN)):
            off = abs(row[f"sim_{field}"] - row[f"live_{field}"]) / row[f"live_{field}"]
            bars.append(Bar(f"{at}: {field}, relative difference", round(off, 4), wanted, "at most"))
        off_ms = abs(row["sim_p99_ms"] - row["live_p99_ms"])
        wanted_ms = max(TAIL * row["live_p99_ms"], TAIL_MS)
        bars.append(Bar(f"{at}: p99_ms, difference", round(off_ms, 3), round(wanted_ms, 3), "at most"))
    return bars
