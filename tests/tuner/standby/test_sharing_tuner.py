"""The tuner core with a plan of shares: plan, workers, status, journal, metrics, restart, dry run and withdrawal."""

from __future__ import annotations

import msgspec

from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.latency_buckets import latency_bucket
from horologe_common.status import Status
from horologe_common.wanted_shares import WantedShare
from horologe_common.wire import DeviceState, Events, ModelEvents, PlannedModel, Tuning
from horologe_common.wire import ResourcePlan as PlanMessage
from horologe_planning.plan import Placement, Plan, encode_plans
from horologe_tuner.core.tuner import TunerState
from tuner.tuner_bench import CONTROLLER, Bench

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


class SharingBench(Bench):
    """A tuner whose workers of shares are connected at once, with their models loaded."""

    def apply_shares(self, dry_run: bool = False, **percents: float) -> Tuning:
        return self.tune("apply", encode_plans(plans(**percents)), dry_run)

    def devices(self) -> tuple[DeviceState, ...]:
        wanted = (self.shares[-1] if self.shares else None) or ()
        return tuple(
            DeviceState(f"worker/{share.worker}#1", 0, "v100", (key := f"{share.models[0]}/1",), (key,), share.percent)
            for share in wanted
        )

    def serve(self, seconds: float, **slow: float) -> None:
        """Let time pass. `slow`: percent that a workload needs; with less it exceeds its SLO."""
        for _ in range(round(10 * seconds)):
            self.now_ns += ms(100)
            self.number += 1
            models = []
            for model in self.plans[-1].models:
                late = float(model.workers[0].rpartition(".")[2]) / 10 < slow.get(model.model, 0.0)
                bucket = latency_bucket(ms(14) if late else ms(6), SLO_NS)
                models.append(ModelEvents(f"{model.model}/1", (), 40, 0, ((bucket, 40),)))
            self.give(CONTROLLER, Events(self.number, ms(100), ms(10), tuple(models), self.devices()))


def test_a_plan_of_shares_reaches_controller_scaler_and_state_file() -> None:
    bench = SharingBench()
    assert bench.apply_shares().status == Status.OK
    bench.serve(0.5)
    w1, w5 = bench.plans[-1].models
    shadow = ("w1.v100-1.300",)
    assert w1 == PlannedModel("w1", 1, 4, "v100", ("w1.v100-1.200",), {4: ms(4)}, shadow, SLO_NS)
    assert w5.standby == ("w5.v100-1.600",)
    wanted = {share.worker: share for share in bench.shares[-1] or ()}
    assert {name: share.standby_for for name, share in wanted.items()} == {
        "w1.v100-1.200": "", "w5.v100-1.500": "",
        "w1.v100-1.300": "w1.v100-1.200", "w5.v100-1.600": "w5.v100-1.500",
    }  # fmt: skip
    assert wanted["w1.v100-1.300"] == WantedShare(
        "w1.v100-1.300", "v100-1", "v100", 30.0, models=("w1",), standby_for="w1.v100-1.200"
    )
    assert [applied.plan.name for applied in bench.saved[-1].applied] == ["w1", "w5"]
    assert bench.noted() == ["applied", "applied"]
    assert bench.journal[0].text == "replicas: w1 20% of v100-1"


def test_a_switch_is_a_plan_a_log_line_a_metric_and_a_status() -> None:
    bench = SharingBench()
    bench.apply_shares()
    bench.serve(2)
    before = len(bench.plans)
    bench.serve(2, w1=25.0)
    (plan,) = bench.plans[before:]
    assert plan.models[0].workers == ("w1.v100-1.300",)
    assert plan.models[0].exec_ns == {}  # predicted for the planned share only
    assert plan.models[0].standby == ("w1.v100-1.400", "w1.v100-1.200")
    assert bench.noted() == ["applied", "applied", "switched up"]
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
    bench.serve(15)
    assert bench.noted() == ["applied", "applied", "switched up", "switched back"]


