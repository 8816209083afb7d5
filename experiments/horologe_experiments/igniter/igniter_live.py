"""Our plan of iGniter's Table 3 on a running system: the tuner starts a worker process per share, and clients send."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_common.core.protocol import instance
from horologe_common.status import HorologeError
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.igniter_run import IN_TIME, INTERFERENCE, workload_requests
from horologe_experiments.igniter.table3 import STRATEGIES, TABLE_3, V100
from horologe_experiments.live.local_services import READY_S, local_services
from horologe_load.load_loops import open_loop
from horologe_load.samples import Outcome, Samples, no_garbage_collection
from horologe_load.targets import ModelInput, SdkTarget
from horologe_planning.provisioning.plan_prediction import with_batch_times
from horologe_tuner.core.sharing.targets import collect_targets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe import Client
    from horologe_experiments.harness.experiment import Progress
    from horologe_planning.provisioning.workloads import Placement, SharingPlan, Workload

POLL_S = 0.2
MANIFEST = """runtime = "emulated"
batch_sizes = {sizes}
slo = "{slo_ms:g}ms"
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 1] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, 1] }}]
[emulated]
load_ms = 10
weights_mb = 1
[emulated.sharing]
model = "{model}"
seed = {seed}
time_factor = {factor:g}
"""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-live."""

    description: str
    time_factor: float
    seconds: int
    warmup_s: float
    margin: float
    shadow_percent: float
    gpus: int
    """Run the shares of the first GPUs of the plan only."""


class IgniterLive:
    """Predicted and live latency of each workload."""

    name = "igniter-live"
    title = "iGniter's twelve workloads on shares as processes: predicted beside measured"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        import uvloop

        from horologe import Client

        scene = load_scene(self.name, Scene, quick, changes)
        plan = with_batch_times(STRATEGIES["ours"].plan(scene.margin), [V100], INTERFERENCE)
        total = len(plan.gpus)
        plan = slow_down(msgspec.structs.replace(plan, gpus=plan.gpus[: scene.gpus]), scene.time_factor)
        placed = {share.workload for gpu in plan.gpus for share in gpu.placements}
        workloads = [workload for workload in TABLE_3 if workload.name in placed]
        with tempfile.TemporaryDirectory() as folder:
            models = Path(folder) / "models"
            for gpu in plan.gpus:
                for placement in gpu.placements:
                    write_model(models, placement, scene.time_factor, seed)
            sets = (f"worker.cache={folder}", f"tuner.state={folder}", f"tuner.shadow_percent={scene.shadow_percent}")
            with local_services(models, sets, tuner=True) as system:
                progress(0.1, "starting")
                system.wait_ready(READY_S)
                with Client(system.topology.clients[0]) as client:
                    apply_shares(client, plan)
                progress(0.4, f"{scene.seconds} s of requests")
                samples = uvloop.run(_send(system.topology.clients[0], workloads, scene, seed))
        rows = [_row(workload, plan, samples[workload.name], scene) for workload in workloads]
        violated = [row["workload"] for row in rows if row["in_time"] < IN_TIME]
        facts = {
            "time": f"emulated GPUs {scene.time_factor:g} times as slow, SLOs as much longer, rates as much lower",
            "serving": "`horologe up` with a tuner, which starts a worker process per share; requests over the SDK",
            "violated": ", ".join(violated) or "none",
        }
        bars = [
            Bar("GPUs of our plan", total, 6, "at most"), Bar("violations", len(violated), 0, "at most"),
        ]  # fmt: skip
        return Findings(self.name, self.title, seed, quick, facts, rows, bars)

    def draw(self, findings: Findings) -> Figure:
        """Draw SLO, P99 and predicted execution of each workload."""
        from horologe_experiments.harness.plots import make_figure

        figure, (panel,) = make_figure(1, 1)
        places = np.arange(len(findings.rows))
        kinds = (("slo_ms", "SLO"), ("p99_ms", "P99"), ("predicted_ms", "predicted execution"))
        for at, (key, label) in enumerate(kinds):
            panel.bar(places + 0.27 * (at - 1), [row[key] for row in findings.rows], 0.27, label=label)
        panel.set_xticks(places, [row["workload"] for row in findings.rows], fontsize=7)
        panel.set(ylabel="ms")
        panel.legend(fontsize=7)
        return figure


