"""The mirror of workers: first and later reports, with models that are added, removed and changed."""

from __future__ import annotations

import msgspec
import pytest

from controller.controller_builders import OTHER, WORKER, a_new_controller, finish, register, state, submit, tick
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.distribution import Distribution
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Register, Result, Share, Unload
from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution

A, B = (a_report(a_spec(name, weights_bytes=6 << 24)) for name in ("a", "b"))


def test_a_load_under_way_when_the_controller_restarts_has_its_pages_and_is_not_asked_for_again() -> None:
    controller = a_new_controller()
    register(controller, A, B, shares=(Share(0, "cpu", 10, (), (("a/1", 5),)),))
    submit(controller, 1, model="b/1")
    submit(controller, 2, model="a/1")
    assert not sent(controller, Load)
    controller.handle(ms(9), WORKER, Result(5, Status.OK, ms(1), ms(9)), ())
    tick(controller, ms(9))
    assert [infer.model for infer in sent(controller, Infer)] == ["a/1"]


def test_the_pages_of_an_adopted_load_that_fails_are_free() -> None:
    controller = a_new_controller()
    register(controller, A, B, shares=(Share(0, "cpu", 10, (), (("a/1", 5),)),))
    submit(controller, 1, model="b/1")
    controller.handle(ms(9), WORKER, Result(5, Status.TOO_LATE, ms(9), ms(9)), ())
    tick(controller, ms(9))
    assert [load.model for load in sent(controller, Load)] == ["b/1"]


def test_a_load_that_was_refused_is_planned_again_after_a_pause() -> None:
    controller = a_new_controller()
    register(controller, A)
    submit(controller, 1, model="a/1")
    [load] = sent(controller, Load)
    finish(controller, load, ms(1), Status.REFUSED, reason="pages: a/1 needs 6, 4 of 10 are free")
    assert not sent(controller, Load)
    tick(controller, ms(11))
    [again] = sent(controller, Load)
    finish(controller, again, ms(19))
    assert len(sent(controller, Infer)) == 1
    assert not sent(controller, Outcome)


def test_a_model_that_has_left_the_report_is_unknown_and_its_pages_are_taken_back() -> None:
    controller = a_new_controller()
    register(controller, A, a_report(), resident=("a/1",))
    submit(controller, 1, 2, model="sum/1")
    [load] = sent(controller, Load)
    register(controller, resident=("a/1",))
    assert [unload.model for unload in sent(controller, Unload)] == ["a/1"]
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.UNKNOWN_MODEL] * 2, "those queued"
    assert state(controller) is None
    submit(controller, 3, model="a/1")
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.UNKNOWN_MODEL]
    finish(controller, load, ms(2), Status.FAILED, reason="not served by this worker")
    [share] = controller.cluster.shares()
    assert share.pages_free == 10
    register(controller, A, a_report())
    submit(controller, 4, model="a/1")
    assert [load.model for load in sent(controller, Load)] == ["a/1"]


def test_a_model_withdrawn_while_it_loads_is_unloaded_when_it_has() -> None:
    controller = a_new_controller()
    register(controller, a_report())
    submit(controller, 1)
    [load] = sent(controller, Load)
    register(controller)
    finish(controller, load, ms(2))
    assert [unload.model for unload in sent(controller, Unload)] == ["sum/1"]
    [share] = controller.cluster.shares()
    assert share.pages_free == 10


def test_a_batch_that_ends_after_its_model_was_withdrawn_is_answered() -> None:
    controller = a_new_controller(scheduler="clockwork")
    register(controller, a_report(), resident=("sum/1",))
    submit(controller, 1)
    submit(controller, 2)
    first, second = sent(controller, Infer)
    register(controller, resident=("sum/1",))
    finish(controller, first, ms(2))
    finish(controller, second, ms(3), Status.REFUSED)
    [outcome] = sent(controller, Outcome)
    assert (outcome.id, outcome.status) == (2, Status.UNKNOWN_MODEL)
    assert not controller.pending()


