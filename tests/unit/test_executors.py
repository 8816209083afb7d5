"""Lane threads with fake models: windows are kept, batches are padded and trimmed, and no exception ends a lane."""

from __future__ import annotations

import weakref
from queue import SimpleQueue
from threading import Event, current_thread
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_spec
from horologe_common.clock import NEVER_NS, monotonic_ns, ms, s, us
from horologe_common.models import TensorSpec
from horologe_common.status import ModelFailed, Status
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import Abort, Finished, Operation
from horologe_gpu_worker.execution.batching import assemble_inputs, output_tensors
from horologe_gpu_worker.execution.executors import Executors
from horologe_gpu_worker.execution.realtime import CpuClaims
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.runtime import ProcessFailed
from horologe_gpu_worker.settings import WorkerSettings
from worker_builders import an_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport

Arrays = dict[str, np.ndarray[Any, Any]]


class Sum:
    """A model with `y` = sum of the row of `x`. Calls `act` first."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.act = act
        self.batches: list[int] = []
        self.threads: list[str] = []
        self.closed = False

    def run(self, batch_size: int, inputs: Mapping[str, Any]) -> Arrays:
        assert inputs["x"].shape[0] == batch_size
        self.batches.append(batch_size)
        self.threads.append(current_thread().name)
        self.act()
        return {"y": inputs["x"].sum(axis=1, keepdims=True)}

    def copy_in(self, rows: int) -> None:
        self.batches.append(-rows)

    def copy_out(self, rows: int) -> None:
        self.batches.append(-rows)

    def close(self) -> None:
        self.closed = True


class StubStore:
    """A model store with models created by the test."""

    def __init__(self, **models: Any) -> None:
        self.models = models
        self.inline = True
        self.open_models: set[str] = set()

    def scan(self) -> list[ModelReport]:
        return []

    def scan_model(self, name: str) -> list[ModelReport]:
        raise ModelFailed(f"no {name}")

    def open(self, spec: ModelSpec) -> Any:
        if spec.key == "broken/1":
            raise OSError("disk on fire")
        return self.models[spec.name]

    def spec(self, key: str) -> ModelSpec:
        return a_spec(key.partition("/")[0])

    def is_open(self, key: str) -> bool:
        return key in self.open_models

    def inline_io(self, key: str) -> bool:
        return self.inline


class ExecutorHarness:
    """Executors with an inbox in place of the reactor."""

    def __init__(self, store: StubStore) -> None:
        self.executors = Executors("worker/0#w", WorkerSettings(realtime=False), store)
        self.finished: SimpleQueue[Finished] = SimpleQueue()
        self.executors.start(self.post, self.post)

    def post(self, sender: str, to: str, message: Finished) -> None:
        assert (sender, to) == ("lanes/0#w", "worker/0#w")
        self.finished.put(message)

    def do(self, message: Operation | Abort) -> Finished:
        self.executors.deliver(message)
        return self.finished.get(timeout=10)

    def load(self, *models: str) -> None:
        for number, model in enumerate(models):
            assert self.do(Operation(-1 - number, 0, "load", model)).status == Status.OK


@pytest.fixture
def store() -> StubStore:
    return StubStore(sum=Sum())


@pytest.fixture
def harness(store: StubStore) -> Iterator[ExecutorHarness]:
    harness = ExecutorHarness(store)
    yield harness
    harness.executors.stop()


def an_exec(
    values: Sequence[float], action_id: int = 1, model: str = "sum/1", batch_size: int = 0, **window: Any
) -> Operation:
    header, whole = encode_array("x", an_input(values))
    parts = [memoryview(whole)[16 * at : 16 * at + 16] for at in range(len(values))]
    size = batch_size or a_spec().compiled_batch_size(len(values))
    return Operation(action_id, 0, "exec", model, size, len(values), inputs=[(header, parts)], **window)


def extract_values(finished: Finished) -> list[float]:
    [(header, buffer)] = finished.outputs
    assert header.nbytes == len(buffer)
    assert header.shape == (len(buffer) // 4, 1)
    values: list[float] = np.frombuffer(buffer, np.float32).tolist()
    return values


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
def test_whatever_a_model_raises_its_lane_goes_on(error: BaseException, cause: str) -> None:
    def fail() -> None:
        raise error

    harness = ExecutorHarness(StubStore(bad=Sum(fail), sum=Sum()))
    harness.load("bad/1", "sum/1")
    failed = harness.do(an_exec([1], 1, "bad/1"))
    assert failed.status == Status.FAILED
    assert "text" in failed.reason
    assert failed.failure == ("bad/1", cause)
    assert extract_values(harness.do(an_exec([4], 2))) == [4]
    harness.executors.stop()


@pytest.mark.parametrize("error", [ModelFailed("text"), ValueError("text")])
def test_an_execution_that_raises_is_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise error

    harness = ExecutorHarness(StubStore(bad=Sum(fail)))
    harness.load("bad/1")
    harness.do(an_exec([1], 1, "bad/1"))
    harness.executors.stop()
    assert "operation failed" in caplog.text


def test_outputs_that_are_not_what_was_promised_fail_the_batch(harness: ExecutorHarness, store: StubStore) -> None:
    harness.load("sum/1")
    store.models["sum"].run = lambda batch_size, inputs: {"y": np.zeros((7, 1), np.float32)}
    assert "got [7, 1], wanted 1 rows" in harness.do(an_exec([1])).reason
    store.models["sum"].run = lambda batch_size, inputs: {"z": np.zeros((1, 1), np.float32)}
    assert "got ['z'], wanted 'y'" in harness.do(an_exec([1])).reason


def test_load_unload_and_what_is_not_loaded(harness: ExecutorHarness, store: StubStore) -> None:
    broken = harness.do(Operation(1, 0, "load", "broken/1"))
    assert (broken.status, broken.reason) == (Status.FAILED, "model broken/1: OSError: disk on fire")
    harness.load("sum/1")
    assert harness.do(Operation(2, 0, "unload", "sum/1")).status == Status.OK
    assert store.models["sum"].closed
    missing = harness.do(an_exec([1], 3))
    assert (missing.status, missing.reason) == (Status.REFUSED, "model sum/1: is not loaded")


def test_a_scan_runs_beside_the_other_lanes(harness: ExecutorHarness) -> None:
    assert harness.do(Operation(1, 0, "scan", "")).models == []
    failed = harness.do(Operation(2, 0, "scan", "sum/1"))
    assert (failed.lane, failed.status, failed.reason) == ("scan", Status.FAILED, "no sum")


def test_inputs_and_outputs_pass_through_lanes_of_their_own(harness: ExecutorHarness, store: StubStore) -> None:
    harness.load("sum/1")
    put = an_exec([1, 2, 3])
    staged = harness.do(msgspec.structs.replace(put, lane="input"))
    assert staged.staged.data["x"].shape == (4, 4)
    ran = harness.do(msgspec.structs.replace(put, inputs=(), staged=staged.staged))
    assert not ran.outputs
    assert harness.do(Operation(2, 0, "unload", "sum/1")).status == Status.OK
    got = harness.do(msgspec.structs.replace(put, lane="output", inputs=(), staged=ran.staged))
    assert extract_values(got) == [1, 2, 3]
    assert store.models["sum"].batches == [-3, 4, -3]


class OnDevice(Sum):
    """A fake model with device memory of its own."""

    class Slot:
        def __init__(self, free: list[int]) -> None:
            self.space, self.device_ns, self.on_device = Workspace(), 0, np.zeros(())
            weakref.finalize(self, free.append, 1)

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[int] = []

    def slot(self, batch_size: int) -> Slot:
        return OnDevice.Slot(self.freed)

    def stage(self, slot: Slot, inputs: Mapping[str, Any]) -> None:
        assert slot.space.may_contain(inputs["x"])
        slot.on_device = inputs["x"].copy()
        inputs["x"][:] = np.nan

    def execute(self, batch_size: int, slot: Slot) -> None:
        slot.on_device = self.run(batch_size, {"x": slot.on_device})["y"]
        slot.device_ns = 7

    def fetch(self, batch_size: int, slot: Slot) -> Arrays:
        return {"y": slot.on_device}


def test_a_batch_goes_through_the_memory_of_a_device_and_frees_its_slot() -> None:
    model = OnDevice()
    harness = ExecutorHarness(StubStore(sum=model))
    harness.load("sum/1")
    for values in ([1, 2, 3], [5]):  # joined and padded; one part that fills the batch
        put = an_exec(values)
        staged = harness.do(msgspec.structs.replace(put, lane="input"))
        ran = harness.do(msgspec.structs.replace(put, inputs=(), staged=staged.staged))
        assert (ran.status, ran.device_ns) == (Status.OK, 7)
        got = harness.do(msgspec.structs.replace(put, lane="output", inputs=(), staged=ran.staged))
        assert extract_values(got) == values
    late = an_exec([1], latest_ns=1)
    staged = harness.do(msgspec.structs.replace(late, lane="input", latest_ns=NEVER_NS))
    assert harness.do(msgspec.structs.replace(late, inputs=(), staged=staged.staged)).status == Status.TOO_LATE
    harness.executors.stop()
    del staged, ran, got
    assert sum(model.freed) == 3


def test_stopping_closes_the_models_and_begins_nothing_more(store: StubStore) -> None:
    harness = ExecutorHarness(store)
    harness.load("sum/1")
    harness.executors.deliver(an_exec([1], earliest_ns=monotonic_ns() + s(60)))
    harness.executors.stop()
    assert store.models["sum"].closed
    assert store.models["sum"].batches == []


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 3))
def test_parts_are_joined_in_order_and_padded_with_the_last_row(rows: list[list[int]], shift: int) -> None:
    """A part of a concatenated frame may begin at any byte."""
    parts = []
    for part in rows:
        raw = an_input([float(value) for value in part]).tobytes()
        parts.append(memoryview(bytes(shift) + raw)[shift:])
    count = sum(map(len, rows))
    header = encode_array("x", np.zeros((count, 4), np.float32))[0]
    operation = Operation(1, 0, "exec", "sum/1", 16, count, inputs=[(header, parts)])
    space = Workspace()
    for _ in range(2):  # the second time the space is not clean
        x = assemble_inputs(operation, True, space)["x"]
        assert x.flags.aligned
        true = [float(value) for part in rows for value in part]
        assert x.sum(1).tolist() == true + true[-1:] * (16 - count)
        space.allocate(64)[:] = 255


def test_strings_are_joined_and_padded_with_the_last_one() -> None:
    header, buffer = encode_array("x", np.array([[b"a"], [b"bc"]], object))
    operation = Operation(1, 0, "exec", "m/1", 4, 2, inputs=[(header, [buffer])])
    assert assemble_inputs(operation, True, Workspace())["x"].tolist() == [[b"a"], [b"bc"], [b"bc"], [b"bc"]]


def test_what_a_model_passes_through_outlives_the_workspace() -> None:
    spec = msgspec.structs.replace(a_spec(), outputs=(TensorSpec("y", "FP32", (-1, 4)),))
    space = Workspace()
    operation = an_exec([1, 2, 3])
    x = assemble_inputs(operation, True, space)["x"]
    [(_, buffer)] = output_tensors(operation, spec, {"y": x}, space)
    x[:] = 0
    assert np.frombuffer(buffer, np.float32).reshape(3, 4).sum(1).tolist() == [1, 2, 3]


def test_lanes_are_pinned_from_four_cores_up_and_never_two_to_one_core(tmp_path: Path) -> None:
    assert CpuClaims(tmp_path).claim({0, 1}) is None
    workers = [CpuClaims(tmp_path) for _ in range(3)]
    places = [worker.claim(set(range(8))) for worker in workers for _ in range(2)]
    assert places == [7, 6, 5, 4, None, None]
    workers[0].release()
    assert workers[2].claim({2, 3, 6, 7}) == 7
    for worker in workers[1:]:
        worker.release()
