"""The tuner core with a plan of shares: plan, workers, status, journal, metrics, restart, dry run and withdrawal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.builders import sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.latency_buckets import latency_bucket
from horologe_common.status import Status
from horologe_common.wanted_shares import WantedShare, check_shares
from horologe_common.wire import DeviceState, Events, ModelEvents, PlannedModel, Tune, Tuning
from horologe_common.wire import ResourcePlan as PlanMessage
from horologe_planning.plan import Placement, Plan, encode_plans
from horologe_tuner.core.journal import JournalEntry
from horologe_tuner.core.tuner import Tuner, TunerState
from horologe_tuner.core.worker_scaling import Scaled, ScaleTo
from horologe_tuner.settings import TunerSettings

CONTROLLER, FRONTEND = "controller/0#1", "frontend/0#1"
SLO_NS = ms(10)


def plans(**percents: float) -> list[Plan]:
    """Return a plan for each model, with a share of one device."""
    return [
        Plan(name, SLO_NS, 400.0, (
            Placement(
                name, name, "v100", 4, percent=percent, device="v100-1", throughput=500.0, slo_ns=SLO_NS,
                latency_ns=ms(4), exec_ns=((4, ms(4)),),
            ),
        ))
        for name, percent in (percents or {"w1": 20.0, "w5": 50.0}).items()
    ]  # fmt: skip


class Bench:
    """A tuner with a controller, and a scaler whose workers are connected at once, with their models loaded."""

    def __init__(self, state: TunerState | None = None, **settings: Any) -> None:
        self.tuner = Tuner("tuner/0#1", TunerSettings(**{"scaler": "process", **settings}))
        self.now_ns = s(1000)
        self.number = 0
        self.plans: list[PlanMessage] = []
        self.wanted: list[tuple[WantedShare, ...] | None] = []
        self.journal: list[JournalEntry] = []
        self.saved: list[TunerState] = []
        self.latency_ms: dict[str, float] = {}
        self.needs: dict[str, float] = {}
        if state:
            self.tuner.restore(self.now_ns, state)
        self.give(CONTROLLER, PeerConnected(CONTROLLER))

    def give(self, sender: str, message: Any) -> None:
        self.tuner.handle(self.now_ns, sender, message, ())
        self.tuner.tick(self.now_ns)
        self.tuner.check()
        self.plans += sent(self.tuner, PlanMessage)
        self.journal += sent(self.tuner, JournalEntry, self.tuner.journal)
        self.saved += sent(self.tuner, TunerState, self.tuner.store)
        for call in sent(self.tuner, ScaleTo, self.tuner.scaler):
            check_shares(call.shares or ())
            self.wanted.append(call.shares)
            self.give(self.tuner.scaler, Scaled(call.workers, "", tuple(share.worker for share in call.shares or ())))

    def tune(self, command: Any, document: bytes = b"", dry_run: bool = False) -> Tuning:
        self.give(FRONTEND, Tune(7, command, document, dry_run))
        (answer,) = sent(self.tuner, Tuning, FRONTEND)
        return answer

    def apply(self, dry_run: bool = False, **percents: float) -> Tuning:
        return self.tune("apply", encode_plans(plans(**percents)), dry_run)

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.json.decode(self.tune("status").document)
        return document

    def devices(self) -> tuple[DeviceState, ...]:
        wanted = (self.wanted[-1] if self.wanted else None) or ()
        return tuple(
            DeviceState(f"worker/{share.worker}#1", 0, "v100", (key := f"{share.models[0]}/1",), (key,), share.percent)
            for share in wanted
        )

    def run(self, seconds: float, **slow: float) -> None:
        """Let time pass. `slow`: percent that a workload needs; with less it exceeds its SLO."""
        for _ in range(round(10 * seconds)):
            self.now_ns += ms(100)
            self.number += 1
            serving = {model.model: model.workers[0] for model in (self.plans[-1].models if self.plans else ())}
            models = []
            for name, worker in serving.items():
                late = float(worker.rpartition(".")[2]) / 10 < slow.get(name, 0.0)
                bucket = latency_bucket(ms(14) if late else ms(6), SLO_NS)
                models.append(ModelEvents(f"{name}/1", (), 40, 0, ((bucket, 40),)))
            self.give(CONTROLLER, Events(self.number, ms(100), ms(10), tuple(models), self.devices()))

    def events(self) -> list[str]:
        return [entry.event for entry in self.journal]


def test_a_plan_of_shares_reaches_controller_scaler_and_state_file() -> None:
    bench = Bench()
    assert bench.apply().status == Status.OK
    bench.run(0.5)
    w1, w5 = bench.plans[-1].models
    shadow = ("w1.v100-1.300",)
    assert w1 == PlannedModel("w1", 1, 4, "v100", ("w1.v100-1.200",), {4: ms(4)}, shadow, SLO_NS)
    assert w5.standby == ("w5.v100-1.600",)
    wanted = {share.worker: share for share in bench.wanted[-1] or ()}
    assert {name: share.standby_for for name, share in wanted.items()} == {
        "w1.v100-1.200": "", "w5.v100-1.500": "",
        "w1.v100-1.300": "w1.v100-1.200", "w5.v100-1.600": "w5.v100-1.500",
    }  # fmt: skip
    assert wanted["w1.v100-1.300"] == WantedShare(
        "w1.v100-1.300", "v100-1", "v100", 30.0, models=("w1",), standby_for="w1.v100-1.200"
    )
    assert [applied.plan.name for applied in bench.saved[-1].applied] == ["w1", "w5"]
    assert bench.events() == ["applied", "applied"]
    assert bench.journal[0].text == "replicas: w1 20% of v100-1"


def test_a_switch_is_a_plan_a_log_line_a_metric_and_a_status() -> None:
    bench = Bench()
    bench.apply()
    bench.run(2)
    before = len(bench.plans)
    bench.run(2, w1=25.0)
    (plan,) = bench.plans[before:]
    assert plan.models[0].workers == ("w1.v100-1.300",)
    assert plan.models[0].exec_ns == {}  # predicted for the planned share only
    assert plan.models[0].standby == ("w1.v100-1.400", "w1.v100-1.200")
    assert bench.events() == ["applied", "applied", "switched up"]
    assert bench.journal[-1].subject == "w1"
    assert "v100-1 20% -> 30%" in bench.journal[-1].text
    assert bench.tuner.stats.values["horologe_tuner_switches_total", "w1", "violation", "applied"] == 1
    bench.tuner.refresh_stats()
    assert bench.tuner.stats.values["horologe_tuner_share_percent", "w1", "v100-1"] == 30
    status = bench.status()["plans"][0]["stages"][0]
    assert status["state"] == "within SLO"
    assert status["shares"] == [
        {"device": "v100-1", "percent": 30.0, "planned_percent": 20.0, "shadow_percent": 40.0, "shadow_ready": True}
    ]
    bench.run(15)
    assert bench.events() == ["applied", "applied", "switched up", "switched back"]


def test_a_violation_without_room_is_reported_once() -> None:
    bench = Bench()
    bench.apply(w1=20.0, w5=80.0)
    bench.run(10, w1=25.0)
    assert bench.events() == ["applied", "applied", "not repaired"]
    assert bench.status()["plans"][0]["stages"][0]["state"] == "violated: nothing is left of its device"
    assert len(bench.plans) == 2


def test_a_restarted_tuner_keeps_the_shares_that_serve() -> None:
    bench = Bench()
    bench.apply()
    bench.run(3, w1=25.0)
    state = msgspec.json.decode(msgspec.json.encode(bench.saved[-1]), type=TunerState)
    again = Bench(state)
    again.run(0.2)
    assert again.plans[-1].models == bench.plans[-1].models
    assert {share.worker for share in again.wanted[-1] or ()} == {share.worker for share in bench.wanted[-1] or ()}


def test_another_controller_reports_its_workers_one_by_one() -> None:
    bench = Bench()
    bench.apply()
    bench.run(1)
    bench.give(CONTROLLER, PeerDisconnected(CONTROLLER))
    bench.give(CONTROLLER, PeerConnected(CONTROLLER))
    devices = bench.devices()
    for number in range(1, len(devices) + 1):
        bench.now_ns += ms(100)
        bench.give(CONTROLLER, Events(number, ms(100), ms(10), (), devices[-number:]))
    assert "failed over" not in bench.events()


def test_a_dry_run_only_reports() -> None:
    bench = Bench()
    bench.apply(dry_run=True)
    assert bench.plans[-1].models == ()
    assert all(shares is None for shares in bench.wanted)
    bench.plans[-1] = PlanMessage(1, (PlannedModel("w1", 1, 4, workers=("w1.v100-1.200",)),))
    bench.run(2, w1=25.0)
    assert bench.journal[-1].dry_run
    assert "switched up" in bench.events()
    assert len(bench.plans) == 2


def test_a_withdrawal_keeps_the_workers_that_serve() -> None:
    bench = Bench()
    bench.apply()
    bench.run(1)
    assert bench.tune("withdraw", b"w1").status == Status.OK
    assert bench.tune("withdraw", b"w5").status == Status.OK
    assert [share.worker for share in bench.wanted[-1] or ()] == ["w1.v100-1.200", "w5.v100-1.500"]
    assert bench.plans[-1].models == ()
    assert bench.tune("withdraw", b"w1").status == Status.INVALID_INPUT
    bench.apply(w7=10.0)
    assert {share.worker for share in bench.wanted[-1] or ()} == {"w7.v100-1.100", "w7.v100-1.200"}


def test_a_withdrawal_leaves_the_other_plans() -> None:
    bench = Bench()
    bench.apply()
    bench.run(1)
    bench.tune("withdraw", b"w5")
    assert [model.model for model in bench.plans[-1].models] == ["w1"]
    assert {share.worker for share in bench.wanted[-1] or ()} == {"w1.v100-1.200", "w1.v100-1.300", "w5.v100-1.500"}
    bench.apply(w1=25.0)
    bench.run(1)
    assert "w5.v100-1.500" not in {share.worker for share in bench.wanted[-1] or ()}  # its device has another plan


def test_a_new_workload_stands_by_until_the_others_have_made_room() -> None:
    bench = Bench()
    bench.apply(w1=90.0)
    bench.run(1)
    assert bench.apply(w1=40.0, w5=60.0).status == Status.OK
    bench.run(1)
    serving = {model.model: model.workers for model in bench.plans[-1].models}
    assert serving == {"w1": ("w1.v100-1.400",), "w5": ("w5.v100-1.600",)}
    assert len(bench.wanted) >= 3  # `give` checks the sums of each call


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"version": 1, "plans": []}', "plans: got 0, wanted 1"),
        (b'{"gpus": 1}', "plan: "),
        (encode_plans(plans(w1=20.0, w2=120.0)), "percent: got 120"),
        (encode_plans(plans(w1=20.0, w2=60.0)), "device 'v100-1': percent: got 130 in all"),
    ],
)
def test_a_document_that_is_not_valid_changes_nothing(document: bytes, reason: str) -> None:
    bench = Bench()
    bench.apply()
    before = list(bench.plans)
    answer = bench.tune("apply", document)
    assert (answer.status, reason in answer.reason) == (Status.INVALID_INPUT, True), answer.reason
    assert bench.plans == before
