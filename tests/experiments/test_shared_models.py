"""Emulated models on the shares of a plan: neighbours slow each other, other devices do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms, s
from horologe_common.interference.v100 import CALIBRATED
from horologe_experiments.harness.experiment_world import ExperimentWorld, Loop, WorldRecords
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.igniter.shared_models import EmulatedHardware, share_workers
from horologe_planning.plan import Placement, Plan
from horologe_planning.provisioning.workloads import GpuType
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.engine.noise import NOISES

if TYPE_CHECKING:
    from horologe_common.wire import Result
    from horologe_sim.controller_only.direct_device import DirectDevice

V100 = GpuType(*CALIBRATED)
PAIR = [Placement(name, name, "v100", 4, percent=50.0, coefficients=name) for name in ("vgg19", "ssd")]


def exec_ms(gpus: list[list[Placement]], seed: int | None = None) -> dict[str, float]:
    """Run both workloads with closed loops on the shares of a plan. Return the mean EXEC time in batches of 4."""
    plans = [
        Plan(placed.stage, ms(50), 100.0, (msgspec.structs.replace(placed, device=f"v100-{number}"),))
        for number, placements in enumerate(gpus) for placed in placements
    ]  # fmt: skip
    workers = share_workers(plans, EmulatedHardware({"v100": V100}, "pcie-contention", seed))
    models = [worker.model for worker in workers]
    took: dict[str, list[float]] = {}

    def watch(device: DirectDevice, action: object, result: Result, promised_ns: int) -> None:
        if getattr(action, "batch_size", 0) == 4:
            took.setdefault(action.model, []).append(result.device_ns / 1e6)  # type: ignore[attr-defined]

    ledger = IntervalLedger([model.report.spec.name for model in models], len(models), s(1))
    setting = ClusterSettings(devices=len(models), noise=NOISES["none"])
    loops = [Loop(number, 0, number) for number in range(len(models)) for _ in range(8)]
    devices, records = [DeviceEntry([model]) for model in models], WorldRecords(watch)
    world = ExperimentWorld(setting, models, ledger, 1, loops=loops, devices=devices, records=records)
    world.run(s(2))
    world.check()
    return {name.partition("/")[0]: sum(times[5:]) / len(times[5:]) for name, times in took.items()}


def test_neighbours_slow_each_other_below_the_controller() -> None:
    apart, together = exec_ms([[PAIR[0]], [PAIR[1]]]), exec_ms([PAIR])
    for name in ("vgg19", "ssd"):
        assert 1.03 < together[name] / apart[name] < 1.5


def test_the_error_of_the_prediction_differs_by_seed() -> None:
    times = {exec_ms([PAIR], seed)["vgg19"] for seed in (1, 2, 3)}
    assert len(times) == 3
    assert exec_ms([PAIR], 1)["vgg19"] in times


def test_shares_above_a_whole_device_are_scaled_down() -> None:
    twice = [msgspec.structs.replace(placement, percent=100.0) for placement in PAIR]
    assert exec_ms([twice]) == exec_ms([PAIR])