def test_a_violation_without_room_is_reported_once() -> None:
    bench = SharingBench()
    bench.apply_shares(w1=20.0, w5=80.0)
    bench.serve(10, w1=25.0)
    assert bench.noted() == ["applied", "applied", "not repaired"]
    assert bench.status()["plans"][0]["stages"][0]["state"] == "violated: nothing is left of its device"
    assert len(bench.plans) == 2


def test_a_restarted_tuner_keeps_the_shares_that_serve() -> None:
    bench = SharingBench()
    bench.apply_shares()
    bench.serve(3, w1=25.0)
    state = msgspec.json.decode(msgspec.json.encode(bench.saved[-1]), type=TunerState)
    again = SharingBench(state)
    again.serve(0.2)
    assert again.plans[-1].models == bench.plans[-1].models
    assert {share.worker for share in again.shares[-1] or ()} == {share.worker for share in bench.shares[-1] or ()}


def test_another_controller_reports_its_workers_one_by_one() -> None:
    bench = SharingBench()
    bench.apply_shares()
    bench.serve(1)
    bench.give(CONTROLLER, PeerDisconnected(CONTROLLER))
    bench.give(CONTROLLER, PeerConnected(CONTROLLER))
    devices = bench.devices()
    for number in range(1, len(devices) + 1):
        bench.now_ns += ms(100)
        bench.give(CONTROLLER, Events(number, ms(100), ms(10), (), devices[-number:]))
    assert "failed over" not in bench.noted()


def test_a_dry_run_only_reports() -> None:
    bench = SharingBench()
    bench.apply_shares(dry_run=True)
    assert bench.plans[-1].models == ()
    assert all(shares is None for shares in bench.shares)
    bench.plans[-1] = PlanMessage(1, (PlannedModel("w1", 1, 4, workers=("w1.v100-1.200",)),))
    bench.serve(2, w1=25.0)
    assert bench.journal[-1].dry_run
    assert "switched up" in bench.noted()
    assert len(bench.plans) == 2


def test_a_withdrawal_keeps_the_workers_that_serve() -> None:
    bench = SharingBench()
    bench.apply_shares()
    bench.serve(1)
    assert bench.tune("withdraw", b"w1").status == Status.OK
    assert bench.tune("withdraw", b"w5").status == Status.OK
    assert [share.worker for share in bench.shares[-1] or ()] == ["w1.v100-1.200", "w5.v100-1.500"]
    assert bench.plans[-1].models == ()
    assert bench.tune("withdraw", b"w1").status == Status.INVALID_INPUT
    bench.apply_shares(w7=10.0)
    assert {share.worker for share in bench.shares[-1] or ()} == {"w7.v100-1.100", "w7.v100-1.200"}


def test_a_withdrawal_leaves_the_other_plans() -> None:
    bench = SharingBench()
    bench.apply_shares()
    bench.serve(1)
    bench.tune("withdraw", b"w5")
    assert [model.model for model in bench.plans[-1].models] == ["w1"]
    assert {share.worker for share in bench.shares[-1] or ()} == {"w1.v100-1.200", "w1.v100-1.300", "w5.v100-1.500"}
    bench.apply_shares(w1=25.0)
    bench.serve(1)
    assert "w5.v100-1.500" not in {share.worker for share in bench.shares[-1] or ()}  # its device has another plan


def test_a_new_workload_stands_by_until_the_others_have_made_room() -> None:
    bench = SharingBench()
    bench.apply_shares(w1=90.0)
    bench.serve(1)
    assert bench.apply_shares(w1=40.0, w5=60.0).status == Status.OK
    bench.serve(1)
    serving = {model.model: model.workers for model in bench.plans[-1].models}
    assert serving == {"w1": ("w1.v100-1.400",), "w5": ("w5.v100-1.600",)}
    assert len(bench.shares) >= 3  # `give` checks the sums of each call


def test_a_document_that_is_not_valid_changes_nothing() -> None:
    bench = SharingBench()
    bench.apply_shares()
    before = list(bench.plans)
    answer = bench.apply_shares(w1=20.0, w2=60.0)
    assert answer.status == Status.INVALID_INPUT
    assert "device 'v100-1': percent: got 130 in all" in answer.reason
    assert bench.plans == before
