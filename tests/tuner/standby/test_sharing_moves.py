"""A sharing plan in force whose workers are lost, or which is replaced by another plan."""

from __future__ import annotations

from horologe_tuner.core.standby.running_shares import RunningShares
from horologe_tuner.core.standby.shadow_rules import ShadowRules
from tuner.running_sharing_bench import Bench


def test_a_standby_serves_in_place_of_a_lost_worker() -> None:
    bench = Bench({"w1": 20, "w5": 50})
    bench.run(2)
    bench.dead.add("w1.v100-1.200")
    bench.run(0.3)
    assert bench.percents() == {"w1": 30, "w5": 50}
    assert bench.reasons() == ["worker lost"]
    assert "w1.v100-1.200" in bench.sharing.wanted()  # it is started again


def test_a_gpu_that_disappears_is_reported_and_its_workloads_go_on_when_it_is_back() -> None:
    bench = Bench({"w1": 20, "w5": 50})
    bench.run(2)
    bench.dead |= set(bench.sharing.wanted())
    bench.run(0.3)
    assert bench.decisions == []
    reason = "its worker has disconnected, and no standby is ready"
    assert bench.sharing.unrepaired() == {"w1": reason, "w5": reason}
    bench.dead.clear()
    bench.run(0.3)
    assert bench.sharing.unrepaired() == {}
    assert bench.percents() == {"w1": 20, "w5": 50}


def test_a_worker_that_dies_in_the_middle_of_a_switch() -> None:
    """The shadow takes over and dies at once: the worker before it serves again."""
    bench = Bench({"w1": 20})
    bench.needs["w1"] = 30
    while not bench.decisions:
        bench.step({}, {}, 40, start=False)
    assert bench.percents() == {"w1": 30}
    bench.dead |= {"w1.v100-1.300", "w1.v100-1.400"}  # the next shadow has not started yet
    bench.start_workers()
    bench.run(0.1)
    assert bench.percents() == {"w1": 20}
    assert bench.reasons() == ["violation", "worker lost"]


def test_a_new_plan_moves_what_fits_first() -> None:
    bench = Bench({"a": 60, "b": 40})
    bench.run(1)
    bench.apply({"a": 80, "b": 20})
    assert bench.percents() == {"a": 60, "b": 40}
    bench.step({}, {}, 40, start=False)
    assert bench.percents() == {"a": 60, "b": 40}  # no new worker is ready
    bench.start_workers()
    bench.run(0.3)
    assert bench.percents() == {"a": 80, "b": 20}
    assert [decision.stage for _, decision in bench.decisions] == ["b", "a"]


def test_moves_that_wait_for_one_another_are_made_at_once() -> None:
    bench = Bench({"a": 100}, {"b": 100})
    bench.run(1)
    bench.apply({"b": 100}, {"a": 100})
    bench.run(0.3)
    devices = {share.stage: share.device for stage in bench.sharing.stages.values() for share in stage.active()}
    assert devices == {"b": "v100-1", "a": "v100-2"}


def test_a_new_plan_takes_back_the_room_of_a_shadow() -> None:
    bench = Bench({"a": 30, "b": 40})
    bench.needs["a"] = 40
    bench.run(2)
    assert bench.percents() == {"a": 40, "b": 40}
    bench.apply({"a": 30, "b": 70})
    bench.run(1)
    assert bench.percents() == {"a": 30, "b": 70}


def test_a_workload_that_leaves_has_no_workers() -> None:
    bench = Bench({"a": 30, "b": 40})
    bench.apply({"b": 40})
    assert {share.stage for share, _ in bench.sharing.wanted().values()} == {"b"}


def test_a_gap_in_the_events_starts_the_observation_anew() -> None:
    bench = Bench({"w1": 20})
    bench.run(1)
    for _ in range(10):
        bench.run(0.4, w1=50.0)
        bench.sharing.reset_traffic(bench.now_ns)
    assert bench.decisions == []


def test_a_restart_goes_on_with_the_shares_that_serve() -> None:
    bench = Bench({"w1": 20})
    bench.needs["w1"] = 30
    bench.run(2)
    assert bench.percents() == {"w1": 30}
    restored = RunningShares(ShadowRules())
    for stage in bench.sharing.stages.values():
        restored.restore(bench.now_ns, stage.target, stage.serving)
    assert restored.wanted() == bench.sharing.wanted()
