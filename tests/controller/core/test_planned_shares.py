"""Plans that name workers: shares of devices, predictions beside neighbours, and workers that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controller.controller_builders import FRONTEND, SELECTOR, TUNER
from controller.plan_bench import Bench
from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Describe, Description, Events, Load, PlannedModel, ResourcePlan, Result
from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
from horologe_controller.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from horologe_common.models import Profile
    from horologe_controller.core.cluster.share import Share


def a_shared_gpu(**options: object) -> Bench:
    """A GPU with shares of 40% and 60% of workers `left` and `right`."""
    bench = Bench((), ("a", "b"), **options)
    bench.add_worker("v100", "left", 40, "gpu-0")
    bench.add_worker("v100", "right", 60, "gpu-0")
    return bench


def predictions(bench: Bench, worker: str, model: str = "a/1") -> dict[int, int]:
    (share,) = bench.controller.cluster.workers[worker].shares.values()
    return {size: share.predict(bench.now_ns, model, size) for size in (1, 2, 4, 8, 16)}


def test_a_model_runs_only_on_the_workers_that_the_plan_names() -> None:
    bench = a_shared_gpu()
    bench.plan(PlannedModel("a", 1, 8, workers=("right",)), PlannedModel("b", 1, 8, workers=("left",)))
    bench.submit("a/1", count=20)
    assert {worker for worker, _ in bench.finish_all()} == {bench.workers[1]}
    bench.submit("b/1", count=20, first=1000)
    assert {worker for worker, _ in bench.finish_all()} == {bench.workers[0]}


def test_all_named_workers_hold_the_model_however_few_shares_are_planned() -> None:
    bench = a_shared_gpu()
    bench.plan(PlannedModel("a", 1, 8, workers=("right", "left", "absent")))
    assert {worker for worker, model in bench.loads if model == "a/1"} == set(bench.workers)


def test_without_its_workers_a_model_follows_the_hardware_type() -> None:
    bench = a_shared_gpu()
    cpu = bench.add_worker("cpu")
    bench.plan(PlannedModel("a", 1, 8, "cpu", workers=("absent",)))
    bench.submit("a/1")
    assert {worker for worker, _ in bench.finish_all()} == {cpu}
    named = bench.add_worker("v100", "absent")
    bench.submit("a/1", first=10)
    assert {worker for worker, _ in bench.finish_all()} == {named}


def test_a_restarted_worker_keeps_its_place_in_the_plan() -> None:
    bench = a_shared_gpu()
    bench.plan(PlannedModel("a", 1, 8, workers=("left",)), PlannedModel("b", 1, 8, workers=("right",)))
    bench.submit("a/1", count=3)
    bench.lose(bench.workers[0])
    restarted = bench.add_worker("v100", "left", 40, "gpu-0")
    assert restarted != bench.workers[0]
    bench.finish_all()
    bench.submit("a/1", count=3, first=100)
    assert {worker for worker, _ in bench.finish_all()} == {restarted}


def test_predictions_of_the_plan_seed_the_estimates_of_its_shares_only() -> None:
    bench = a_shared_gpu()
    alone = predictions(bench, bench.workers[0])
    bench.plan(PlannedModel("a", 2, 16, workers=("left",), exec_ns={4: 3 * alone[4]}), PlannedModel("b", 1, 8))
    beside = predictions(bench, bench.workers[0])
    assert beside == {size: 3 * alone_ns for size, alone_ns in alone.items()}
    assert predictions(bench, bench.workers[1], "b/1") == alone


def test_each_batch_size_is_scaled_as_the_nearest_that_is_predicted() -> None:
    bench = a_shared_gpu()
    alone = predictions(bench, bench.workers[0])
    bench.plan(PlannedModel("a", 1, 16, workers=("left",), exec_ns={1: 2 * alone[1], 16: 5 * alone[16]}))
    beside = predictions(bench, bench.workers[0])
    assert [beside[size] / alone[size] for size in (1, 2, 4, 8, 16)] == [2, 2, 2, 2, 5]


def test_measurements_replace_the_predictions_until_the_plan_changes_them() -> None:
    bench = a_shared_gpu()
    planned = PlannedModel("a", 1, 1, workers=("left",), exec_ns={1: ms(7)})
    bench.plan(planned)
    bench.submit("a/1", count=30)
    bench.finish_all()  # each takes 1 ms
    assert predictions(bench, bench.workers[0])[1] == ms(1)
    bench.plan(planned, number=2)
    assert predictions(bench, bench.workers[0])[1] == ms(1)
    bench.plan(PlannedModel("a", 1, 1, workers=("left",), exec_ns={1: ms(9)}), number=3)
    assert predictions(bench, bench.workers[0])[1] == ms(9)


def test_shares_of_one_model_may_have_different_predictions() -> None:
    bench = a_shared_gpu()
    bench.plan(
        PlannedModel("a", 1, 4, workers=("left",), exec_ns={1: ms(20)}),
        PlannedModel("a", 1, 8, workers=("right",), exec_ns={1: ms(30)}),
    )
    assert [predictions(bench, worker)[1] for worker in bench.workers] == [ms(20), ms(30)]
    assert bench.controller.cluster.specs["a/1"].max_batch == 8


def test_moving_a_model_to_a_share_of_another_size_loses_no_request() -> None:
    """Start, load, move, drain: the order in which a share changes its size."""
    bench = a_shared_gpu(in_flight=1)
    bench.plan(PlannedModel("a", 1, 2, workers=("left",)), PlannedModel("b", 1, 2, workers=("right",)))
    old = bench.workers[0]
    bench.submit("a/1", count=40)
    new = bench.add_worker("v100", "left-2", 50, "gpu-0")
    bench.plan(
        PlannedModel("a", 1, 2, workers=("left", "left-2")), PlannedModel("b", 1, 2, workers=("right",)), number=2
    )
    assert (new, "a/1") in bench.loads
    assert not [model for worker, model in bench.unloads if (worker, model) == (old, "a/1")]
    bench.plan(PlannedModel("a", 1, 2, workers=("left-2",)), PlannedModel("b", 1, 2, workers=("right",)), number=3)
    done = bench.finish_all()
    assert sum(len(infer.rows) for _, infer in done) == 40
    assert {worker for worker, _ in done[2:]} == {new}


def test_a_switch_checks_the_shares_of_the_named_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effort is that of the workers of the changed model, not that of all models on all workers."""
    models = tuple(f"m{number}" for number in range(12))
    bench = Bench((), models)
    for model in models:
        for size in (30, 40):
            bench.add_worker("v100", f"{model}-{size}", size, "gpu-0")
    plan = {model: PlannedModel(model, 1, 8, workers=(f"{model}-30",)) for model in models}
    bench.plan(*plan.values())
    calls: list[str] = []
    check = Cluster.runnable_profile

    def count_call(cluster: Cluster, worker: WorkerMirror, share: Share, key: str) -> Profile | None:
        calls.append(key)
        return check(cluster, worker, share, key)

    monkeypatch.setattr(Cluster, "runnable_profile", count_call)
    plan["m3"] = PlannedModel("m3", 1, 8, workers=("m3-40",))
    bench.plan(*plan.values(), number=2)
    assert len(calls) <= 2 * len(models)
    bench.submit("m3/1", count=5)
    assert {worker.partition("#")[0] for worker, _ in bench.finish_all()} == {"worker/m3-40"}


