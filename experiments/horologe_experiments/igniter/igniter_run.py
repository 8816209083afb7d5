"""Plans of the twelve workloads of iGniter's Table 3, each run with interference and noise, judged by P99 and rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_common.service.settings import SettingsError
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.runner import SimulationRuns
from horologe_experiments.igniter.shared_models import EmulatedHardware, share_workers
from horologe_experiments.igniter.sharing_world import TUNER, SharingWorld
from horologe_experiments.igniter.table3 import STRATEGIES, TABLE_3, V100
from horologe_planning.provisioning.device_shares import shares_by_device, with_batch_times
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import Chunk
from horologe_tuner.core.tuner import Tuner
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.harness.interval_ledger import TimedCounts
    from horologe_planning.provisioning.workloads import Workload
    from horologe_planning.report import SharedPlans

IN_TIME = 0.99
"""A workload whose P99 is within the SLO answers this part of its requests in time. Refused ones count as late."""
INTERFERENCE = "pcie-contention"
"""The emulated truth: the model that is better on pairs that were not fitted, with its noise."""
SETTLE_NS = s(6)
"""With shadows: time in which the tuner starts all workers."""


class RunSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs of the plan of one strategy, with different noise and arrivals."""

    strategy: str
    arrivals: Literal["even", "poisson"]
    """even: constant rates, as in the paper."""
    seeds: int
    shadows: bool = False
    """Serve with the tuner, which switches violated workloads to their shadows. Counted from `repaired_ns` on."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-run."""

    description: str
    runs: tuple[RunSet, ...]
    seconds: int
    warmup_ns: int
    repaired_ns: int
    """With shadows: begin of the requests that count. The paper judges a plan after its errors have been repaired."""
    margin: float
    """Safety margin of our plan in standard deviations."""
    cluster: ClusterSettings


class IgniterRun:
    """GPUs, cost and violations of five strategies, measured in runs of their plans."""

    name = "igniter-run"
    title = "iGniter Fig. 14: twelve workloads, the plans of five strategies run with interference and noise"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        cost = Cost()
        runs = SimulationRuns(sum(one.seeds for one in scene.runs), cost, progress)
        rows, workloads = [], []
        for one in scene.runs:
            if one.strategy not in STRATEGIES:
                raise SettingsError(f"strategy: got {one.strategy!r}, wanted one of {', '.join(STRATEGIES)}")
            plan = STRATEGIES[one.strategy].plan(scene.margin)
            plan = plan._replace(plans=with_batch_times(plan.plans, [V100], INTERFERENCE))
            seeds = range(seed, seed + one.seeds)
            results = [_Serving(one, scene, plan, draw).run(runs) for draw in seeds]
            rows.append(_row(one, plan, results))
            workloads += _workload_rows(one, plan, results)
        facts = {
            "workloads": "Table 3; constant rates (even) as in the paper",
            "emulated truth": f"V100, model {INTERFERENCE}; per workload and seed a constant error of the prediction,"
            " per batch jitter, both as the measured pairs scatter",
            "serving": "the real controller; a worker per share; batches up to the planned size",
            "violation": f"less than {IN_TIME:.0%} of the requests answered within the SLO; refused ones count as late",
        }
        series = {"workloads": workloads}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows), series, cost)

    def draw(self, findings: Findings) -> Figure:
        """See `Experiment`."""
        from horologe_experiments.harness.plots import make_figure

        rows = [row for row in findings.series["workloads"] if row["arrivals"] == "even" and not row["shadows"]]
        strategies = list(dict.fromkeys(row["strategy"] for row in rows))
        names = [workload.name for workload in TABLE_3]
        figure, (left, right) = make_figure(1, 2)
        for at, strategy in enumerate(strategies):
            own = {row["workload"]: row for row in rows if row["strategy"] == strategy}
            shifted = np.arange(len(names)) - 0.4 + (at + 0.5) * 0.8 / len(strategies)
            left.bar(shifted, [own[name]["in_time"] for name in names], 0.8 / len(strategies), label=strategy)
        left.axhline(IN_TIME, color="k", ls="--", lw=0.8)
        left.set(ylabel="answered within the SLO, worst seed", ylim=(0.8, 1.002))
        ours = {row["workload"]: row for row in rows if row["strategy"] == strategies[0]}
        places = np.arange(len(names))
        kinds = (("slo_ms", "SLO"), ("p99_ms", "P99, worst seed"), ("predicted_ms", "predicted execution"))
        for at, (key, label) in enumerate(kinds):
            offset = 0.25 * (at - 1)
            right.bar(places + offset, [ours[name][key] for name in names], 0.25, label=label)
        right.set(ylabel=f"ms, {strategies[0]}")
        for panel in (left, right):
            panel.set_xticks(range(len(names)), names, fontsize=7)
            panel.legend(fontsize=6)
        return figure


