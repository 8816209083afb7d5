"""The estimator beside a live run: emulated workers as processes serve a plan, and the estimator gets the same queries.

Nothing is fitted: the estimator has the times of the emulated models, and knows of no messages between processes. All
times are multiplied by a factor, so that the overhead of the machine is small.
"""

from __future__ import annotations

import random
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import s
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.inferline.cases import configuration_text, pipeline_case
from horologe_experiments.live.local_services import READY_S, apply_plan, benchmark_folder, local_services
from horologe_load.arrivals import gamma
from horologe_load.load_loops import open_loop
from horologe_load.samples import ClientOutcome, Samples, no_garbage_collection
from horologe_load.targets import ModelInput, SdkTarget
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.estimator.estimator import Simulation
from horologe_planning.estimator.pipeline_workload import PipelineTrace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_cli.local.local_system import LocalSystem
    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.inferline.cases import PipelineCase

FOLDER = "emulated-pipelines"
HARDWARE = ("v100", "cpu")
"""Types of the times in `FOLDER`."""
DIFFERENCE = 0.1
SLOW = 0.3
"""Probability of the second stage in the driver of `cascade`."""
UNLIMITED = TrafficEnvelope((s(1), s(60)), (1_000_000, 60_000_000))
"""The tuner does not scale up: the plan is measured as it is."""
SETTLE = "60min"


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Queries to one pipeline: `image-processing` or `cascade`."""

    pipeline: str
    rate: float
    cv: float


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-live."""

    description: str
    traffic: tuple[Traffic, ...]
    slower: float
    """Factor of all execution times and of the SLO."""
    runs: int
    seconds: float
    warmup_s: float
    plan_seconds: float
    scheduler: str = "horologe"
    """Of the live controller. The estimator has InferLine's queues: batches in order of arrival, without waiting."""


class InferLineLive:
    """P99 of the estimator and of a live run, for the same queries."""

    name = "inferline-live"
    title = "InferLine's estimator against reality"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows, runs = [], []
        for number, traffic in enumerate(scene.traffic):
            progress(number / len(scene.traffic), f"{traffic.pipeline}, {traffic.rate:g} queries/s")
            comparison = LiveComparison(traffic, scene, seed)
            own = comparison.run()
            rows.append(comparison.row(own))
            runs += own
        facts = {
            "system": f"`horologe up` with emulated workers; the tuner applies a plan for {scene.plan_seconds:g} s",
            "scheduler": scene.scheduler,
            "times": f"{scene.slower:g} times those of the catalogue, as the SLO",
            "runs": f"medians of {scene.runs}, {scene.seconds - scene.warmup_s:g} s each. Latencies count from "
            "sending. The estimator gets the same times and visits of stages",
        }
        bars = [
            Bar(
                f"{row['pipeline']}, CV {row['cv']:g}: P99, relative difference",
                row["difference"],
                DIFFERENCE,
                "at most",
            )
            for row in rows
        ]
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, {"runs": runs})

    def draw(self, findings: Findings) -> Figure:
        """Draw the P99 of each run, live and estimated."""
        from horologe_experiments.harness.plots import make_figure

        names = [row["pipeline"] for row in findings.rows]
        figure, axes = make_figure(1, len(names))
        for panel, name in zip(axes, names, strict=True):
            for side in ("live", "estimated"):
                values = [run[f"{side}_p99_ms"] for run in findings.series["runs"] if run["pipeline"] == name]
                panel.plot(values, marker="o", label=side)
            panel.set(title=name, xlabel="run", ylabel="P99, ms", ylim=(0, None))
            panel.legend()
        return figure


def slower_case(pipeline: str, factor: float) -> PipelineCase:
    """Return a pipeline on `HARDWARE`, with all times and the SLO multiplied by `factor`."""
    case = pipeline_case(pipeline)
    case = pipeline_case(pipeline, round(factor * case.structure.slo_ns))
    profiles = {
        model: {
            kind: msgspec.structs.replace(
                profile, latency_ns={size: round(factor * time_ns) for size, time_ns in profile.latency_ns.items()}
            )
            for kind, profile in by_hardware.items()
        }
        for model, by_hardware in case.profiles.items()
    }
    return case._replace(profiles=profiles, hardware={name: case.hardware[name] for name in HARDWARE})


def write_slower(source: Path, target: Path, factor: float) -> None:
    """Copy a folder of emulated models and pipelines, with all execution times multiplied by `factor`."""
    shutil.copytree(source, target)
    for manifest in target.glob("*/*/model.toml"):
        lines = manifest.read_text().splitlines()
        scaled = [
            re.sub(r"= ([\d.]+)", lambda found: f"= {factor * float(found[1]):.6g}", line)
            if line.startswith("exec_ms")
            else line
            for line in lines
        ]
        manifest.write_text("\n".join(scaled) + "\n")


