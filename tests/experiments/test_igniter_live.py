"""Plans that are slowed down for live runs, and their emulated models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_experiments.igniter.igniter_live import slow_down, write_model
from horologe_experiments.igniter.igniter_run import INTERFERENCE
from horologe_experiments.igniter.table3 import STRATEGIES, V100
from horologe_gpu_worker.runtimes.emulated import EmulatedRuntime
from horologe_gpu_worker.settings import WorkerSettings
from horologe_planning.plan import encode_plans, parse_plans
from horologe_planning.provisioning.device_shares import with_batch_times

if TYPE_CHECKING:
    from pathlib import Path


def test_slow_emulated_models_take_the_times_of_the_slow_plan(tmp_path: Path) -> None:
    plans = slow_down(with_batch_times(STRATEGIES["ours"].plan(1.0).plans, [V100], INTERFERENCE), 10)
    assert parse_plans(encode_plans(plans)) == plans
    for plan in plans:
        write_model(tmp_path, plan, 10, seed=1)
        (share,), folder = plan.placements, tmp_path / plan.name / "1"
        runtime = EmulatedRuntime(WorkerSettings(share_percent=share.percent))
        spec = runtime.inspect(folder)
        assert spec.batch_sizes == tuple(range(1, share.max_batch + 1))
        assert spec.slo_ns == plan.slo_ns
        alone_ns, planned_ns = runtime.profile(spec, folder).exec_ns[share.max_batch], share.exec_ns[-1][1]
        assert alone_ns == pytest.approx(planned_ns, rel=0.35)
        assert alone_ns <= planned_ns
        assert 0.5 < plan.rate / share.throughput <= 1
