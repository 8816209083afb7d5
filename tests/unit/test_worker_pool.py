"""Workers that start and drain while the system runs, and the control socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from horologe_cli.local.supervisor import ChildSpec, Supervisor
from horologe_cli.local.worker_pool import MAX_WORKERS, ControlServer, WorkerPool
from horologe_common.service.settings import SettingsError
from horologe_tuner.core.pipeline_tuning.worker_scaling import Scaled
from horologe_tuner.scaler import ScalingError
from horologe_tuner.scaler_thread import scale
from horologe_tuner.scalers.process import ProcessScaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class RecordingSupervisor(Supervisor):
    """A supervisor that starts no process."""

    def __init__(self) -> None:
        super().__init__((), lambda name, line: None)
        self.started: list[str] = []
        self.drained: list[str] = []

    def add_child(self, spec: ChildSpec) -> None:
        self.started.append(spec.name)

    def drain_child(self, name: str) -> None:
        self.drained.append(name)


def a_spec(number: int, hardware: str) -> ChildSpec:
    return ChildSpec(f"worker-{number}", "module", (hardware,))


@pytest.fixture
def supervisor() -> RecordingSupervisor:
    return RecordingSupervisor()


@pytest.fixture
def pool(supervisor: RecordingSupervisor) -> WorkerPool:
    return WorkerPool(supervisor, {"worker-0": "cpu"}, a_spec)


@pytest.fixture
def scaler(pool: WorkerPool, tmp_path: Path) -> Iterator[ProcessScaler]:
    server = ControlServer(str(tmp_path / "control"), pool)
    server.start()
    yield ProcessScaler(TunerSettings(scaler="process", scaler_target=f"unix://{tmp_path / 'control'}"))
    server.close()


def test_the_newest_workers_of_a_type_drain_first(pool: WorkerPool, supervisor: RecordingSupervisor) -> None:
    assert pool.set_workers({"v100": 3}) == {"cpu": 1, "v100": 3}
    assert supervisor.started == ["worker-1", "worker-2", "worker-3"]
    assert pool.set_workers({"v100": 1, "cpu": 2}) == {"cpu": 2, "v100": 1}
    assert supervisor.drained == ["worker-3", "worker-2"]
    assert supervisor.started[3:] == ["worker-4"]  # a number is never used twice
    assert pool.set_workers({"v100": 0}) == {"cpu": 2}


def test_the_scaler_reaches_the_pool(scaler: ProcessScaler, supervisor: RecordingSupervisor) -> None:
    scaler.set_workers("v100", 2)
    assert scaler.count_workers(("cpu", "v100", "k80")) == {"cpu": 1, "v100": 2, "k80": 0}
    assert supervisor.started == ["worker-1", "worker-2"]


@pytest.mark.parametrize("count", [-1, MAX_WORKERS])
def test_an_impossible_number_is_an_error_and_changes_nothing(
    scaler: ProcessScaler, supervisor: RecordingSupervisor, count: int
) -> None:
    with pytest.raises(ScalingError, match=f"workers: got {{'v100': {count}}}"):
        scaler.set_workers("v100", count)
    assert supervisor.started == []


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[1]\n", b'{"workers": 3}\n', b"\xff\n", b"x" * 100_000 + b"\n"])
def test_a_line_that_is_no_request_is_answered_with_an_error(
    scaler: ProcessScaler, tmp_path: Path, line: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "control"))
        connection.sendall(line[: 64 << 10])
        connection.shutdown(socket.SHUT_WR)
        assert b'"error"' in connection.recv(1000)
    assert scaler.count_workers(("cpu",)) == {"cpu": 1}


def test_without_a_control_socket_scaling_fails(tmp_path: Path) -> None:
    scaler = ProcessScaler(TunerSettings(scaler="process", scaler_target=str(tmp_path / "none")))
    with pytest.raises(ScalingError, match="control socket"):
        scaler.count_workers(("cpu",))
    with pytest.raises(SettingsError, match="scaler_target"):
        ProcessScaler(TunerSettings(scaler="process"))


class FailingScaler:
    """Starts `v100` workers, and no others."""

    def __init__(self) -> None:
        self.workers = {"v100": 1, "k80": 5, "cpu": 2}
        self.calls: list[str] = []

    def count_workers(self, hardware: tuple[str, ...]) -> dict[str, int]:
        return {name: self.workers[name] for name in hardware}

    def set_workers(self, hardware: str, count: int) -> None:
        self.calls.append(hardware)
        if hardware == "cpu":
            raise ScalingError("no cpu")
        self.workers[hardware] = count


def test_one_type_that_fails_does_not_keep_the_others_and_more_come_before_fewer() -> None:
    scaler = FailingScaler()
    assert scale(scaler, {"k80": 1, "cpu": 3, "v100": 4}) == Scaled({"k80": 1, "cpu": 2, "v100": 4}, "no cpu")
    assert scaler.calls == ["v100", "cpu", "k80"]
    assert scale(scaler, {"v100": 4}) == Scaled({"v100": 4})
    assert scale(scaler, {"absent": 1}) == Scaled({}, "KeyError: 'absent'")