class _Serving:
    """One run of a plan."""

    def __init__(self, chosen: RunSet, scene: Scene, plan: SharedPlans, seed: int) -> None:
        self._chosen, self._scene, self._plan, self._seed = chosen, scene, plan, seed
        self._workloads = TABLE_3
        if chosen.shadows:  # `SharingWorld` numbers the workloads in the order of the plan
            placed = [planned.name for planned in plan.plans]
            self._workloads = sorted(TABLE_3, key=lambda workload: placed.index(workload.name))
        self._from_ns = scene.repaired_ns if chosen.shadows else scene.warmup_ns
        names = [workload.name for workload in self._workloads]
        self._ledger = IntervalLedger(names, len(names), s(1), self._from_ns)
        self._hardware = EmulatedHardware({V100.gpu.name: V100}, INTERFERENCE, seed)

    def run(self, runs: SimulationRuns) -> dict[str, dict[str, float]]:
        """Run the plan and return the results by workload."""
        chosen, scene = self._chosen, self._scene
        label = f"{chosen.strategy}, {chosen.arrivals}, seed {self._seed}"
        duration_ns = s(scene.seconds)
        chunks = requests(self._workloads, chosen.arrivals, duration_ns, self._seed)
        if chosen.shadows:
            setting = msgspec.structs.replace(scene.cluster, settle_ns=SETTLE_NS)
            tuner = Tuner(TUNER, TunerSettings(scaler="process"))
            world = SharingWorld(setting, self._plan.plans, self._hardware, self._ledger, self._seed, tuner, chunks)
            runs.run(label, world, duration_ns)
        else:
            workers = share_workers(self._plan.plans, self._hardware)
            by_name = {worker.placement.stage: worker.model for worker in workers}
            models = [by_name[workload.name] for workload in self._workloads]
            setting = msgspec.structs.replace(scene.cluster, devices=len(workers))
            installed = [[worker.model] for worker in workers]
            runs.simulate(
                label, setting, models, self._ledger, self._seed, duration_ns, chunks, installed=installed
            )  # fmt: skip
        seconds = (duration_ns - self._from_ns) / 1e9
        return {
            workload.name: _judge(self._ledger.line(workload.name), workload, seconds) for workload in self._workloads
        }


def requests(workloads: Sequence[Workload], arrivals: str, duration_ns: int, seed: int) -> Iterator[Chunk]:
    """Yield the requests of all workloads second by second. Even ones begin at a random phase."""
    rng = np.random.default_rng([seed, 5])
    times, models = [], []
    for number, workload in enumerate(workloads):
        times.append(workload_requests(workload, arrivals, duration_ns, rng))
        models.append(np.full(len(times[-1]), number))
    merged, owners = np.concatenate(times), np.concatenate(models)
    order = np.argsort(merged, kind="stable")
    merged, owners = merged[order], owners[order]
    slos_ns = np.array([ms(workload.slo_ms) for workload in workloads])
    for begin, end in zip(
        *(np.searchsorted(merged, np.arange(0, duration_ns, s(1)) + shift) for shift in (0, s(1))), strict=True
    ):
        owner = owners[begin:end]
        yield Chunk(merged[begin:end].tolist(), owner.tolist(), slos_ns[owner].tolist(), owner.tolist())


def workload_requests(
    workload: Workload, arrivals: str, duration_ns: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the times of one workload's requests."""
    gap_ns = 1e9 / workload.rate
    if arrivals == "even":
        return ((rng.random() + np.arange(int(duration_ns / gap_ns) - 1)) * gap_ns).astype(np.int64)
    times = np.cumsum(rng.exponential(gap_ns, int(1.2 * duration_ns / gap_ns) + 100)).astype(np.int64)
    return times[times < duration_ns]


def _judge(line: TimedCounts, workload: Workload, seconds: float) -> dict[str, float]:
    """Return the part answered in time, P99 of all requests and requests per second in time."""
    rank = 0.99 * line.sent / max(1, line.times.total)
    p99_ms = line.times.quantile_ms(rank) if rank <= 1 else float("inf")
    return {"in_time": line.satisfaction, "p99_ms": p99_ms, "rate": line.ok / seconds / workload.rate}


def _row(runs: RunSet, plan: SharedPlans, results: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    violated = [[name for name, result in one.items() if result["in_time"] < IN_TIME] for one in results]
    strategy = STRATEGIES[runs.strategy]
    return {
        "strategy": runs.strategy + (" + shadows" if runs.shadows else ""),
        "arrivals": runs.arrivals,
        "seeds": runs.seeds,
        "gpus": len(shares_by_device(plan.plans)),
        "paper_gpus": strategy.paper_gpus or "",
        "dollars_per_hour": round(plan.report.cost_per_hour, 2),
        "violations_mean": round(float(np.mean([len(names) for names in violated])), 1),
        "violations_worst": max(len(names) for names in violated),
        "paper_violations": "" if strategy.paper_violations is None else strategy.paper_violations,
        "worst_in_time": round(min(result["in_time"] for one in results for result in one.values()), 4),
        "violated": ", ".join(sorted({name for names in violated for name in names}, key=lambda name: int(name[1:]))),
    }


def _workload_rows(runs: RunSet, plan: SharedPlans, results: list[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    placements = {planned.name: planned.placements[0] for planned in plan.plans}
    rows = []
    for workload in TABLE_3:
        placement, own = placements[workload.name], [one[workload.name] for one in results]
        p99_ms = max(result["p99_ms"] for result in own)
        rows.append({
            "strategy": runs.strategy, "arrivals": runs.arrivals, "shadows": runs.shadows,
            "workload": workload.name, "model": workload.model,
            "share": placement.percent, "batch": placement.max_batch, "slo_ms": workload.slo_ms,
            "predicted_ms": round(placement.latency_ns / 1e6, 2), "p99_ms": p99_ms if np.isfinite(p99_ms) else -1.0,
            "in_time": round(min(result["in_time"] for result in own), 4),
        })  # fmt: skip
    return rows


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    ours = [row for row in rows if row["strategy"] == "ours" and row["arrivals"] == "even"]
    if not ours:
        return []
    return [
        Bar("GPUs of our plan", ours[0]["gpus"], 6, "at most"),
        Bar("violations of our plan, worst seed", ours[0]["violations_worst"], 0, "at most"),
    ]
