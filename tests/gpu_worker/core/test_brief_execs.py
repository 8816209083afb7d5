"""Brief operations run on the loop's thread, unless that would overtake or delay others."""

from __future__ import annotations

from threading import Event, current_thread
from typing import Any

import msgspec
import pytest

from gpu_worker.executor_harness import ExecutorHarness, StubStore, Sum, an_exec, harness, store
from harness.builders import a_spec
from horologe_common.clock import monotonic_ns, ms, us
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import Operation

__all__ = ["harness", "store"]


def a_brief_exec(action_id: int = 1, **facts: Any) -> Operation:
    runtime = facts.pop("runtime", "onnx")
    settings = {"spec": msgspec.structs.replace(a_spec(), runtime=runtime), "expected_ns": us(100)} | facts
    return msgspec.structs.replace(an_exec([1], action_id), **settings)


def test_a_brief_exec_runs_on_the_loops_thread_inside_its_window(harness: ExecutorHarness, store: StubStore) -> None:
    harness.load("sum/1")
    harness.executors.deliver(a_brief_exec(1))
    assert harness.finished.get_nowait().status == Status.OK
    harness.executors.deliver(a_brief_exec(2, latest_ns=monotonic_ns() - 1))
    late = harness.finished.get_nowait()
    assert (late.status, late.begin_ns) == (Status.TOO_LATE, late.end_ns)
    assert store.models["sum"].threads == [current_thread().name]


@pytest.mark.parametrize(
    "facts", [{"runtime": "python"}, {"runtime": "emulated"}, {"expected_ns": ms(1)}, {"earliest_ns": ms(10)}]
)
def test_what_is_long_or_waits_or_computes_elsewhere_goes_to_its_lane(
    harness: ExecutorHarness, store: StubStore, facts: dict[str, Any]
) -> None:
    harness.load("sum/1")
    if "earliest_ns" in facts:
        facts = {"earliest_ns": monotonic_ns() + facts["earliest_ns"]}
    assert harness.do(a_brief_exec(**facts)).status == Status.OK
    assert store.models["sum"].threads == ["exec-0"]


def test_an_exec_that_is_usually_brief_runs_on_the_loops_thread(harness: ExecutorHarness, store: StubStore) -> None:
    harness.load("sum/1")
    assert harness.do(a_brief_exec(1, expected_ns=ms(1))).status == Status.OK
    for number in range(2, 40):
        harness.do(a_brief_exec(number))
    harness.executors.deliver(a_brief_exec(40, expected_ns=ms(1)))  # where a busy machine has delayed others
    assert harness.finished.get_nowait().status == Status.OK
    assert store.models["sum"].threads == ["exec-0"] + [current_thread().name] * 39


def test_a_brief_exec_does_not_overtake_what_its_lane_has(harness: ExecutorHarness, store: StubStore) -> None:
    store.models["slow"] = Sum((go_on := Event()).wait)
    harness.load("slow/1", "sum/1")
    harness.executors.deliver(an_exec([1], 1, "slow/1"))
    harness.executors.deliver(a_brief_exec(2))
    assert store.models["sum"].batches == []
    go_on.set()
    assert [harness.finished.get(timeout=10).action_id for _ in range(2)] == [1, 2]
    assert store.models["sum"].threads == ["exec-0"]
    harness.executors.deliver(a_brief_exec(3))
    assert harness.finished.get_nowait().action_id == 3


def test_load_and_unload_of_an_open_model_run_on_the_loops_thread(harness: ExecutorHarness, store: StubStore) -> None:
    store.models["slow"] = Sum((go_on := Event()).wait)
    store.open_models = {"slow/1"}
    harness.executors.deliver(Operation(1, 0, "load", "slow/1"))
    assert harness.finished.get_nowait().status == Status.OK
    harness.executors.deliver(an_exec([1], 2, "slow/1"))
    while not store.models["slow"].batches:
        pass
    harness.executors.deliver(Operation(3, 0, "unload", "slow/1"))  # waits for the EXEC, so in its lane
    assert harness.finished.empty()
    go_on.set()
    assert {harness.finished.get(timeout=10).action_id for _ in range(2)} == {2, 3}
    harness.executors.deliver(Operation(4, 0, "unload", "slow/1"))
    assert harness.finished.get_nowait().action_id == 4