class LiveComparison:
    """A pipeline with its plan, served live and estimated."""

    def __init__(self, traffic: Traffic, scene: Scene, seed: int) -> None:
        self._traffic, self._scene, self._seed = traffic, scene, seed
        self._case = slower_case(traffic.pipeline, scene.slower)
        self._sample_ns = gamma(traffic.rate, traffic.cv, scene.plan_seconds, [seed, 1])
        self._plan = self._case.plan(self._sample_ns, seed).plan

    def run(self) -> list[dict[str, Any]]:
        """Start the system, apply the plan, and return a row for each run."""
        import uvloop

        from horologe import Client

        with tempfile.TemporaryDirectory() as folder, self._system(folder) as system:
            system.wait_ready(READY_S)
            with Client(system.topology.clients[0]) as client:
                plan = msgspec.structs.replace(self._plan, envelope=UNLIMITED)
                apply_plan(client, plan, READY_S)
            return [uvloop.run(self._measure(system.topology.clients[0], number)) for number in range(self._scene.runs)]

    def _system(self, folder: str) -> LocalSystem:
        models = Path(folder, "models")
        write_slower(benchmark_folder(FOLDER), models, self._scene.slower)
        sets = (
            f"tuner.settle_ns={SETTLE}", f"worker.cache={folder}/cache", f"tuner.state={folder}",
            f"controller.scheduler={self._scene.scheduler}",
        )  # fmt: skip
        return local_services(models, sets, tuner=True)

    async def _measure(self, endpoint: str, number: int) -> dict[str, Any]:
        """Send one trace, and estimate the same queries. Return the row of the run."""
        from horologe import AsyncClient

        traffic, scene, samples = self._traffic, self._scene, Samples()
        arrivals_ns = gamma(traffic.rate, traffic.cv, scene.seconds, [self._seed, 2, number])
        first = number * len(arrivals_ns)
        queries = [ModelInput(traffic.pipeline, np.full((1, 1), first + i, np.uint64)) for i in range(len(arrivals_ns))]
        async with AsyncClient(endpoint) as client:
            target = SdkTarget(client, queries.__getitem__, self._case.structure.slo_ns, from_due=False)
            with no_garbage_collection():
                await open_loop(target, samples, arrivals_ns.tolist())
        sent_ns = np.array(samples.sent_ns, np.int64)
        answered = np.array(samples.outcomes) == ClientOutcome.OK
        live_ns = np.where(answered, np.array(samples.done_ns, np.int64) - sent_ns, 2 * self._case.structure.slo_ns)
        estimated_ns = self._estimate(sent_ns - sent_ns.min(), first)
        counted = sent_ns >= sent_ns.min() + s(scene.warmup_s)
        return {"pipeline": traffic.pipeline, "run": number} | self._values(live_ns[counted], estimated_ns[counted])

    def _estimate(self, sent_ns: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """Return the estimated latency of each query. Query `i` has the content `first + i`."""
        calls = np.ones((len(sent_ns), len(self._case.structure.stages)), np.int16)
        if self._traffic.pipeline == "cascade":
            calls[:, 1] = [random.Random(first + i).random() < SLOW for i in range(len(sent_ns))]
        order = np.argsort(sent_ns, kind="stable")
        workload = PipelineTrace(self._case.structure, sent_ns[order], self._seed, calls[order])
        simulation = Simulation(workload, self._case.profiles, self._plan.placements)
        simulation.run()
        latencies_ns = np.empty_like(sent_ns)
        latencies_ns[order] = simulation.latencies_ns
        return latencies_ns

    def _values(self, live_ns: NDArray[np.int64], estimated_ns: NDArray[np.int64]) -> dict[str, float]:
        values = {}
        for side, latencies_ns in (("live", live_ns), ("estimated", estimated_ns)):
            values[f"{side}_p50_ms"] = round(float(np.quantile(latencies_ns, 0.5)) / 1e6, 2)
            values[f"{side}_p99_ms"] = round(float(np.quantile(latencies_ns, 0.99)) / 1e6, 2)
            values[f"{side}_attainment"] = round(float((latencies_ns <= self._case.structure.slo_ns).mean()), 5)
        return values

    def row(self, runs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the medians of the runs. `difference`: of the estimated P99 from the live one, as a part of it."""
        fields = [name for name in runs[0] if name not in ("pipeline", "run")]
        medians = {name: round(statistics.median(run[name] for run in runs), 5) for name in fields}
        difference = abs(medians["estimated_p99_ms"] - medians["live_p99_ms"]) / medians["live_p99_ms"]
        names = {"pipeline": self._traffic.pipeline, "rate": self._traffic.rate, "cv": self._traffic.cv}
        return (
            names
            | medians
            | {
                "difference": round(difference, 4),
                "plan": configuration_text(self._plan.placements),
            }
        )
