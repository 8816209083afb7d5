"""The tuner's core: plans are carried out, also such that share workers or models, scaled, stored and reported."""

from __future__ import annotations

import msgspec
import pytest

from harness.builders import a_spec, a_state
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import (
    DeviceState,
    Models,
    PlannedModel,
    ResourcePlan,
)
from horologe_planning.plan import Placement, Plan, ProvisioningLevel
from tuner.tuner_bench import CONTROLLER, FRONT, PLAN, Bench


def test_a_plan_reaches_controller_scaler_and_state_file() -> None:
    bench = Bench()
    assert bench.plans == [ResourcePlan(0)]  # subscribes to events
    assert bench.apply().status == Status.OK
    models = (PlannedModel("classify", 2, 4, "v100"), PlannedModel("identify", 1, 8, "v100"))
    assert bench.plans[1:] == [ResourcePlan(1, models)]
    assert bench.scaled == [{"v100": 3}]
    assert bench.saved[-1].applied[0].replicas == {"front": 2, "back": 1}
    assert bench.noted() == ["applied"]


def test_a_spike_scales_up_at_once_and_a_drop_down_later() -> None:
    bench = Bench()
    bench.apply()
    bench.events(100, 20)
    assert bench.replicas() == {"front": 2, "back": 1}
    bench.events(300, 1.2)
    assert bench.replicas()["front"] >= 6
    assert bench.replicas()["back"] >= 3
    assert bench.scaled[-1] == {"v100": sum(bench.replicas().values())}
    assert bench.plans[-1].models[0].shares == bench.replicas()["front"]
    changes = len(bench.scaled)
    bench.events(50, 10)
    assert len(bench.scaled) == changes  # not yet
    bench.events(50, 50)
    assert bench.replicas() == {"front": 1, "back": 1}
    assert bench.scaled[-1] == {"v100": 2}


def test_a_burst_alone_is_detected_at_the_same_mean_rate() -> None:
    bench = Bench()
    bench.apply()
    bench.events(100, 10)
    bench.events(0, 0.6)
    bench.events(700, 0.1)  # 70 in 100 ms, 20 are planned for
    bench.events(0)
    assert bench.journal[-1].event == "scaled up"
    assert "in 0.1 s" in bench.journal[-1].text


def test_at_a_constant_rate_nothing_oscillates() -> None:
    bench = Bench()
    bench.apply()
    for _ in range(60):
        bench.events(80, 5)
    directions = [entry.event for entry in bench.journal if entry.event.startswith("scaled")]
    assert directions in ([], ["scaled down"])


def test_each_decision_is_a_log_line_a_metric_and_in_the_status() -> None:
    bench = Bench()
    bench.apply()
    bench.events(400, 1.2)
    entries = [entry for entry in bench.journal if entry.event == "scaled up"]
    counted = bench.tuner.stats.values["horologe_tuner_decisions_total", "video", "up", "applied"]
    status = bench.status()
    assert len(entries) == counted == len([entry for entry in status["journal"] if entry["event"] == "scaled up"])
    assert "front 2 ->" in entries[0].text
    bench.tuner.refresh_stats()
    assert bench.tuner.stats.values["horologe_tuner_replicas", "video", "front"] == bench.replicas()["front"]
    assert status["workers_wanted"] == status["workers_running"] == {"v100": sum(bench.replicas().values())}


@pytest.mark.parametrize("by_setting", [True, False])
def test_a_dry_run_only_reports(by_setting: bool) -> None:
    bench = Bench(dry_run=by_setting)
    bench.apply(dry_run=not by_setting)
    bench.events(400, 1.2)
    assert not any(plan.models for plan in bench.plans)
    assert bench.scaled == []
    entries = [entry for entry in bench.journal if entry.event == "scaled up"]
    assert entries
    assert all(entry.dry_run for entry in entries)
    assert bench.tuner.stats.values["horologe_tuner_decisions_total", "video", "up", "dry_run"] == len(entries)


def test_a_scaling_that_fails_is_tried_again() -> None:
    bench = Bench()
    bench.scaler_error = "no engine"
    bench.apply()
    for _ in range(3):
        bench.events(100, 5.1)
    calls = len(bench.scaled)
    assert 3 <= calls <= 5  # every 5 s, and when the first events come
    assert bench.noted().count("scaler failed") == 1
    assert bench.status()["scaler_error"] == "no engine"
    assert bench.tuner.stats.values["horologe_tuner_scaler_errors_total",] == calls
    bench.scaler_error = ""
    bench.events(100, 5.1)
    bench.events(100, 10)
    assert len(bench.scaled) == calls + 1
    assert bench.status()["scaler_error"] == ""


def test_no_more_workers_are_wanted_than_the_limit() -> None:
    bench = Bench(max_workers=4)
    bench.apply()
    bench.events(2000, 1.2)
    assert bench.scaled[-1] == {"v100": 4}


