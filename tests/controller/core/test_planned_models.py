"""A tuner's plan at the controller: batches, shares, residency and pools; and nothing without a plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.controller_builders import FRONTEND, SELECTOR, TUNER
from controller.plan_bench import Bench
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Drain,
    PlannedModel,
    Result,
)
from horologe_controller.schedulers import SCHEDULERS


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_batch_is_larger_than_planned(scheduler: str) -> None:
    bench = Bench(("cpu",), scheduler=scheduler, in_flight=1)
    bench.plan(PlannedModel("sum", 1, 4))
    bench.submit(count=17)
    done = bench.finish_all()
    assert max(infer.batch_size for _, infer in done) == 4
    assert sum(len(infer.rows) for _, infer in done) >= 16  # `deferred` refuses what it has deferred for too long


def test_a_request_with_more_rows_than_the_planned_batch_runs_alone() -> None:
    bench = Bench(("cpu",))
    bench.plan(PlannedModel("sum", 1, 4))
    bench.submit(rows=7, first=1)
    bench.submit(rows=2, first=2)
    bench.submit(rows=17, first=3)
    sizes = [(infer.batch_size, len(infer.rows)) for _, infer in bench.finish_all()]
    assert sorted(sizes) == [(2, 1), (8, 1)]


def test_a_batch_below_the_smallest_size_stands_for_the_smallest() -> None:
    bench = Bench(())
    bench.specs[0] = a_spec(batch_sizes=(4, 8), weights_bytes=1 << 24)
    bench.add_worker("cpu")
    bench.plan(PlannedModel("sum", 1, 2))
    bench.submit(count=9)
    assert all(infer.batch_size >= 4 for _, infer in bench.finish_all())


def test_a_model_runs_only_on_its_shares_of_its_hardware_type() -> None:
    bench = Bench(("cpu", "v100", "v100", "v100"), ("sum", "other"))
    bench.plan(PlannedModel("sum", 2, 16, "v100"))
    for _ in range(8):
        bench.submit(count=4, first=bench.now_ns * 100 + 1)
        used = {worker for worker, _ in bench.finish_all()}
        assert used <= {bench.workers[1], bench.workers[2]}
    bench.submit("other/1", count=40)
    assert {worker for worker, _ in bench.finish_all()} <= set(bench.workers)


def test_models_get_devices_of_their_own_while_there_are_enough() -> None:
    bench = Bench(("v100",) * 4, ("a", "b"))
    bench.plan(PlannedModel("a", 2, 16, "v100"), PlannedModel("b", 2, 16, "v100"))
    kept = [set(share.kept) for share in bench.controller.cluster.shares()]
    assert sorted(map(sorted, kept)) == [["a/1"], ["a/1"], ["b/1"], ["b/1"]]
    bench.plan(PlannedModel("a", 3, 16, "v100"), PlannedModel("b", 2, 16, "v100"), number=2)
    bench.add_worker("v100")
    kept = [set(share.kept) for share in bench.controller.cluster.shares()]
    assert sorted(map(sorted, kept)) == [["a/1"], ["a/1"], ["a/1"], ["b/1"], ["b/1"]]


def test_a_planned_model_stays_loaded_however_much_the_others_are_used() -> None:
    models = tuple("abcdefgh")
    bench = Bench(("cpu",), models, pages=3, preload=False)
    bench.submit("b/1")
    bench.submit("c/1")
    bench.submit("d/1")
    bench.finish_all()
    bench.plan(PlannedModel("a", 1, 16))
    assert bench.loads[-1] == (bench.workers[0], "a/1")  # for no request
    bench.unloads.clear()
    for model in "efghbcd" * 3:
        bench.submit(f"{model}/1", first=bench.now_ns + 1)
        bench.finish_all()
    assert len(bench.unloads) > 10
    assert (bench.workers[0], "a/1") not in bench.unloads


def test_without_a_device_of_its_type_a_model_runs_on_any() -> None:
    bench = Bench(("cpu",))
    bench.plan(PlannedModel("sum", 2, 16, "v100"))
    bench.submit()
    assert [worker for worker, _ in bench.finish_all()] == [bench.workers[0]]
    bench.add_worker("v100")
    bench.submit(count=3)
    assert {worker for worker, _ in bench.finish_all()} == {bench.workers[1]}


@pytest.mark.parametrize("drains", [True, False], ids=["drained", "lost"])
def test_a_share_that_leaves_is_replaced(drains: bool) -> None:
    bench = Bench(("cpu", "cpu"))
    bench.plan(PlannedModel("sum", 1, 16))
    bench.submit()
    ((first, infer),) = bench.infers
    if drains:
        bench.controller.handle(bench.now_ns, first, Drain(), ())
        bench.settle()
        bench.controller.handle(bench.now_ns, first, Result(infer.action_id, Status.OK, 0, ms(1)), ())
    else:
        bench.controller.handle(bench.now_ns, first, PeerDisconnected(first), ())
    bench.settle()
    bench.infers = [item for item in bench.infers if item[0] != first]
    bench.submit(first=10)
    assert {worker for worker, _ in bench.finish_all()} == set(bench.workers) - {first}
    assert bench.controller.pending() == 0


def test_a_plan_replaces_the_one_before_and_an_empty_one_ends_it() -> None:
    bench = Bench(("cpu", "cpu"))
    bench.plan(PlannedModel("sum", 1, 2))
    bench.plan(PlannedModel("sum/1", 2, 8), number=2)
    assert bench.controller.cluster.specs["sum/1"].max_batch == 8
    bench.plan(number=3)
    assert bench.controller.cluster.specs["sum/1"].max_batch == 16
    assert not any(share.kept for share in bench.controller.cluster.shares())
    assert len(bench.controller.cluster.capable["sum/1"]) == 2


def test_requests_in_the_queue_follow_a_new_plan() -> None:
    bench = Bench(("cpu", "cpu"), in_flight=1)
    bench.submit(count=60)
    bench.plan(PlannedModel("sum", 1, 2))
    running = len(bench.infers)
    done = bench.finish_all()
    assert sum(len(infer.rows) for _, infer in done) == 60
    assert {infer.batch_size for _, infer in done[running:]} <= {1, 2}


def test_a_plan_for_models_that_are_withdrawn_harms_nothing() -> None:
    bench = Bench(("cpu",), ("sum", "other"))
    bench.plan(PlannedModel("sum", 1, 2), PlannedModel("absent", 3, 2, "v100"))
    bench.controller.handle(0, FRONTEND, Admit(5, "sum", "", False), ())
    bench.settle()
    bench.submit("other/1", count=3)
    assert sum(len(infer.rows) for _, infer in bench.finish_all()) == 3
    bench.controller.handle(bench.now_ns, FRONTEND, Admit(6, "sum", "", True), ())
    bench.settle()
    bench.plan(PlannedModel("sum", 1, 2), number=2)
    bench.controller.check()


def test_only_a_tuner_can_plan() -> None:
    bench = Bench(("cpu",))
    bench.plan(PlannedModel("sum", 1, 2), sender=SELECTOR)
    bench.plan(PlannedModel("sum", 1, 2), sender="tuner/9#1")  # not connected
    assert bench.controller.cluster.specs["sum/1"].max_batch == 16
    assert bench.controller.cluster.planned.number == 0


def test_a_plan_outlives_its_tuner() -> None:
    bench = Bench(("cpu",))
    bench.plan(PlannedModel("sum", 1, 2))
    bench.controller.handle(0, TUNER, PeerDisconnected(TUNER), ())
    bench.settle()
    assert bench.controller.cluster.specs["sum/1"].max_batch == 2


plan_steps = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), st.integers(0, 3), st.sampled_from([1, 2, 8])),
        st.tuples(st.just("join"), st.sampled_from(["cpu", "v100"]), st.just(0)),
        st.tuples(st.sampled_from(["lose", "drain"]), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("submit"), st.sampled_from(["a/1", "b/1"]), st.integers(1, 12)),
        st.tuples(st.just("finish"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("unload"), st.sampled_from(["a", "b"]), st.booleans()),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(plan_steps)
def test_no_order_of_plans_and_faults_breaks_a_promise(steps: list[tuple[str, Any, Any]]) -> None:
    """Every request ends, no planned batch is too large, and a model that some worker has is never without a share."""
    bench, number = Bench(("v100", "cpu"), ("a", "b"), pages=1), 1
    cluster = bench.controller.cluster
    for verb, value, other in steps:
        bench.now_ns += ms(1)
        alive = [worker for worker in bench.workers if worker in cluster.workers]
        if verb == "plan":
            number += 1
            models = (PlannedModel("a", value, other, "v100"), PlannedModel("b/1", 1, 16))[: 1 + value % 2]
            bench.plan(*models, number=number)
        elif verb == "join":
            bench.add_worker(value)
        elif verb in ("lose", "drain") and len(alive) > 1:
            worker = alive[value % len(alive)]
            message = PeerDisconnected(worker) if verb == "lose" else Drain()
            bench.controller.handle(bench.now_ns, worker, message, ())
            bench.settle()
            bench.infers = [item for item in bench.infers if verb == "drain" or item[0] != worker]
        elif verb == "submit":
            bench.submit(value, count=other, first=bench.now_ns)
        elif verb == "unload":
            bench.controller.handle(bench.now_ns, FRONTEND, Admit(bench.now_ns, value, "", other), ())
            bench.settle()
        for _ in range(value if verb == "finish" else 0):
            if bench.infers:
                worker, infer = bench.infers.pop(0)
                result = Result(infer.action_id, Status.OK, bench.now_ns - 1, bench.now_ns)
                bench.controller.handle(bench.now_ns, worker, result, ())
                bench.settle()
        for key, spec in cluster.specs.items():
            for planned in cluster.planned.find_entries(key):
                assert spec.max_batch <= max(planned.max_batch, spec.batch_sizes[0])
            ready = [worker for worker in cluster.workers.values() if not worker.draining and key in worker.models]
            assert not ready or cluster.capable.get(key)
    bench.add_worker("v100")
    bench.finish_all()
    assert bench.controller.pending() == 0