def test_devices_have_the_shares_of_the_workers_that_report_their_id() -> None:
    bench = a_shared_gpu()
    alone = bench.add_worker("cpu")
    devices = bench.controller.cluster.devices
    assert {name: device.percent for name, device in devices.by_id.items()} == {"gpu-0": 100, "worker/2": 100}
    left, right, own = bench.controller.cluster.shares()
    assert list(devices.of(left).shares) == [left, right]
    assert list(devices.of(own).shares) == [own]
    bench.lose(bench.workers[0])
    assert devices.by_id["gpu-0"].percent == 60
    bench.controller.refresh_stats()
    assert bench.controller.stats.values["horologe_device_share_percent", "gpu-0", "v100"] == 60
    bench.lose(bench.workers[1])
    bench.lose(alone)
    assert devices.by_id == {}


def test_a_lost_device_leaves_its_models_to_the_others() -> None:
    """Both shares of the GPU disappear with requests in flight: they run elsewhere."""
    bench = a_shared_gpu(in_flight=1)
    bench.plan(PlannedModel("a", 1, 2, "v100", ("left",)), PlannedModel("b", 1, 2, "v100", ("right",)))
    bench.submit("a/1", count=6)
    bench.submit("b/1", count=6, first=100)
    other = bench.add_worker("v100", "other", 100, "gpu-1")
    for worker in bench.workers[:2]:
        bench.controller.handle(bench.now_ns, worker, PeerDisconnected(worker), ())
        bench.infers = [item for item in bench.infers if item[0] != worker]
    bench.settle()
    done = bench.finish_all()
    assert sum(len(infer.rows) for _, infer in done) == 12
    assert {worker for worker, _ in done} == {other}


