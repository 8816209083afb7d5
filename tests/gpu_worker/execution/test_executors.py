"""Lane threads with fake models: windows are kept, batches are padded and trimmed, and no exception ends a lane."""

from __future__ import annotations

import os
from threading import Event, current_thread
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpu_worker.executor_harness import (
    ExecutorHarness,
    OnDevice,
    StubStore,
    Sum,
    an_exec,
    extract_values,
    harness,
    store,
)
from harness.builders import a_spec
from horologe_common.clock import NEVER_NS, monotonic_ns, ms, s, us
from horologe_common.status import ModelFailed, Status
from horologe_gpu_worker.core.lanes import Abort, LaneOperation
from horologe_gpu_worker.runtime import ProcessFailed
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    pass

__all__ = ["harness", "store"]


def test_a_batch_is_padded_to_its_compiled_size_and_only_true_rows_come_back(
    harness: ExecutorHarness, store: StubStore
) -> None:
    harness.load("sum/1")
    finished = harness.do(an_exec([1, 2, 3]))
    assert (finished.status, extract_values(finished)) == (Status.OK, [1, 2, 3])
    assert store.models["sum"].batches == [4]
    assert finished.end_ns - finished.begin_ns == finished.device_ns >= 0


def test_an_operation_begins_inside_its_window(harness: ExecutorHarness) -> None:
    harness.load("sum/1")
    earliest_ns = monotonic_ns() + ms(20)
    finished = harness.do(an_exec([1], earliest_ns=earliest_ns, latest_ns=earliest_ns + s(5)))
    assert earliest_ns <= finished.begin_ns <= earliest_ns + s(5)
    late = harness.do(an_exec([1], 2, latest_ns=monotonic_ns() - 1))
    assert (late.status, late.begin_ns) == (Status.TOO_LATE, late.end_ns)


def test_an_earlier_window_overtakes_one_that_is_waited_for(harness: ExecutorHarness) -> None:
    harness.load("sum/1")
    harness.executors.deliver(an_exec([1], 1, earliest_ns=monotonic_ns() + ms(300)))
    assert harness.do(an_exec([2], 2)).action_id == 2
    assert harness.do(Abort(1, 0, "exec")).status == Status.CANCELLED
    harness.executors.deliver(Abort(1, 0, "exec"))
    assert harness.do(an_exec([3], 3)).action_id == 3


