"""iGniter's Fig. 21: time and memory of provisioning by number of workloads, and of one change of a running plan."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.random_workloads import random_workloads
from horologe_experiments.igniter.table3 import V100
from horologe_planning.provisioning.device_shares import shares_by_device
from horologe_planning.provisioning.incremental import RunningProvision
from horologe_planning.provisioning.provisioner import provision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

PAPER_S = {12: 0.00364, 1000: 4.61}
"""Computation time of Algorithm 1 (section 5.4)."""
PAPER_MIB = {12: 53.17, 1000: 55.0}
"""Memory of the whole process."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-time."""

    description: str
    counts: tuple[int, ...]
    changes: int
    """Changes of one workload among the largest number: arrivals, departures and changes of rates."""
    repeats: int


class IgniterTime:
    """CPU time and memory by number of workloads. Times are of this machine."""

    name = "igniter-time"
    title = "iGniter Fig. 21: time and memory of provisioning, and of one change among many workloads"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rng = np.random.default_rng(seed)
        provision(random_workloads(rng, 30), [V100])  # imports and caches
        rows = []
        for number, count in enumerate(scene.counts):
            progress(number / (len(scene.counts) + 2), f"{count} workloads")
            rows.append(_row(rng, count, scene.repeats))
        progress(0.7, "changes")
        made, ratio = _changes(rng, scene.counts[-1], scene.changes)
        times, moves = (np.array(column) for column in zip(*made, strict=True))
        facts = {
            "time": "CPU time of this process, the least of the repetitions",
            "memory": "most that provisioning allocated at a time; the paper's is that of the process",
            "changes": f"{scene.changes} arrivals, departures and changes of rates by 0.5 to 1.5, one after another",
            "cost of the changed plan / new plan": f"{ratio:.3f}",
        }
        name = f"one change among {scene.counts[-1]} workloads"
        bars = [
            Bar(f"{rows[-1]['workloads']} workloads, s", rows[-1]["cpu_s"], 1.0, "at most"),
            Bar(f"{name}, ms, P95", round(float(np.quantile(times, 0.95)), 2), 20, "at most"),
            Bar(f"{name}, ms, largest", round(float(times.max()), 2), 20, "at most"),
            Bar(f"{name}: part that moves at most two others", round(float(np.mean(moves <= 2)), 4), 0.95),
        ]
        series = {"change_ms": np.sort(times).round(3).tolist(), "moves": np.bincount(moves.astype(int)).tolist()}
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, series)

    def draw(self, findings: Findings) -> Figure:
        """Draw time and memory by number of workloads, and the times of changes."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        counts = [row["workloads"] for row in findings.rows]
        left.plot(counts, [row["cpu_s"] for row in findings.rows], "-o", label="CPU time")
        left.plot(*zip(*PAPER_S.items(), strict=True), "k*", label="paper")
        left.set(xscale="log", yscale="log", xlabel="workloads", ylabel="s")
        memory = left.twinx()
        memory.plot(counts, [row["memory_mib"] for row in findings.rows], "C1:s", label="memory")
        memory.set(ylabel="MiB", ylim=(0, None))
        left.legend(fontsize=7)
        times = findings.series["change_ms"]
        right.plot(times, np.arange(1, len(times) + 1) / len(times))
        right.axvline(20, color="k", ls="--", lw=0.8)
        right.set(xlabel=f"one change among {counts[-1]} workloads (ms)", ylabel="part of the changes", xlim=(0, None))
        return figure


def _row(rng: np.random.Generator, count: int, repeats: int) -> dict[str, Any]:
    workloads = random_workloads(rng, count)
    cpu_s = min(_cpu_s(lambda: provision(workloads, [V100])) for _ in range(repeats))
    tracemalloc.start()
    plan = provision(workloads, [V100])
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "workloads": count, "cpu_s": round(cpu_s, 4), "paper_s": PAPER_S.get(count),
        "memory_mib": round(memory / 2**20, 1), "paper_mib": PAPER_MIB.get(count),
        "gpus": len(shares_by_device(plan.plans)),
        "cost_over_bound": round(plan.report.cost_per_hour / plan.report.cost_bound, 4),
    }  # fmt: skip


def _changes(rng: np.random.Generator, count: int, changes: int) -> tuple[list[tuple[float, int]], float]:
    """Return CPU time in ms and other workloads moved per change, and the final cost over that of a new plan."""
    workloads = {workload.name: workload for workload in random_workloads(rng, count)}
    running = RunningProvision(list(workloads.values()), [V100])
    found = []
    for number in range(changes):
        kind, name = rng.integers(4), str(rng.choice(list(workloads)))
        if kind == 0:
            (new,) = random_workloads(rng, 1)
            workloads[f"n{number}"] = added = msgspec.structs.replace(new, name=f"n{number}")
            call = partial(running.add, added)
        elif kind == 1:
            del workloads[name]
            call = partial(running.remove, name)
        else:
            rate = workloads[name].rate * rng.uniform(0.5, 1.5)
            workloads[name] = msgspec.structs.replace(workloads[name], rate=rate)
            call = partial(running.change_rate, name, rate)
        begin = time.process_time()
        moved = call()
        found.append((1000 * (time.process_time() - begin), len(moved)))
    fresh = provision(list(workloads.values()), [V100]).report.cost_per_hour
    return found, running.occupancy.cost / fresh


def _cpu_s(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin
