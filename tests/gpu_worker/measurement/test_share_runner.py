"""A model on a share: batches with overlapping transfers, kernel traces, commands of a share process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpu_worker.executor_harness import OnDevice
from harness.builders import a_spec
from harness.model_folders import an_emulated_model, an_onnx_model
from horologe_common.clock import ms
from horologe_common.status import ModelFailed
from horologe_gpu_worker.measurement.kernel_trace import Interval, batch_gaps, parse_onnx_trace, trace_onnx
from horologe_gpu_worker.measurement.share_batches import BatchTimes, ShareBatches
from horologe_gpu_worker.measurement.share_connection import (
    Begin,
    Command,
    CommandDone,
    Measure,
    Measured,
    MeasuredRates,
    Rates,
    Reply,
    ShareJob,
    Stop,
    Trace,
    Traced,
)
from horologe_gpu_worker.measurement.share_process import serve
from horologe_gpu_worker.measurement.share_runner import ShareRunner
from horologe_gpu_worker.runtime import OpenModel
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def test_transfers_use_the_slot_that_does_not_execute(tmp_path: Path) -> None:
    model = OnDevice()
    batches = ShareBatches(model, a_spec(), tmp_path, 4)
    times = [batches.run_next() for _ in range(4)]
    batches.close()
    assert [batch.gpu_ns for batch in times] == [ms(4)] * 4  # the device's clock
    assert model.slots["execute"] == [1, 2, 1, 2]
    assert model.slots["fetch"] == [2, 1, 2, 1]
    assert model.slots["stage"] == [1, 2, 2, 1, 2, 1]  # both once at first, then the slot that has just been fetched


class Host(OpenModel):
    """A model in host memory that takes 3 ms, on a clock that it moves."""

    def __init__(self) -> None:
        self.now_ns = 0

    def run(self, batch_size: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert inputs["x"].shape == (batch_size, 4)
        self.now_ns += ms(3)
        return {}


def test_a_model_in_host_memory_has_no_transfers(tmp_path: Path) -> None:
    model = Host()
    batches = ShareBatches(model, a_spec(), tmp_path, 2, lambda: model.now_ns)
    assert batches.run_next() == BatchTimes(0, ms(3), 0)
    batches.close()


def test_gaps_are_the_part_of_a_batch_in_which_no_kernel_ran() -> None:
    first = [Interval(0, 40), Interval(50, 100)]  # a gap of 10 in 100
    late = [Interval(1000, 1040), Interval(2050, 2100)]
    third = [Interval(3000, 3040), Interval(3020, 3060)]  # kernels that overlap
    assert batch_gaps(first, 1) == Traced(2, 0.1)
    assert batch_gaps(first + late + third, 3) == Traced(2, 0.1)
    with pytest.raises(ModelFailed, match="got 2 kernels of 3 equal batches"):
        batch_gaps(first, 3)
    with pytest.raises(ModelFailed, match="got 0 kernels"):
        batch_gaps([], 1)


def onnx_events(batches: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 9, "args": {}}]
    for number in range(batches):
        begin = 1000 * (number + 1)
        for kernel in (0, 1):
            sizes = {"activation_size": "10", "parameter_size": "5", "output_size": "1"}
            place = begin + 60 * kernel
            events.append({"cat": "Node", "name": f"n{kernel}_kernel_time", "ts": place, "dur": 40, "args": sizes})
        events.append({"cat": "Session", "name": "model_run", "ts": begin - 1, "dur": 102, "args": {}})
    return events


def test_a_trace_of_onnx_runtime_leaves_out_the_first_batch() -> None:
    assert parse_onnx_trace(onnx_events(3)) == Traced(2, 0.2, 32)
    with pytest.raises(ModelFailed, match="fewer than two batches"):
        parse_onnx_trace(onnx_events(1))


def test_onnx_runtime_is_traced(tmp_path: Path) -> None:
    folder = an_onnx_model(tmp_path)
    traced = trace_onnx(a_spec(), folder, 2)
    assert traced.kernels >= 1
    assert 0 <= traced.gaps < 1


def runner(folder: Path, **settings: Any) -> ShareRunner:
    return ShareRunner(ShareJob(str(folder), WorkerSettings(cache=str(folder.parent), realtime=False, **settings)))


def test_a_runner_times_and_traces_batches(tmp_path: Path) -> None:
    share = runner(an_emulated_model(tmp_path))
    ready = share.open()
    assert (ready.batch_sizes, ready.percent) == ((1, 2), 100)
    assert not share.running
    share.begin(2)
    measured = share.measure(ms(5))
    assert measured.batches >= 1
    assert measured.gpu_ms >= 1.5  # as its manifest declares
    assert share.trace().kernels == 1
    share.stop()
    assert not share.running
    assert share.rates().memory_bytes_per_ms > 0


def test_a_batch_size_that_is_not_compiled_is_refused(tmp_path: Path) -> None:
    share = runner(an_emulated_model(tmp_path))
    share.open()
    with pytest.raises(ModelFailed, match=r"batch 7: wanted one of \[1, 2\]"):
        share.begin(7)


class Parent:
    """The socket of a process whose parent has sent Begin, and sends the rest after the first batch."""

    def __init__(self) -> None:
        self.commands: list[Command] = [Begin(2)]
        self.replies: list[Reply] = []

    def has_arrived(self, timeout_ns: int) -> bool:
        return bool(self.commands)

    def receive(self) -> list[bytes]:
        if not self.commands:
            raise EOFError
        return [msgspec.json.encode(self.commands.pop(0))]

    def send(self, frames: list[bytes]) -> None:
        self.replies.append(msgspec.json.decode(frames[0], type=Reply))


class Recorded:
    """A runner after whose first batch the parent sends commands."""

    def __init__(self, parent: Parent) -> None:
        self.running = False
        self.batches = 0
        self._parent = parent

    def begin(self, batch: int) -> None:
        self.running = True

    def run_next(self) -> None:
        self.batches += 1
        self._parent.commands += [Measure(0.5), Trace(), Stop(), Rates()]

    def measure(self, duration_ns: int) -> Measured:
        assert duration_ns == ms(500)
        return Measured(3, 0, 1, 0, 0)

    def trace(self) -> Traced:
        return Traced(1, 0.0)

    def rates(self) -> MeasuredRates:
        return MeasuredRates(1, 2)

    def stop(self) -> None:
        self.running = False


def test_batches_run_between_commands() -> None:
    parent = Parent()
    share = Recorded(parent)
    serve(share, parent)  # type: ignore[arg-type]
    assert share.batches == 1
    assert parent.replies == [
        CommandDone(),
        Measured(3, 0, 1, 0, 0),
        Traced(1, 0.0),
        CommandDone(),
        MeasuredRates(1, 2),
    ]
