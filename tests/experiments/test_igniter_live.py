"""Plans that are slowed down for live runs, and their emulated models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_experiments.igniter.igniter_live import slow_down, write_model
from horologe_experiments.igniter.igniter_run import INTERFERENCE
from horologe_experiments.igniter.table3 import STRATEGIES, V100
from horologe_gpu_worker.runtime import DeviceConfig
from horologe_gpu_worker.runtimes.emulated import EmulatedRuntime
from horologe_planning.provisioning.plan_prediction import with_batch_times
from horologe_planning.provisioning.workloads import parse_sharing_plan

if TYPE_CHECKING:
    from pathlib import Path


def test_slow_emulated_models_take_the_times_of_the_slow_plan(tmp_path: Path) -> None:
    import msgspec

    plan = slow_down(with_batch_times(STRATEGIES["ours"].plan(1.0), [V100], INTERFERENCE), 10)
    assert parse_sharing_plan(msgspec.json.encode(plan)) == plan
    for gpu in plan.gpus:
        for share in gpu.placements:
            write_model(tmp_path, share, 10, seed=1)
            folder = tmp_path / share.workload / "1"
            runtime = EmulatedRuntime(DeviceConfig(share_percent=share.share_percent))
            spec = runtime.inspect(folder)
            assert spec.batch_sizes == tuple(range(1, share.batch + 1))
            assert spec.slo_ns == share.slo_ms * 1e6
            alone_ns = runtime.profile(spec, folder).exec_ns[share.batch]
            assert alone_ns == pytest.approx(share.exec_ns[share.batch], rel=0.35)
            assert alone_ns <= share.exec_ns[share.batch]
            assert 0.5 < share.rate / share.throughput <= 1
