"""The tuner core: plans, decisions, blindness, restarts, dry runs, and the scaler's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from builders import a_spec, a_state, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.service.state_file import StateFile
from horologe_common.status import Status
from horologe_common.wire import (
    DeviceState,
    Events,
    ModelEvents,
    Models,
    PipelineArrivals,
    Plan,
    PlannedModel,
    Tune,
    Tuning,
)
from horologe_tuner.core.pipeline_tuning.envelope import TrafficEnvelope
from horologe_tuner.core.pipeline_tuning.tuning_plan import ProvisioningLevel, StageTarget, TuningPlan
from horologe_tuner.core.tuner import Tuner, TunerState
from horologe_tuner.core.tuner_status import JournalEntry
from horologe_tuner.core.worker_scaling import Scaled, ScaleTo
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from pathlib import Path

CONTROLLER, FRONTEND = "controller/0#1", "frontend/0#1"
WINDOWS = (ms(100), s(1), s(60))
FRONT = StageTarget("front", "classify", "v100", 4, 2, 100.0)
BACK = StageTarget("back", "identify", "v100", 8, 1, 100.0, scale_factor=0.5)
PLAN = TuningPlan("video", ms(200), 100.0, TrafficEnvelope(WINDOWS, (20, 130, 6600)), (FRONT, BACK))
STEP_NS = ms(100)


class Bench:
    """A tuner with a controller that sends events every 100 ms, and a scaler that does what it is asked."""

    def __init__(self, state: TunerState | None = None, connect: bool = True, **settings: Any) -> None:
        settings = {"scaler": "process", **settings}
        self.tuner = Tuner("tuner/0#1", TunerSettings(**settings))
        self.now_ns = s(1000)
        self.number = 0
        self.plans: list[Plan] = []
        self.scaled: list[dict[str, int]] = []
        self.journal: list[JournalEntry] = []
        self.saved: list[TunerState] = []
        self.scaler_error = ""
        if state:
            self.tuner.restore(self.now_ns, state)
        if connect:
            self.connect()

    def connect(self, address: str = CONTROLLER) -> None:
        self.number = 0
        self.controller = address
        self.give(address, PeerConnected(address))

    def give(self, sender: str, message: Any) -> None:
        self.tuner.handle(self.now_ns, sender, message, ())
        self.run()

    def run(self) -> None:
        self.tuner.tick(self.now_ns)
        self.tuner.check()
        self.plans += sent(self.tuner, Plan)
        self.journal += sent(self.tuner, JournalEntry, self.tuner.journal)
        self.saved += sent(self.tuner, TunerState, self.tuner.store)
        for call in sent(self.tuner, ScaleTo, self.tuner.scaler):
            self.scaled.append(call.workers)
            answer = Scaled({} if self.scaler_error else call.workers, self.scaler_error)
            self.give(self.tuner.scaler, answer)

    def events(
        self, rate: float = 0.0, seconds: float = 0.1, model: str = "classify/1", pipeline: str = "", **fields: Any
    ) -> None:
        """Let time pass with an even rate of requests for a model, or of queries of a pipeline, or both."""
        carried = 0.0
        for _ in range(round(seconds * 1e9 / STEP_NS)):
            self.now_ns += STEP_NS
            self.number += 1
            arrivals = []
            for age in range(9, -1, -1):
                carried += rate / 100
                if count := int(carried):
                    carried -= count
                    arrivals.append((age, count))
            bins = tuple(reversed(arrivals))
            models = (ModelEvents(model, bins),) if arrivals and model else ()
            pipelines = (PipelineArrivals(pipeline, bins),) if arrivals and pipeline else ()
            events = Events(self.number, STEP_NS, ms(10), models, pipelines=pipelines, **fields)
            self.give(self.controller, events)

    def tune(self, command: Any, document: bytes = b"", dry_run: bool = False) -> Tuning:
        self.give(FRONTEND, Tune(7, command, document, dry_run))
        (answer,) = sent(self.tuner, Tuning, FRONTEND)
        assert answer.id == 7
        return answer

    def apply(self, plan: TuningPlan = PLAN, dry_run: bool = False) -> Tuning:
        return self.tune("apply", msgspec.json.encode(plan), dry_run)

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.json.decode(self.tune("status").document)
        return document

    def replicas(self) -> dict[str, int]:
        return dict(self.tuner.pipelines.plans["video"].state.replicas)


def test_a_plan_reaches_controller_scaler_and_state_file() -> None:
    bench = Bench()
    assert bench.plans == [Plan(0)]  # subscribes to events
    assert bench.apply().status == Status.OK
    models = (PlannedModel("classify", 2, 4, "v100"), PlannedModel("identify", 1, 8, "v100"))
    assert bench.plans[1:] == [Plan(1, models)]
    assert bench.scaled == [{"v100": 3}]
    assert bench.saved[-1].applied[0].replicas == {"front": 2, "back": 1}
    assert [entry.event for entry in bench.journal] == ["applied"]


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


def test_only_the_entry_stage_counts_as_queries() -> None:
    bench = Bench()
    bench.apply(msgspec.structs.replace(PLAN, entry="back"))
    bench.events(400, 2, model="classify/1")
    assert bench.replicas() == {"front": 2, "back": 1}
    bench.events(50, 2, model="identify/3")  # two queries for each call
    assert bench.status()["pipelines"][0]["rates"][1] == pytest.approx(100, rel=0.05)


def test_queries_count_that_make_no_call_and_other_calls_of_the_entry_model_do_not() -> None:
    bench = Bench()
    bench.apply()
    bench.events(80, 20, pipeline="video")
    bench.events(2_000, 5)  # of other clients
    assert bench.replicas() == {"front": 2, "back": 1}
    bench.events(300, 1.2, model="", pipeline="video")  # the selector refuses all of them
    assert bench.replicas()["front"] >= 6
    assert bench.tune("arrivals", b"video").document.count(b'"calls_per_query":1.0') == 1


@pytest.mark.parametrize("cause", ["silence", "disconnected"])
def test_a_blind_tuner_changes_nothing_and_says_so(cause: str) -> None:
    bench = Bench()
    bench.apply()
    bench.events(300, 40)
    replicas, calls = bench.replicas(), len(bench.scaled)
    if cause == "disconnected":
        bench.give(CONTROLLER, PeerDisconnected(CONTROLLER))
    else:
        assert bench.tuner.wakeup_ns() == bench.now_ns + s(2)
        bench.now_ns += s(2)
        bench.run()
    assert bench.journal[-1].event == "blind"
    assert bench.status()["blind"]
    bench.tuner.refresh_stats()
    assert bench.tuner.stats.values["horologe_tuner_blind",] == 1
    bench.now_ns += s(600)
    bench.run()
    assert (bench.replicas(), len(bench.scaled)) == (replicas, calls)
    bench.connect("controller/0#2")
    assert bench.plans[-1].models  # the new controller gets the plan
    bench.events(10, 25)
    assert bench.replicas() == replicas  # not observed for 30 s
    bench.events(10, 20)
    assert bench.replicas() == {"front": 1, "back": 1}
    assert bench.status()["blind"] == ""


def test_a_gap_in_the_events_counts_as_not_observed() -> None:
    bench = Bench()
    bench.apply()
    bench.events(300, 5)
    replicas = bench.replicas()
    bench.events(10, 20)
    bench.number += 3
    bench.events(10, 28)
    assert bench.replicas() == replicas
    bench.events(10, 5)
    assert bench.replicas() == {"front": 1, "back": 1}


def test_events_of_an_earlier_controller_or_that_arrive_twice_do_not_count() -> None:
    bench = Bench()
    bench.apply()
    bench.events(100, 1)
    last = Events(bench.number, STEP_NS, ms(10), (ModelEvents("classify/1", ((0, 10_000),)),))
    bench.give(CONTROLLER, last)
    bench.give("controller/0#9", msgspec.structs.replace(last, number=bench.number + 1))
    bench.events(0, 0.2)
    assert bench.replicas() == {"front": 2, "back": 1}


def test_a_restarted_tuner_goes_on_with_what_runs(tmp_path: Path) -> None:
    bench = Bench()
    bench.apply()
    bench.events(300, 2)
    StateFile(TunerState, str(tmp_path), "tuner", "0").save(bench.saved[-1])
    loaded, replicas = StateFile(TunerState, str(tmp_path), "tuner", "0").load(), bench.replicas()
    assert loaded
    saved = loaded[0]
    again = Bench(saved)
    assert again.replicas() == replicas
    assert again.plans[-1] == bench.plans[-1]
    again.events(10, 29)
    assert again.replicas() == replicas
    assert again.scaled == [{"v100": sum(replicas.values())}]  # workers may have been lost meanwhile
    again.events(10, 5)
    assert again.replicas() == {"front": 1, "back": 1}
    assert again.plans[-1].number > saved.number


def test_the_state_is_stored_before_it_takes_effect() -> None:
    bench = Bench()
    bench.tuner.handle(bench.now_ns, FRONTEND, Tune(1, "apply", msgspec.json.encode(PLAN)), ())
    kinds = [type(out.message) for out in bench.tuner.out]
    assert kinds.index(TunerState) < kinds.index(Plan) < kinds.index(ScaleTo)


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
    assert [entry.event for entry in bench.journal].count("scaler failed") == 1
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


def test_stages_of_a_pooled_plan_share_their_workers() -> None:
    bench = Bench()
    bench.apply(msgspec.structs.replace(PLAN, pooled=True))
    assert bench.scaled == [{"v100": 2}]
    assert [model.shares for model in bench.plans[-1].models] == [2, 1]


def test_a_pool_may_hold_a_model_on_several_hardware_types() -> None:
    bench = Bench()
    rows = [("a", "v100", 2), ("b", "v100", 2), ("a", "k80", 3), ("again", "k80", 3)]
    stages = tuple(
        StageTarget(f"{stage}@{kind}", "m" if stage in ("a", "again") else "n", kind, 8, count, 100.0)
        for stage, kind, count in rows
    )
    levels = (ProvisioningLevel(0.5, (1, 1, 2, 2)), ProvisioningLevel(1.0, (2, 2, 3, 3)))
    pool = TuningPlan("pool", ms(200), 100.0, PLAN.envelope, stages, levels=levels, pooled=True)
    assert bench.apply(pool).status == Status.OK
    models = (("m", 2, 8, "v100"), ("n", 2, 8, "v100"), ("m", 3, 8, "k80"))
    assert bench.plans[-1].models == tuple(PlannedModel(*model) for model in models)
    assert bench.scaled == [{"v100": 2, "k80": 3}]
    bench.events(200, 2, model="m/1")
    assert bench.scaled[-1] == {"v100": 4, "k80": 6}  # 1.54 times the planned rate, with headroom
    other = StageTarget("only", "m", "v100", 2, 3, 50.0)
    answer = bench.apply(TuningPlan("single", ms(100), 50.0, PLAN.envelope, (other,)))
    assert "hardware: got 'v100', wanted 'k80, v100', which model 'm' has in pipeline 'pool'" in answer.reason


def test_several_pipelines_share_a_model() -> None:
    bench = Bench()
    bench.apply()
    other = StageTarget("only", "classify", "v100", 2, 3, 50.0)
    bench.apply(TuningPlan("single", ms(100), 50.0, PLAN.envelope, (other,)))
    assert bench.plans[-1].models[0] == PlannedModel("classify", 5, 2, "v100")
    assert bench.scaled[-1] == {"v100": 6}
    assert bench.tune("withdraw", b"single").status == Status.OK
    assert bench.plans[-1].models[0] == PlannedModel("classify", 2, 4, "v100")
    assert bench.tune("withdraw", b"video").status == Status.OK
    assert bench.plans[-1].models == ()
    assert bench.saved[-1].applied == ()


def served(bench: Bench, *names: str, state: str = "READY") -> None:
    bench.give(CONTROLLER, Models(0, tuple(a_state(a_spec(name), state) for name in names), number=len(bench.plans)))


def test_bad_calls_get_a_clear_error() -> None:
    bench = Bench(scaler="none")
    assert bench.tune("apply", b"{").status == Status.INVALID_INPUT
    assert bench.tune("apply", b'{"rate": 1}').reason.startswith("plan: ")
    bench.events(devices=(DeviceState("worker/0", 0, "k80"),))
    answer = bench.apply()
    assert answer.status == Status.INVALID_INPUT
    assert answer.reason.startswith("stage 'front': hardware: got 'v100', wanted one of k80")
    served(bench, "classify")
    answer = bench.apply()
    assert (answer.status, answer.reason) == (
        Status.INVALID_INPUT,
        "stage 'front': hardware: got 'v100', wanted one of k80: tuner.scaler is none, so no worker can be started",
    )
    bench.events(devices=(DeviceState("worker/0", 0, "v100"),))
    answer = bench.apply()
    assert (answer.status, answer.reason) == (Status.UNKNOWN_MODEL, "stage 'back': model 'identify': not served")
    answer = bench.tune("withdraw", b"absent")
    assert answer.reason == "pipeline: got 'absent', wanted an applied plan: none"
    assert bench.plans == [Plan(0)]


def test_two_hardware_types_for_one_model_are_an_error() -> None:
    bench = Bench()
    bench.apply()
    other = msgspec.structs.replace(FRONT, hardware="k80")
    answer = bench.apply(TuningPlan("single", ms(100), 50.0, PLAN.envelope, (other,)))
    assert answer.reason.startswith("stage 'front': hardware: got 'k80', wanted 'v100'")


def test_a_plan_for_a_model_that_is_withdrawn_stays_and_says_so() -> None:
    bench = Bench()
    served(bench, "classify", "identify")
    assert bench.apply().status == Status.OK
    bench.give(CONTROLLER, Models(0, (a_state(a_spec("classify")),), number=9))
    assert bench.status()["unserved_models"] == ["identify"]
    bench.events(400, 1.2)
    assert bench.replicas()["front"] > 2


def test_a_plan_applied_while_blind_is_carried_out_when_events_arrive() -> None:
    bench = Bench()
    bench.apply()
    bench.events(100, 1)
    bench.now_ns += s(3)
    bench.run()
    bench.apply(msgspec.structs.replace(PLAN, stages=(msgspec.structs.replace(FRONT, replicas=7),)))
    assert bench.scaled[-1] == {"v100": 3}
    bench.events(100, 0.1)
    assert bench.scaled[-1] == {"v100": 7}