def test_the_tuner_sees_which_shares_have_loaded_their_models() -> None:
    bench = a_shared_gpu(preload=False)
    bench.controller.handle(0, TUNER, ResourcePlan(1, (PlannedModel("a", 1, 8, workers=("left",)),)), ())
    bench.controller.tick(ms(100))
    (load,) = [load for load in sent(bench.controller, Load) if load.model == "a/1"]
    first = sent(bench.controller, Events, TUNER)[-1]
    assert first.devices is not None
    state = first.devices[0]
    assert (state.models, state.loaded, state.percent, state.device_id) == (("a/1",), (), 40, "gpu-0")
    result = Result(load.action_id, Status.OK, ms(100), ms(101))
    bench.controller.handle(ms(150), bench.workers[0], result, ())
    bench.controller.tick(ms(200))
    second = sent(bench.controller, Events, TUNER)[-1]
    assert second.devices is not None
    assert second.devices[0].loaded == ("a/1",)


def test_operators_see_shares_and_devices() -> None:
    bench = a_shared_gpu()
    bench.controller.handle(0, FRONTEND, Describe(1), ())
    (description,) = sent(bench.controller, Description)
    assert [(share.percent, share.device_info.id) for share in description.shares] == [(40, "gpu-0"), (60, "gpu-0")]


@pytest.mark.parametrize("exec_ns", [{}, {3: ms(5)}], ids=["none", "another size"])
def test_predictions_without_a_compiled_size_change_nothing(exec_ns: dict[int, int]) -> None:
    bench = a_shared_gpu()
    alone = predictions(bench, bench.workers[0])
    bench.plan(PlannedModel("a", 1, 16, workers=("left",), exec_ns=exec_ns))
    assert predictions(bench, bench.workers[0]) == alone


def test_a_standby_share_loads_the_model_and_runs_nothing() -> None:
    bench = a_shared_gpu()
    bench.plan(PlannedModel("a", 1, 8, workers=("left",), standby=("right",)))
    assert {worker for worker, model in bench.loads if model == "a/1"} == set(bench.workers)
    bench.submit("a/1", count=40)
    assert {worker for worker, _ in bench.finish_all()} == {bench.workers[0]}
    bench.controller.handle(bench.now_ns, SELECTOR, Describe(1, "a/1"), ())
    (description,) = [out.message for out in bench.controller.out if isinstance(out.message, Description)]
    assert all("a/1" in share.resident and "a/1" in share.kept for share in description.shares)


