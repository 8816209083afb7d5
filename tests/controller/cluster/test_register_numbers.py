"""Reports of a forged or broken worker: what is out of range is named, and the rest is served."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.changed_model_builders import with_old_content
from controller.controller_builders import (
    FRONTEND,
    MODEL,
    OTHER,
    WORKER,
    a_new_controller,
    connect,
    register,
    submit,
)
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import s
from horologe_common.models import MAX_DIM, Profile, TensorSpec
from horologe_common.status import Status
from horologe_common.wire import (
    DeviceInfo,
    Envelope,
    Infer,
    ModelReport,
    Models,
    Pong,
    Register,
    Result,
    Share,
    encode,
)
from horologe_controller.core.cluster.report_checks import check_register, failed_result
from horologe_controller.schedulers import SCHEDULERS

LARGEST, LEAST = (1 << 64) - 1, -(1 << 63)
GOOD = a_report(a_spec(content_hash="old"))


def evil(profile: Profile | None = None, **fields: Any) -> ModelReport:
    spec = msgspec.structs.replace(a_spec(name="evil"), **fields)
    return ModelReport(spec, profile or Profile(dict.fromkeys(spec.batch_sizes, 1000), 1000))


BAD_MODELS = [
    (evil(weights_bytes=LARGEST), "weights_bytes: got 18446744073709551615, wanted at least 0"),
    (evil(weights_bytes=LEAST), "weights_bytes: got -9223372036854775808, wanted at least 0"),
    (evil(slo_ns=LARGEST), "slo: got 18446744073709551615, wanted"),
    (evil(cache_ttl_ns=LEAST), "cache_ttl: got -9223372036854775808, wanted"),
    (evil(batch_sizes=(0,)), "batch_sizes: got [0], wanted ascending"),
    (evil(batch_sizes=(-4, 1)), "batch_sizes: got [-4, 1], wanted ascending"),
    (evil(batch_sizes=()), "batch_sizes: got none, wanted"),
    (evil(batch_sizes=(LARGEST,)), "batch_sizes: got [18446744073709551615], wanted ascending"),
    (evil(profile_length=LARGEST), "profile_length: got 18446744073709551615, wanted"),
    (evil(inputs=(TensorSpec("x", "FP32", (-1, MAX_DIM << 1)),)), "inputs: x: shape: got"),
    (evil(inputs=(TensorSpec("x", "FP33", (-1, 4)),)), "inputs: x: datatype: got 'FP33', wanted"),
    (evil(Profile({1: LARGEST}, 1)), "exec_ns of batch size 1: got 18446744073709551615, wanted"),
    (evil(Profile({1: LEAST}, 1)), "exec_ns of batch size 1: got -9223372036854775808, wanted"),
    (evil(Profile({-4: 1, 1: 1}, 1)), "exec_ns: got [-4, 1], wanted ascending"),
    (evil(Profile({1: 1}, LARGEST)), "load_ns: got 18446744073709551615, wanted"),
]


@pytest.mark.parametrize(("report", "reason"), BAD_MODELS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_model_out_of_range_is_unavailable_and_the_others_are_served(
    report: ModelReport, reason: str, scheduler: str
) -> None:
    controller = a_new_controller(scheduler=scheduler)
    register(controller, GOOD, report, resident=(MODEL,))
    announced = sent(controller, Models, FRONTEND)[-1]
    states = {state.spec.name: state for state in announced.models}
    assert (states["sum"].state, states["evil"].state) == ("READY", "UNAVAILABLE")
    assert reason in states["evil"].reason
    encode([Envelope("a", "b", [announced])])
    submit(controller, 1)
    for _ in range(20):  # some schedulers wait for a larger batch
        controller.tick(controller.wakeup_ns() or 0)
    assert [infer.model for infer in sent(controller, Infer)] == [MODEL]


@pytest.mark.parametrize(
    "times",
    [(LARGEST, 0, 0), (0, LARGEST, 0), (5, 4, 0), (0, LEAST, 0), (LEAST, LARGEST, 0), (1, 2, LARGEST), (1, 2, -1)],
)
def test_a_result_with_times_out_of_range_is_failed_and_changes_no_estimate(times: tuple[int, int, int]) -> None:
    controller = with_old_content()
    predicted_ns = controller.cluster.cached_exec_ns(0, MODEL, 1)
    submit(controller, 1)
    [infer] = sent(controller, Infer)
    controller.handle(0, WORKER, Result(infer.action_id, int(Status.OK), *times), ())
    controller.tick(0)
    controller.check()
    failed = failed_result(WORKER, Result(1, int(Status.OK), *times))
    assert failed.status == Status.FAILED
    assert failed.reason.startswith("worker/0#1: got a duration of ")
    assert controller.cluster.cached_exec_ns(s(1), MODEL, 1) == predicted_ns
    submit(controller, 2)
    assert sent(controller, Infer)


@pytest.mark.parametrize("pong", [Pong(1, 0), Pong(-1, 0), Pong(0, LARGEST), Pong(0, -1), Pong(LARGEST, 0)])
def test_a_clock_out_of_range_is_not_used(pong: Pong) -> None:
    controller = with_old_content()
    connect(controller, "worker/2#1", host="another host")
    controller.handle(0, "worker/2#1", pong, ())
    assert not controller.cluster.workers["worker/2#1"].reachable
    controller.handle(0, "worker/2#1", Pong(0, s(100)), ())
    assert controller.cluster.workers["worker/2#1"].reachable


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (Share(-1, "cpu", 8), "share -1: share: got -1, wanted at least 0"),
        (Share(LARGEST, "cpu", 8), "share: got 18446744073709551615, wanted"),
        (Share(1, "cpu", LARGEST), "share 1: pages_total: got 18446744073709551615, wanted"),
        (Share(1, "cpu", -8), "share 1: pages_total: got -8, wanted"),
        (Share(1, "cpu", 8, percent=float("nan")), "share 1: percent: got nan, wanted"),
        (Share(1, "cpu", 8, percent=float("inf")), "share 1: percent: got inf, wanted"),
        (Share(1, "cpu", 8, percent=0.0), "share 1: percent: got 0.0, wanted"),
    ],
)
def test_a_share_out_of_range_is_not_used(share: Share, reason: str) -> None:
    good = Share(0, "cpu", 8, (MODEL,))
    assert check_register(Register((good, share), (GOOD,))) == Register((good,), (GOOD,))
    alone = check_register(Register((share,), (GOOD,)))
    assert (alone.shares, alone.models[0].profile) == ((), None)
    assert reason in alone.models[0].reason


def test_a_share_that_is_reported_twice_is_used_once() -> None:
    first, second = Share(0, "cpu", 8), Share(0, "cuda", 8)
    assert check_register(Register((first, second), (GOOD,))).shares == (first,)


def test_a_device_out_of_range_is_not_known() -> None:
    for info in (
        DeviceInfo("gpu", "t", LEAST),
        DeviceInfo("gpu", "t", 1, float("nan")),
        DeviceInfo("gpu", "t", 1, -1.0),
    ):
        assert check_register(Register((), (), device_info=info)).device_info == DeviceInfo("gpu", "t")


def test_a_worker_with_models_out_of_range_leaves_another_worker_alone() -> None:
    controller = with_old_content(WORKER)
    bad = msgspec.structs.replace(GOOD, profile=Profile({1: LARGEST}, LEAST))
    register(controller, bad, worker=OTHER, resident=(MODEL,))
    assert [share.worker for share in controller.cluster.capable[MODEL]] == [WORKER]
    for number in range(1, 5):
        submit(controller, number)
    assert {out.to for out in controller.out if isinstance(out.message, Infer)} == {WORKER}