def test_a_model_withdrawn_at_one_worker_goes_on_at_the_other() -> None:
    controller = a_new_controller(scheduler="edf")
    register(controller, a_report(), resident=("sum/1",))
    register(controller, a_report(), worker=OTHER, resident=("sum/1",))
    submit(controller, 1, 2, 3, best_effort=True)
    for infer in sent(controller, Infer, WORKER):
        register(controller, resident=("sum/1",))
        finish(controller, infer, ms(1), Status.REFUSED)
    submit(controller, 4, now_ns=ms(2))
    submit(controller, 5, now_ns=ms(2), best_effort=True)
    assert state(controller) == ("READY", "")
    assert not sent(controller, Infer, WORKER)


def test_pages_of_a_model_that_the_worker_holds_and_does_not_serve_are_asked_back() -> None:
    controller = a_new_controller()
    register(controller, a_report(), msgspec.structs.replace(A, profile=None), resident=("a/1", "gone/1"))
    assert [unload.model for unload in sent(controller, Unload)] == ["a/1", "gone/1"]
    [share] = controller.cluster.shares()
    assert share.pages_free == 10


def test_one_share_that_cannot_load_a_model_does_not_withdraw_it_from_the_others() -> None:
    controller = a_new_controller()
    register(controller, a_report(), shares=(Share(0, "cpu", 10), Share(1, "cpu", 10)))
    submit(controller, 1)
    [load] = sent(controller, Load)
    finish(controller, load, ms(1), Status.FAILED, reason="bad page")
    assert state(controller) == ("READY", "")
    [other] = sent(controller, Load)
    assert other.share != load.share
    finish(controller, other, ms(2), Status.FAILED, reason="bad page")
    assert state(controller) == ("UNAVAILABLE", "bad page")
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.FAILED]


def test_a_share_that_could_not_load_a_model_is_not_asked_for_its_queue() -> None:
    controller = a_new_controller()
    register(controller, a_report(), shares=(Share(0, "cpu", 10), Share(1, "cpu", 10)))
    submit(controller, 1, best_effort=True)
    [load] = sent(controller, Load)
    finish(controller, load, ms(1), Status.FAILED, reason="bad page")
    [other] = sent(controller, Load)
    finish(controller, other, ms(2))
    assert [infer.share for infer in sent(controller, Infer)] == [other.share]


def test_the_profile_of_a_worker_that_is_gone_is_not_what_is_promised() -> None:
    cluster = Cluster()
    for address, exec_ms in ((WORKER, 2), (OTHER, 9)):
        cluster.workers[address] = worker = WorkerMirror(address, same_host=True)
        cluster.register_worker(worker, Register((Share(0, "cpu", 10),), (a_report(exec_ms=exec_ms),)))
    assert cluster.best_exec_ns(0, "sum/1", 1) == ms(2)
    cluster.remove_worker(cluster.workers[WORKER])
    assert cluster.best_exec_ns(1, "sum/1", 1) == ms(9)
    cluster.remove_worker(cluster.workers[OTHER])
    assert cluster.best_exec_ns(2, "sum/1", 1) == ms(9), "the last one stays: its worker may come back"


def test_a_trial_is_not_spent_on_a_worker_that_takes_nothing_more() -> None:
    cluster = Cluster()
    cluster.workers[WORKER] = worker = WorkerMirror(WORKER, same_host=True)
    cluster.register_worker(worker, Register((Share(0, "cpu", 10, ("sum/1",)),), (a_report(exec_ms=40),)))
    assert cluster.best_exec_ns(0, "sum/1", 1, ms(20)) == ms(40), "from now on it is doubted"
    cluster.drain_worker(worker)
    assert cluster.best_exec_ns(s(2), "sum/1", 1, ms(20)) == ms(40)
    worker.draining = False
    assert cluster.best_exec_ns(s(2), "sum/1", 1, ms(20)) == ms(10)


def test_a_metric_says_which_models_are_dynamic() -> None:
    controller = a_new_controller()
    register(controller, a_report(), resident=("sum/1",))
    dynamic = "horologe_model_dynamic", "sum", "1"
    controller.refresh_stats()
    assert controller.stats.values[dynamic] == 0
    solo = Distribution.from_counts([0, ms(1), ms(9)], [10, 10])
    controller.cluster.distributions["sum/1"] = RuntimeDistributions(0, [SoloDistribution("", 0, solo)])
    controller.refresh_stats()
    assert controller.stats.values[dynamic] == 1


