"""Device bench: processes of shares, what they reply, and how they fail."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from harness.model_folders import a_folder, an_emulated_model
from horologe_common.clock import ms
from horologe_common.interference.measured_runs import ShareLoad
from horologe_gpu_worker.measurement import share_connection
from horologe_gpu_worker.measurement.device_bench import BenchSettings, DeviceBench, InvalidShare
from horologe_gpu_worker.measurement.device_sensor import DeviceLost, DeviceReading
from horologe_gpu_worker.measurement.device_sensors import HostSensor
from horologe_gpu_worker.measurement.share_connection import (
    Begin,
    CommandDone,
    Measured,
    Ready,
    ShareConnection,
    ShareFailed,
    ShareJob,
)
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    CreateBench = Callable[..., DeviceBench]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Any]:
    """Start share processes; end them after the test."""
    started: list[ShareConnection] = []

    def start(folder: Path) -> ShareConnection:
        started.append(ShareConnection(ShareJob(str(folder), WorkerSettings(cache=str(tmp_path / "cache")))))
        started[-1].start()
        return started[-1]

    yield start
    for connection in started:
        connection.close()


def test_a_model_that_cannot_be_opened_names_the_reason(connect: Any, tmp_path: Path) -> None:
    connection = connect(a_folder(tmp_path, "broken", "surprise = 1\n", model_onnx=b"no model"))
    with pytest.raises(ShareFailed, match=r"broken/1 at 100%: .*surprise"):
        connection.wait_reply(Ready)


def test_a_process_that_dies_is_told_from_one_that_is_silent(connect: Any, tmp_path: Path) -> None:
    connection = connect(an_emulated_model(tmp_path))
    connection.wait_reply(Ready)
    connection.send(Begin(1))
    connection.wait_reply(CommandDone)
    with pytest.raises(ShareFailed, match=r"no reply after 0\.001 s"):
        connection.wait_reply(Measured, ms(1))
    os.kill(connection._child.process.pid, signal.SIGKILL)
    with pytest.raises(ShareFailed, match="ended with SIGKILL"):
        connection.wait_reply(Measured)
    connection.send(Begin(2))  # to a closed pipe


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CreateBench]:
    """Create benches; close them after the test."""
    created: list[DeviceBench] = []

    def create(sensor: HostSensor | None = None, **settings: Any) -> DeviceBench:
        folders = {"pretend": an_emulated_model(tmp_path)}
        worker = WorkerSettings(cache=str(tmp_path / "cache"), **settings)
        created.append(DeviceBench(BenchSettings(folders, worker, 0.01), sensor or HostSensor()))
        return created[-1]

    yield create
    for each in created:
        each.close()


def test_a_bench_runs_loads_and_keeps_their_processes(bench: CreateBench) -> None:
    measuring = bench()
    assert measuring.measure_device("pretend").max_power_w == 0
    assert measuring.describe_model("pretend").batch_sizes == (1, 2)
    process = measuring._shares[0][1]
    runs = [measuring.run([ShareLoad("pretend", batch, 100)]) for batch in (1, 2)]
    assert measuring._shares[0][1] is process
    assert runs[0].times[0].gpu_ms >= 1.0
    assert runs[1].times[0].gpu_ms >= 1.5
    assert runs[0].power_w == 0
    measuring.close()
    assert process._child.process.returncode == 0


def test_a_run_that_fails_ends_its_processes_and_the_next_one_starts_new_ones(bench: CreateBench) -> None:
    measuring = bench()
    with pytest.raises(ShareFailed, match=r"batch 7: wanted one of \[1, 2\]"):
        measuring.run([ShareLoad("pretend", 7, 100)])
    assert not measuring._shares
    assert measuring.run([ShareLoad("pretend", 1, 100)]).times[0].batches >= 1


def test_a_device_that_is_lost_is_told_from_a_process_that_fails(bench: CreateBench) -> None:
    class Lost(HostSensor):
        def read(self) -> DeviceReading:
            raise DeviceLost("the GPU is lost")

    measuring = bench(Lost())
    with pytest.raises(DeviceLost):
        measuring.run([ShareLoad("pretend", 7, 100)])
    assert not measuring._shares


def test_shares_of_a_gpu_need_an_mps_daemon(
    bench: CreateBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    measuring = bench(device="cuda:0", share_mechanism="mps")
    with pytest.raises(ShareFailed, match=r"no MPS control daemon .*nvidia-cuda-mps-control -d"):
        measuring.measure_device("pretend")


def test_a_share_that_the_mechanism_rounds_is_an_error(bench: CreateBench, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = bench()
    replies: list[Ready] = [Ready(50.0, (1, 2), 0, 0)]
    monkeypatch.setattr(ShareConnection, "wait_reply", lambda self, kind: replies.pop())
    with pytest.raises(InvalidShare, match=r"share: got 50%, wanted 30% of the device"):
        measuring.run([ShareLoad("pretend", 1, 30)])
    assert not measuring._shares


def test_a_share_that_cannot_be_started_names_the_reason(bench: CreateBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PermissionError("no processes")

    monkeypatch.setattr(share_connection, "start_isolated", refuse)
    with pytest.raises(ShareFailed, match="could not be started: no processes"):
        bench().run([ShareLoad("pretend", 1, 100.0)])