def test_one_exec_at_a_time_and_what_waits_too_long_is_not_run() -> None:
    begun, go_on = Event(), Event()

    def hold() -> None:
        begun.set()
        go_on.wait(10)

    store = StubStore(slow=Sum(hold), sum=Sum())
    harness = ExecutorHarness(store)
    harness.load("slow/1", "sum/1")
    harness.executors.deliver(an_exec([1], 1, "slow/1"))
    begun.wait(10)
    latest_ns = monotonic_ns() + ms(1)
    harness.executors.deliver(an_exec([1], 2, latest_ns=latest_ns))
    while monotonic_ns() <= latest_ns:
        pass
    go_on.set()
    ends = {finished.action_id: finished.status for finished in (harness.finished.get(timeout=10) for _ in range(2))}
    assert ends == {1: Status.OK, 2: Status.TOO_LATE}
    assert store.models["sum"].batches == []
    harness.executors.stop()


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ModelFailed("text"), "error"),
        (ValueError("text"), "error"),
        (SystemExit("text"), "error"),
        (MemoryError("text"), "error"),
        (ProcessFailed("text", "crash"), "crash"),
    ],
)
def test_whatever_a_model_raises_its_lane_goes_on(
    error: BaseException, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    harness = ExecutorHarness(StubStore(bad=Sum(fail), sum=Sum()))
    harness.load("bad/1", "sum/1")
    failed = harness.do(an_exec([1], 1, "bad/1"))
    assert failed.status == Status.FAILED
    assert "text" in failed.reason
    assert failed.failure == ("bad/1", cause)
    assert ("operation failed" in caplog.text) is (cause == "error"), "others are logged where they are detected"
    assert extract_values(harness.do(an_exec([4], 2))) == [4]
    harness.executors.stop()


def test_outputs_that_are_not_what_was_promised_fail_the_batch(harness: ExecutorHarness, store: StubStore) -> None:
    harness.load("sum/1")
    store.models["sum"].run = lambda batch_size, inputs: {"y": np.zeros((7, 1), np.float32)}
    assert "got [7, 1], wanted 1 rows" in harness.do(an_exec([1])).reason
    store.models["sum"].run = lambda batch_size, inputs: {"z": np.zeros((1, 1), np.float32)}
    assert "got ['z'], wanted 'y'" in harness.do(an_exec([1])).reason


def test_load_unload_and_what_is_not_loaded(harness: ExecutorHarness, store: StubStore) -> None:
    broken = harness.do(LaneOperation(1, 0, "load", "broken/1"))
    assert (broken.status, broken.reason) == (Status.FAILED, "model broken/1: OSError: disk on fire")
    harness.load("sum/1")
    assert harness.do(LaneOperation(2, 0, "unload", "sum/1")).status == Status.OK
    assert store.models["sum"].closed
    missing = harness.do(an_exec([1], 3))
    assert (missing.status, missing.reason) == (Status.REFUSED, "model sum/1: is not loaded")


def test_a_scan_runs_beside_the_other_lanes(harness: ExecutorHarness) -> None:
    assert harness.do(LaneOperation(1, 0, "scan", "")).models == []
    failed = harness.do(LaneOperation(2, 0, "scan", "sum/1"))
    assert (failed.lane, failed.status, failed.reason) == ("scan", Status.FAILED, "no sum")


def test_inputs_and_outputs_pass_through_lanes_of_their_own(harness: ExecutorHarness, store: StubStore) -> None:
    harness.load("sum/1")
    put = an_exec([1, 2, 3])
    staged = harness.do(msgspec.structs.replace(put, lane="input"))
    assert staged.staged.data["x"].shape == (4, 4)
    ran = harness.do(msgspec.structs.replace(put, inputs=(), staged=staged.staged))
    assert not ran.outputs
    assert harness.do(LaneOperation(2, 0, "unload", "sum/1")).status == Status.OK
    got = harness.do(msgspec.structs.replace(put, lane="output", inputs=(), staged=ran.staged))
    assert extract_values(got) == [1, 2, 3]
    assert store.models["sum"].batches == [-3, 4, -3]


def test_a_batch_goes_through_the_memory_of_a_device_and_frees_its_slot() -> None:
    model = OnDevice()
    harness = ExecutorHarness(StubStore(sum=model))
    harness.load("sum/1")
    for values in ([1, 2, 3], [5]):  # joined and padded; one part that fills the batch
        put = an_exec(values)
        staged = harness.do(msgspec.structs.replace(put, lane="input"))
        ran = harness.do(msgspec.structs.replace(put, inputs=(), staged=staged.staged))
        assert (ran.status, ran.device_ns) == (Status.OK, ms(put.batch_size))
        got = harness.do(msgspec.structs.replace(put, lane="output", inputs=(), staged=ran.staged))
        assert extract_values(got) == values
    late = an_exec([1], latest_ns=1)
    staged = harness.do(msgspec.structs.replace(late, lane="input", latest_ns=NEVER_NS))
    assert harness.do(msgspec.structs.replace(late, inputs=(), staged=staged.staged)).status == Status.TOO_LATE
    harness.executors.stop()
    del staged, ran, got
    assert sorted(model.freed) == [1, 2, 3]


def test_an_exec_lane_runs_on_its_cpu_and_the_other_threads_on_any() -> None:
    allowed, used = os.sched_getaffinity(0), []
    model = Sum(lambda: used.append(os.sched_getaffinity(0)))
    settings = WorkerSettings(realtime=False, exec_cpus=str(max(allowed)))
    pinned = ExecutorHarness(StubStore(sum=model), settings)
    pinned.load("sum/1")
    pinned.do(an_exec([1]))
    pinned.executors.stop()
    assert used[-1] == {max(allowed)}
    assert os.sched_getaffinity(0) == allowed


def test_stopping_closes_the_models_and_begins_nothing_more(store: StubStore) -> None:
    harness = ExecutorHarness(store)
    harness.load("sum/1")
    harness.executors.deliver(an_exec([1], earliest_ns=monotonic_ns() + s(60)))
    harness.executors.stop()
    assert store.models["sum"].closed
    assert store.models["sum"].batches == []


# brief operations run on the thread of the event loop


def a_brief_exec(action_id: int = 1, **facts: Any) -> LaneOperation:
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
    harness.executors.deliver(LaneOperation(1, 0, "load", "slow/1"))
    assert harness.finished.get_nowait().status == Status.OK
    harness.executors.deliver(an_exec([1], 2, "slow/1"))
    while not store.models["slow"].batches:
        pass
    harness.executors.deliver(LaneOperation(3, 0, "unload", "slow/1"))  # waits for the EXEC, so in its lane
    assert harness.finished.empty()
    go_on.set()
    assert {harness.finished.get(timeout=10).action_id for _ in range(2)} == {2, 3}
    harness.executors.deliver(LaneOperation(4, 0, "unload", "slow/1"))
    assert harness.finished.get_nowait().action_id == 4