def slow_down(plan: SharingPlan, factor: float) -> SharingPlan:
    """Return the plan for GPUs that are `factor` times as slow, with SLOs as much longer and rates as much lower."""
    return msgspec.structs.replace(
        plan,
        gpus=tuple(
            msgspec.structs.replace(gpu, placements=tuple(_slow_placement(share, factor) for share in gpu.placements))
            for gpu in plan.gpus
        ),
    )


def _slow_placement(share: Placement, factor: float) -> Placement:
    return msgspec.structs.replace(
        share, rate=share.rate / factor, slo_ms=share.slo_ms * factor, latency_ms=share.latency_ms * factor,
        throughput=share.throughput / factor, deviation_ms=share.deviation_ms * factor,
        exec_ns={size: round(time_ns * factor) for size, time_ns in share.exec_ns.items()},
    )  # fmt: skip


def write_model(repository: Path, share: Placement, factor: float, seed: int) -> None:
    """Write the emulated model of a workload, with the workload's name. `share` is slowed down by `factor`."""
    folder = repository / share.workload / "1"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = list(range(1, share.batch + 1))
    text = MANIFEST.format(sizes=sizes, slo_ms=share.slo_ms, model=share.model, seed=seed, factor=factor)
    (folder / "model.toml").write_text(text)


def apply_shares(client: Client, plan: SharingPlan, timeout_s: float = READY_S) -> None:
    """Apply a sharing plan once the tuner is connected, and wait for the workers of its shares. Raises TimeoutError."""
    document, end_s, applied = msgspec.json.encode(plan), time.monotonic() + timeout_s, False
    wanted = {share.worker for target in collect_targets(plan).values() for share in target.shares}
    missing = wanted
    while time.monotonic() < end_s:
        try:
            if not applied:
                client.tune("apply", document)
                applied = True
            connected = {instance(share.worker).partition("/")[2] for share in client.describe().shares}
            if not (missing := wanted - connected):
                return
        except HorologeError:
            pass  # the tuner is still connecting
        time.sleep(POLL_S)
    raise TimeoutError(f"workers: got none for {', '.join(sorted(missing))} after {timeout_s:g} s")


async def _send(endpoint: str, workloads: Sequence[Workload], scene: Scene, seed: int) -> dict[str, Samples]:
    """Send the workloads at constant rates. Return the samples by workload."""
    from horologe import AsyncClient

    row, samples = np.ones((1, 1), np.float32), {workload.name: Samples() for workload in workloads}
    rng = np.random.default_rng([seed, 5])
    async with AsyncClient(endpoint) as client:
        loops = []
        for workload in workloads:
            slow = msgspec.structs.replace(workload, rate=workload.rate / scene.time_factor)
            arrivals = workload_requests(slow, "even", s(scene.seconds), rng).tolist()
            slo_ns = ms(workload.slo_ms * scene.time_factor)
            target = SdkTarget(client, lambda index, name=workload.name: ModelInput(name, row), slo_ns, from_due=False)  # type: ignore[misc]
            loops.append(open_loop(target, samples[workload.name], arrivals))
        with no_garbage_collection():
            await asyncio.gather(*loops)
    return samples


def _row(workload: Workload, plan: SharingPlan, samples: Samples, scene: Scene) -> dict[str, Any]:
    share = next(share for gpu in plan.gpus for share in gpu.placements if share.workload == workload.name)
    begin_ns = samples.due_ns[0] + s(scene.warmup_s)
    took_ms = np.array([
        (done - sent) / 1e6 if outcome == Outcome.OK else np.inf
        for due, sent, done, outcome in zip(
            samples.due_ns, samples.sent_ns, samples.done_ns, samples.outcomes, strict=True
        )
        if due >= begin_ns
    ])  # fmt: skip
    p50_ms, p99_ms = np.quantile(took_ms, [0.5, 0.99], method="higher")
    in_time = float((took_ms <= share.slo_ms).mean())
    return {
        "workload": workload.name, "model": workload.model, "share": share.share_percent, "batch": share.batch,
        "rate": share.rate, "slo_ms": share.slo_ms, "predicted_ms": round(share.latency_ms, 1),
        "p50_ms": round(float(p50_ms), 1), "p99_ms": round(float(p99_ms), 1) if np.isfinite(p99_ms) else -1.0,
        "in_time": round(in_time, 4), "requests": len(took_ms),
    }  # fmt: skip