def run_switches(scheduler: str, *orders: tuple[str, str]) -> tuple[Bench, int]:
    """Run 14 requests around each of 20 plans, in which the orders of active and standby worker take turns."""
    bench, served = a_shared_gpu(scheduler=scheduler), 0
    for number in range(1, 21):
        active, standby = orders[number % len(orders)]
        bench.submit("a/1", count=7, first=1000 * number)
        bench.plan(PlannedModel("a", 1, 8, workers=(active,), standby=(standby,)), number=number)
        bench.submit("a/1", count=7, first=1000 * number + 100)
        served += sum(len(infer.rows) for _, infer in bench.finish_all())
    assert bench.controller.pending() == 0
    return bench, served


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_switch_to_the_standby_share_loads_and_loses_nothing(scheduler: str) -> None:
    _, without = run_switches(scheduler, ("left", "right"))
    bench, served = run_switches(scheduler, ("left", "right"), ("right", "left"))
    assert served == without == (280 if scheduler != "deferred" else without)  # which drops some by its policy
    assert len([1 for _, model in bench.loads if model == "a/1"]) == 2
    assert bench.unloads == []


def test_a_standby_share_takes_over_at_once_when_the_worker_is_lost() -> None:
    bench = a_shared_gpu()
    bench.add_worker("v100", "other", 100, "gpu-1")
    bench.plan(PlannedModel("a", 1, 8, workers=("left",), standby=("right",)))
    bench.submit("a/1", count=20)
    bench.lose(bench.workers[0])
    done = bench.finish_all()
    assert {worker for worker, _ in done} == {bench.workers[1]}
    assert sum(len(infer.rows) for _, infer in done) == 20
    restarted = bench.add_worker("v100", "left", 40, "gpu-0")
    bench.submit("a/1", count=3, first=1000)
    assert {worker for worker, _ in bench.finish_all()} == {restarted}


def test_a_standby_share_that_leaves_the_plan_unloads_the_model() -> None:
    bench = a_shared_gpu()
    bench.plan(PlannedModel("a", 1, 8, workers=("left",), standby=("right",)))
    bench.plan(PlannedModel("a", 1, 8, workers=("left",)), number=2)
    assert bench.unloads == [(bench.workers[1], "a/1")]


def test_latencies_are_counted_by_the_slo_of_the_plan() -> None:
    bench = a_shared_gpu()
    bench.plan(PlannedModel("a", 1, 1, workers=("left",), slo_ns=ms(3)), PlannedModel("b", 1, 8, workers=("right",)))
    bench.submit("a/1", count=6)
    bench.submit("b/1", count=6, first=100)
    bench.finish_all()  # one request each millisecond
    bench.now_ns += ms(100)
    bench.controller.tick(bench.now_ns)
    counts = {model.model: model.latencies for event in sent(bench.controller, Events, TUNER) for model in event.models}
    assert counts.get("b/1", ()) == ()
    assert sum(count for _, count in counts["a/1"]) == 6
    assert 0 < sum(count for bucket, count in counts["a/1"] if bucket > 0) < 6


def test_predictions_are_not_scaled_by_the_pace_of_the_profile_that_they_replace() -> None:
    """The share was three times slower than its profile. The plan predicts just that."""
    bench = a_shared_gpu()
    alone = predictions(bench, bench.workers[0])
    planned = PlannedModel("a", 1, 1, workers=("left",))
    bench.plan(planned)
    estimate = next(bench.controller.cluster.shares()).estimates["a/1"]
    for _ in range(20):
        estimate.observe(bench.now_ns, 1, 3 * alone[1])
    assert predictions(bench, bench.workers[0])[2] == 3 * alone[2]
    bench.plan(PlannedModel("a", 1, 1, workers=("left",), exec_ns={1: 3 * alone[1]}), number=2)
    assert predictions(bench, bench.workers[0])[2] == 3 * alone[2]
