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
from horologe_load.samples import ClientOutcome, Samples, no_garbage_collection
from horologe_load.targets import ModelInput, SdkTarget
from horologe_planning.plan import encode_plans
from horologe_planning.provisioning.device_shares import shares_by_device, with_batch_times
from horologe_tuner.core.standby.share_workers import worker_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe import Client
    from horologe_experiments.harness.experiment import Progress
    from horologe_planning.plan import Placement, Plan
    from horologe_planning.provisioning.workloads import Workload

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
        plans = with_batch_times(STRATEGIES["ours"].plan(scene.margin).plans, [V100], INTERFERENCE)
        devices = shares_by_device(plans)
        placed = {share.workload for shares in list(devices.values())[: scene.gpus] for share in shares}
        plans = slow_down([plan for plan in plans if plan.name in placed], scene.time_factor)
        workloads = [workload for workload in TABLE_3 if workload.name in placed]
        with tempfile.TemporaryDirectory() as folder:
            models = Path(folder) / "models"
            for plan in plans:
                write_model(models, plan, scene.time_factor, seed)
            sets = (f"worker.cache={folder}", f"tuner.state={folder}", f"tuner.shadow_percent={scene.shadow_percent}")
            with local_services(models, sets, tuner=True) as system:
                progress(0.1, "starting")
                system.wait_ready(READY_S)
                with Client(system.topology.clients[0]) as client:
                    apply_shares(client, plans)
                progress(0.4, f"{scene.seconds} s of requests")
                samples = uvloop.run(_send(system.topology.clients[0], workloads, scene, seed))
        rows = [_row(workload, plans, samples[workload.name], scene) for workload in workloads]
        violated = [row["workload"] for row in rows if row["in_time"] < IN_TIME]
        facts = {
            "time": f"emulated GPUs {scene.time_factor:g} times as slow, SLOs as much longer, rates as much lower",
            "serving": "`horologe up` with a tuner, which starts a worker process per share; requests over the SDK",
            "violated": ", ".join(violated) or "none",
        }
        bars = [
            Bar("GPUs of our plan", len(devices), 6, "at most"), Bar("violations", len(violated), 0, "at most"),
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


def slow_down(plans: Sequence[Plan], factor: float) -> tuple[Plan, ...]:
    """Return the plans for GPUs that are `factor` times as slow, with SLOs as much longer and rates as much lower."""
    return tuple(
        msgspec.structs.replace(
            plan, rate=plan.rate / factor, slo_ns=round(plan.slo_ns * factor),
            placements=tuple(_slow_placement(share, factor) for share in plan.placements),
        )
        for plan in plans
    )  # fmt: skip


def _slow_placement(share: Placement, factor: float) -> Placement:
    times = {name: round(getattr(share, name) * factor) for name in ("slo_ns", "latency_ns", "deviation_ns")}
    exec_ns = tuple((size, round(time_ns * factor)) for size, time_ns in share.exec_ns)
    return msgspec.structs.replace(share, throughput=share.throughput / factor, exec_ns=exec_ns, **times)


def write_model(repository: Path, plan: Plan, factor: float, seed: int) -> None:
    """Write the emulated model of a workload, with the workload's name. `plan` is slowed down by `factor`."""
    share = plan.placements[0]
    folder = repository / share.model / "1"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = list(range(1, share.max_batch + 1))
    slo_ms, model = plan.slo_ns / 1e6, share.coefficients
    text = MANIFEST.format(sizes=sizes, slo_ms=slo_ms, model=model, seed=seed, factor=factor)
    (folder / "model.toml").write_text(text)


def apply_shares(client: Client, plans: Sequence[Plan], timeout_s: float = READY_S) -> None:
    """Apply plans on shares once the tuner is connected, and wait for their workers. Raises TimeoutError."""
    document, end_s, applied = encode_plans(plans), time.monotonic() + timeout_s, False
    wanted = {worker_name(share) for plan in plans for share in plan.shares}
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


def _row(workload: Workload, plans: Sequence[Plan], samples: Samples, scene: Scene) -> dict[str, Any]:
    plan = next(plan for plan in plans if plan.name == workload.name)
    share = plan.placements[0]
    begin_ns = samples.due_ns[0] + s(scene.warmup_s)
    took_ms = np.array([
        (done - sent) / 1e6 if outcome == ClientOutcome.OK else np.inf
        for due, sent, done, outcome in zip(
            samples.due_ns, samples.sent_ns, samples.done_ns, samples.outcomes, strict=True
        )
        if due >= begin_ns
    ])  # fmt: skip
    p50_ms, p99_ms = np.quantile(took_ms, [0.5, 0.99], method="higher")
    in_time = float((took_ms <= plan.slo_ns / 1e6).mean())
    return {
        "workload": workload.name, "model": workload.model, "share": share.percent, "batch": share.max_batch,
        "rate": plan.rate, "slo_ms": plan.slo_ns / 1e6, "predicted_ms": round(share.latency_ns / 1e6, 1),
        "p50_ms": round(float(p50_ms), 1), "p99_ms": round(float(p99_ms), 1) if np.isfinite(p99_ms) else -1.0,
        "in_time": round(in_time, 4), "requests": len(took_ms),
    }  # fmt: skip