def test_gauges_end_with_what_they_are_of() -> None:
    controller = a_new_controller()
    register(controller, a_report(), resident=("sum/1",))
    controller.refresh_stats()
    waiting, slowness = (
        ("nv_inference_pending_request_count", "sum", "1"),
        ("horologe_device_slowness", "worker/0", "0"),
    )
    assert {waiting, slowness} <= set(controller.stats.values)
    controller.handle(s(1), WORKER, PeerDisconnected(WORKER), ())
    tick(controller, s(1))
    controller.refresh_stats()
    assert waiting in controller.stats.values
    assert slowness not in controller.stats.values
    register(controller, a_report(), now_ns=s(2))
    register(controller, now_ns=s(2))
    controller.refresh_stats()
    assert waiting not in controller.stats.values


SMALL, LARGE = a_spec(batch_sizes=(1, 2, 4)), a_spec(batch_sizes=(1, 2, 4, 8))


def test_a_worker_without_all_batch_sizes_is_not_given_the_model_and_it_is_said_why() -> None:
    controller = a_new_controller()
    register(controller, a_report(LARGE), resident=("sum/1",))
    register(controller, a_report(SMALL), worker=OTHER, resident=("sum/1",))
    ready, reason = state(controller)
    assert ready == "READY"
    assert OTHER in reason
    assert "[8]" in reason
    submit(controller, *range(20))
    assert sent(controller, Infer, WORKER)
    assert not sent(controller, Infer, OTHER)
    controller.handle(1, WORKER, PeerDisconnected(WORKER), ())
    tick(controller, 1)
    assert state(controller) == ("READY", ""), "now it is the one that says what the model is"
    assert [load.model for load in sent(controller, Load, OTHER)] == ["sum/1"]


def test_a_worker_with_more_batch_sizes_than_admitted_runs_those_that_are() -> None:
    controller = a_new_controller()
    register(controller, a_report(SMALL), resident=("sum/1",))
    register(controller, a_report(LARGE), worker=OTHER, resident=("sum/1",))
    assert state(controller) == ("READY", "")
    submit(controller, *range(7))
    submit(controller, 8, rows=5)
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.INVALID_INPUT]
    infers = sent(controller, Infer)
    assert all(infer.batch_size <= 4 for infer in infers)
    assert controller.pending() == 7


def test_requests_queued_when_the_batch_sizes_change_are_queued_anew_or_told() -> None:
    controller = a_new_controller(in_flight=1)
    register(controller, a_report(SMALL), resident=("sum/1",))
    submit(controller, 1)
    [first] = sent(controller, Infer)
    submit(controller, 2, 3, 4)
    submit(controller, 5, rows=4)
    register(controller, a_report(a_spec(batch_sizes=(1, 2))), resident=("sum/1",))
    [outcome] = sent(controller, Outcome)
    assert (outcome.id, outcome.status) == (5, Status.INVALID_INPUT)
    assert not sent(controller, Unload), "it can go on where it is"
    finish(controller, first, ms(3))
    [second] = sent(controller, Infer)
    assert second.batch_size == 2
    finish(controller, second, ms(6))
    [third] = sent(controller, Infer)
    finish(controller, third, ms(9))
    assert not controller.pending()


@pytest.mark.parametrize(
    ("runtime", "device", "efficient"),
    [("onnx", "cpu", {1, 2, 4}), ("python", "xeon", {1, 2, 4}), ("onnx", "cuda:0", {1}), ("emulated", "cpu", {1})],
)
def test_on_a_cpu_larger_batches_save_the_time_of_services_that_share_its_cores(
    runtime: str, device: str, efficient: set[int]
) -> None:
    spec = msgspec.structs.replace(a_spec(batch_sizes=(1, 2, 4, 8)), runtime=runtime)
    cluster, worker = Cluster(), WorkerMirror(WORKER, True)
    cluster.specs = {spec.key: spec}
    cluster.workers[WORKER] = worker
    report = a_report(spec, exec_ms=10.6, per_row_ms=10.6)
    cluster.register_worker(worker, Register((Share(0, device, 64),), (report,)))
    (share,) = cluster.shares()
    assert share.estimates[spec.key].efficient_sizes == efficient
