"""Runs of the controller with simulated devices for an experiment: progress, cost, and a log of the batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.wire import Infer
from horologe_experiments.harness.experiment_world import ExperimentWorld, WorldRecords
from horologe_sim.controller_only.direct_device import DeviceEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from horologe_common.wire import Result
    from horologe_experiments.harness.experiment import Cost, Progress
    from horologe_experiments.harness.experiment_world import Loop, Watch
    from horologe_experiments.harness.interval_ledger import IntervalLedger
    from horologe_sim.controller_only.controller_world import ClusterSettings
    from horologe_sim.controller_only.request_load import Chunk
    from horologe_sim.engine.simulated_device import SimModel


def with_scheduler(cluster: ClusterSettings, scheduler: str) -> ClusterSettings:
    """Return the same cluster with another scheduler."""
    controller = cluster.controller.with_scheduler(scheduler)
    return msgspec.structs.replace(cluster, controller=controller)


class SimulationRuns:
    """The `total` simulations of an experiment. Adds up their cost by the machine's clock, which decides nothing."""

    def __init__(self, total: int, cost: Cost, progress: Progress) -> None:
        self._total = total
        self._completed = 0
        self._cost = cost
        self._progress = progress

    def simulate(
        self,
        label: str,
        setting: ClusterSettings,
        models: Sequence[SimModel],
        ledger: IntervalLedger,
        seed: int,
        duration_ns: int,
        chunks: Iterable[Chunk] = (),
        loops: Sequence[Loop] = (),
        watch: Watch | None = None,
        installed: Sequence[Sequence[SimModel]] = (),
    ) -> ExperimentWorld:
        """Run one simulation to its end and check every invariant. `watch` gets each result of an action.

        `installed`: the models of each device. Empty: every device has all models.
        """
        devices = [DeviceEntry(on_device) for on_device in installed]
        records = WorldRecords(watch, clock=time.perf_counter_ns)
        world = ExperimentWorld(setting, models, ledger, seed, chunks, loops, devices, records=records)
        self.run(label, world, duration_ns)
        return world

    def run(self, label: str, world: ExperimentWorld, duration_ns: int) -> None:
        """Run a simulation to its end and check every invariant."""
        begin = time.perf_counter()
        world.run(duration_ns, lambda part: self._progress((self._completed + part) / self._total, label))
        self._cost.wall_s += time.perf_counter() - begin
        self._cost.controller_s += world.controller_ns / 1e9
        self._cost.requests += sum(line.sent for panel in world.ledger.panels for line in panel.lines)
        self._completed += 1
        world.check()


class BatchLog:
    """The batches of a simulation. Pass `record_result` as `watch`."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, int, int]] = []
        """(end, requests, execution time), times in nanoseconds."""

    def record_result(self, device: Any, action: Any, result: Result, promised_ns: int) -> None:
        """Record the result of an INFER."""
        if isinstance(action, Infer):
            self._batches.append((result.end_ns, len(action.rows), result.device_ns))

    def between(self, from_ns: int, until_ns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return requests and milliseconds of each batch that ended in this interval of the devices' clock."""
        batches = [(requests, took_ns) for end_ns, requests, took_ns in self._batches if from_ns <= end_ns < until_ns]
        table = np.array(batches, np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1] / 1e6
