"""Serving simulation of the experiments, and the coarse-grained plans that it compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from horologe_common.clock import ms, s
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_experiments.inferline.baselines.coarse_grained import (
    largest_unit,
    mean_rate,
    peak_rate,
    plan_coarse_grained,
    unit_throughput,
)
from horologe_experiments.inferline.cases import PipelineCase
from horologe_experiments.inferline.scaling_policy import FixedReplicas
from horologe_experiments.inferline.serving import ACTIVATION_NS, ServedRun, serve
from horologe_load.arrivals import gamma
from horologe_planning.hardware import HardwareType
from horologe_planning.plan import Placement
from horologe_planning.profiles import StageProfile, collect_profiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_experiments.inferline.scaling_policy import Observation

CASE = PipelineCase(
    PipelineStructure(
        "two", ms(100), (PipelineStage("a", "a", (), 1.0, 1.0), PipelineStage("b", "b", ("a",), 0.5, 1.0))
    ),
    collect_profiles(
        [
            StageProfile("a", "gpu", {1: ms(20), 2: ms(30), 4: ms(50)}),
            StageProfile("a", "slow", {1: ms(90), 2: ms(180), 4: ms(360)}),
            StageProfile("b", "cpu", {1: ms(10), 2: ms(20), 4: ms(40)}),
        ]
    ),
    {"gpu": HardwareType("gpu", 2.0), "slow": HardwareType("slow", 0.1), "cpu": HardwareType("cpu", 0.5)},
)
ALONE = (Placement("a", "a", "gpu", 1, 1), Placement("b", "b", "cpu", 1, 1))


class Once:
    """Wants two replicas of `a` at the first decision, and records what it sees."""

    name = "once"
    interval_ns = s(1)

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        self.seen.append(observation)
        return {"a": 2}


def test_without_scaling_the_plan_serves_and_is_paid_for() -> None:
    run = serve(CASE, ALONE, np.arange(1, 101) * s(1) // 10, FixedReplicas(), 1)
    assert run.attainment == 1
    assert run.latencies_ns.min() >= ms(20)
    assert run.dollars == pytest.approx(2.5 * 10 / 3600, rel=0.01)
    assert run.dollars_per_hour == pytest.approx(2.5, rel=0.01)


def test_a_new_replica_works_after_its_activation_and_is_paid_for_from_its_order() -> None:
    policy = Once()
    arrivals_ns = np.arange(1, 1001) * s(1) // 50
    run = serve(CASE, ALONE, arrivals_ns, policy, 1)
    assert run.changes == [(0, {"a": 1, "b": 1}), (s(1), {"a": 2, "b": 1})]
    ready = [(seen.now_ns, seen.stages["a"].replicas, seen.stages["a"].ready) for seen in policy.seen]
    assert ready[:2] == [(s(1), 1, 1), (s(2), 2, 1)]
    assert (s(1) + ACTIVATION_NS + s(1), 2, 2) in ready
    assert run.dollars == pytest.approx((2.5 * 20 + 2.0 * 19) / 3600, rel=0.01)


def test_observations_count_calls_and_work() -> None:
    policy = Once()
    serve(CASE, ALONE, np.arange(1, 401) * s(1) // 40, policy, 1)
    load = policy.seen[0].stages["a"]
    assert load.completed == pytest.approx(40, abs=2)
    assert load.busy_s == pytest.approx(0.8, abs=0.05)
    assert load.utilisation == pytest.approx(0.8, abs=0.05)
    assert policy.seen[0].rate(1.0) == pytest.approx(40, abs=1)
    assert policy.seen[0].queries_in_flight <= 3


def test_windows_and_reversals_describe_a_run() -> None:
    changes = [(at * s(10), {"a": replicas, "b": 1}) for at, replicas in enumerate((1, 2, 1, 3, 3))]
    run = ServedRun(np.array([s(5), s(15)]), np.array([ms(10), ms(200)]), ms(100), 1.0, changes)
    assert run.reversals(0, s(100)) == 2
    assert run.reversals(s(25), s(100)) == 0
    assert [row["missed"] for row in run.windows(s(10), CASE, ALONE)] == [0, 1]
    assert [row["dollars_per_hour"] for row in run.windows(s(10), CASE, ALONE)] == [2.5, 4.5]


def test_a_unit_has_the_largest_batch_that_meets_the_slo() -> None:
    unit = largest_unit(CASE.structure, CASE.profiles, "gpu")
    assert unit is not None
    assert [(stage.hardware, stage.max_batch, stage.replicas) for stage in unit] == [("gpu", 4, 1), ("cpu", 4, 1)]
    assert unit_throughput(CASE.structure, CASE.profiles, unit) == pytest.approx(80)  # 4 in 50 ms
    slow = largest_unit(CASE.structure, CASE.profiles, "slow")
    assert slow is not None
    assert slow[0].max_batch == 1


def test_coarse_grained_plans_choose_the_cheapest_type_and_serve_mean_or_peak() -> None:
    arrivals_ns = gamma(150, 4, 60, 1)
    assert mean_rate(arrivals_ns) == pytest.approx(150, rel=0.1)
    assert peak_rate(arrivals_ns, ms(100)) > 2 * mean_rate(arrivals_ns)
    mean = plan_coarse_grained(CASE.structure, CASE.profiles, CASE.hardware, arrivals_ns, "mean")
    peak = plan_coarse_grained(CASE.structure, CASE.profiles, CASE.hardware, arrivals_ns, "peak")
    assert mean is not None
    assert peak is not None
    assert len({stage.replicas for stage in peak}) == 1
    assert CASE.price(peak) > CASE.price(mean)


def test_no_unit_is_planned_for_an_slo_below_the_service_time() -> None:
    hopeless = PipelineStructure("two", ms(25), CASE.structure.stages)
    assert plan_coarse_grained(hopeless, CASE.profiles, CASE.hardware, gamma(10, 1, 10, 1), "peak") is None