def served(bench: Bench, *names: str, state: str = "READY") -> None:
    bench.give(CONTROLLER, Models(0, tuple(a_state(a_spec(name), state) for name in names), number=len(bench.plans)))


def test_bad_calls_get_a_clear_error() -> None:
    bench = Bench(scaler="none")
    assert bench.tune("apply", b"{").status == Status.INVALID_INPUT
    assert bench.tune("apply", b'{"rate": 1}').reason.startswith("plan: ")
    bench.events(devices=(DeviceState("worker/0", 0, "k80"),))
    answer = bench.apply()
    assert answer.status == Status.INVALID_INPUT
    assert answer.reason.startswith("plan 'video': stage 'front': hardware: got 'v100', wanted one of k80")
    served(bench, "classify")
    answer = bench.apply()
    assert answer.status == Status.INVALID_INPUT
    assert answer.reason.endswith("wanted one of k80: tuner.scaler is none, so no worker can be started")
    bench.events(devices=(DeviceState("worker/0", 0, "v100"),))
    answer = bench.apply()
    assert (answer.status, answer.reason) == (
        Status.UNKNOWN_MODEL,
        "plan 'video': stage 'back': model 'identify': not served",
    )
    answer = bench.tune("withdraw", b"absent")
    assert answer.reason == "plan: got 'absent', wanted an applied plan: none"
    assert bench.plans == [ResourcePlan(0)]


def test_a_plan_for_a_model_that_is_withdrawn_stays_and_says_so() -> None:
    bench = Bench()
    served(bench, "classify", "identify")
    assert bench.apply().status == Status.OK
    bench.give(CONTROLLER, Models(0, (a_state(a_spec("classify")),), number=9))
    assert bench.status()["unserved_models"] == ["identify"]
    bench.events(400, 1.2)
    assert bench.replicas()["front"] > 2


def test_stages_of_a_pooled_plan_share_their_workers() -> None:
    bench = Bench()
    bench.apply(msgspec.structs.replace(PLAN, pooled=True))
    assert bench.scaled == [{"v100": 2}]
    assert [model.shares for model in bench.plans[-1].models] == [2, 1]


def test_a_pool_may_hold_a_model_on_several_hardware_types() -> None:
    bench = Bench()
    rows = [("a", "v100", 2), ("b", "v100", 2), ("a", "k80", 3), ("again", "k80", 3)]
    stages = tuple(
        Placement(f"{stage}@{kind}", "m" if stage in ("a", "again") else "n", kind, 8, count, throughput=100.0)
        for stage, kind, count in rows
    )
    levels = (ProvisioningLevel(0.5, (1, 1, 2, 2)), ProvisioningLevel(1.0, (2, 2, 3, 3)))
    pool = Plan("pool", ms(200), 100.0, stages, PLAN.envelope, levels=levels, pooled=True)
    assert bench.apply(pool).status == Status.OK
    models = (("m", 2, 8, "v100"), ("n", 2, 8, "v100"), ("m", 3, 8, "k80"))
    assert bench.plans[-1].models == tuple(PlannedModel(*model) for model in models)
    assert bench.scaled == [{"v100": 2, "k80": 3}]
    bench.events(200, 2, model="m/1")
    assert bench.scaled[-1] == {"v100": 4, "k80": 6}  # 1.54 times the planned rate, with headroom
    other = Placement("only", "m", "v100", 2, 3, throughput=50.0)
    answer = bench.apply(Plan("single", ms(100), 50.0, (other,), PLAN.envelope))
    assert "hardware: got 'v100', wanted 'k80, v100', which model 'm' has in plan 'pool'" in answer.reason


def test_several_pipelines_share_a_model() -> None:
    bench = Bench()
    bench.apply()
    other = Placement("only", "classify", "v100", 2, 3, throughput=50.0)
    bench.apply(Plan("single", ms(100), 50.0, (other,), PLAN.envelope))
    assert bench.plans[-1].models[0] == PlannedModel("classify", 5, 2, "v100")
    assert bench.scaled[-1] == {"v100": 6}
    assert bench.tune("withdraw", b"single").status == Status.OK
    assert bench.plans[-1].models[0] == PlannedModel("classify", 2, 4, "v100")
    assert bench.tune("withdraw", b"video").status == Status.OK
    assert bench.plans[-1].models == ()
    assert bench.saved[-1].applied == ()


def test_two_hardware_types_for_one_model_are_an_error() -> None:
    bench = Bench()
    bench.apply()
    other = msgspec.structs.replace(FRONT, hardware="k80")
    answer = bench.apply(Plan("single", ms(100), 50.0, (other,), PLAN.envelope))
    assert answer.reason.startswith("stage 'front': hardware: got 'k80', wanted 'v100'")
