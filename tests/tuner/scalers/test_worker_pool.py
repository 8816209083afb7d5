"""Workers that start and drain while the system runs, and the control socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from horologe_cli.local.supervisor import ChildSpec, Supervisor
from horologe_cli.local.worker_pool import MAX_WORKERS, ControlServer, WorkerPool
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import WantedShare
from horologe_tuner.core.worker_scaling import Scaled, ScaleTo
from horologe_tuner.scaler import ScalingError, scale
from horologe_tuner.scalers.process import ProcessScaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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

    def is_draining(self, name: str) -> bool:
        return name in self.drained


def a_spec(number: int, hardware: str) -> ChildSpec:
    return ChildSpec(f"worker-{number}", "module", (hardware,))


def a_share_spec(share: WantedShare) -> ChildSpec:
    return ChildSpec(f"worker-{share.worker}", "module", (share.hardware,))


def a_share(worker: str, percent: float = 40, device: str = "gpu-0", **fields: Any) -> WantedShare:
    return WantedShare(worker, device, "v100", percent, **fields)


@pytest.fixture
def supervisor() -> RecordingSupervisor:
    return RecordingSupervisor()


@pytest.fixture
def pool(supervisor: RecordingSupervisor) -> WorkerPool:
    return WorkerPool(supervisor, {"worker-0": "cpu"}, a_spec, a_share_spec)


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


def test_shares_start_before_those_that_are_not_wanted_drain(
    scaler: ProcessScaler, supervisor: RecordingSupervisor
) -> None:
    left, right = a_share("left"), a_share("right", 60)
    assert scaler.set_shares((left, right)) == ("left", "right")
    larger = a_share("left-2", 50, standby_for="left")
    smaller = a_share("right-2", 50, standby_for="right")
    assert scaler.set_shares((left, right, larger, smaller)) == ("left", "right", "left-2", "right-2")
    assert supervisor.drained == []
    assert scaler.set_shares((a_share("left-2", 50), a_share("right-2", 50))) == ("left-2", "right-2")
    assert supervisor.started == ["worker-left", "worker-right", "worker-left-2", "worker-right-2"]
    assert supervisor.drained == ["worker-left", "worker-right"]
    assert scaler.count_workers(("v100", "cpu")) == {"v100": 0, "cpu": 1}  # shares are no workers of a type
    assert scaler.set_shares(()) == ()


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ((a_share("a", 60), a_share("b", 50)), "device 'gpu-0': shares: got 60 [+] 50 percent, wanted at most 100"),
        ((a_share("a", 60), a_share("b", 50, standby_for="c")), "got 60 [+] 50 percent"),
        ((a_share("a", 10), a_share("a", 20)), "two workers 'a'"),
        ((a_share("a", 0),), "share 'a': percent: got 0, wanted above 0"),
        ((a_share("a", 100.5),), "percent: got 100.5"),
        ((a_share("a", float("nan")),), "percent: got nan|Expected"),
        ((a_share("7"),), "worker: got '7', wanted up to 128 letters"),
        ((a_share("a/b"),), "worker: got 'a/b'"),
        ((a_share("a", device=""),), "device_id: got ''"),
        (tuple(a_share(f"w{number}", 1, f"gpu-{number}") for number in range(MAX_WORKERS)), "at most 256 workers"),
    ],
)  # fmt: skip
def test_shares_that_do_not_add_up_are_an_error_and_change_nothing(
    scaler: ProcessScaler, supervisor: RecordingSupervisor, shares: tuple[WantedShare, ...], reason: str
) -> None:
    scaler.set_shares((a_share("kept"),))
    with pytest.raises(ScalingError, match=reason):
        scaler.set_shares(shares)
    assert (supervisor.started, supervisor.drained) == (["worker-kept"], [])


def test_a_worker_name_stands_for_one_share(scaler: ProcessScaler, supervisor: RecordingSupervisor) -> None:
    scaler.set_shares((a_share("a", models=("m",)),))
    scaler.set_shares((a_share("a", models=("m", "n")),))
    with pytest.raises(ScalingError, match=r"share 'a': worker: got 50% of gpu-0, wanted a new name"):
        scaler.set_shares((a_share("a", 50),))
    scaler.set_shares(())
    with pytest.raises(ScalingError, match="workers a: their last processes have not ended yet"):
        scaler.set_shares((a_share("a"), a_share("b", 60)))
    assert supervisor.started == ["worker-a", "worker-b"]  # it keeps no other share waiting


def test_the_shares_of_a_call_come_after_its_workers(scaler: ProcessScaler) -> None:
    shares = (a_share("a"), a_share("b", 60))
    assert scale(scaler, ScaleTo({"k80": 1}, shares)) == Scaled({"k80": 1}, "", ("a", "b"))
    assert scale(scaler, ScaleTo({"k80": 1})).error == ""
    failed = scale(scaler, ScaleTo({"k80": 2}, (a_share("c", 101),)))
    assert failed.workers == {"k80": 2}
    assert "percent: got 101" in failed.error


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

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        raise ScalingError("no shares")


def test_one_type_that_fails_does_not_keep_the_others_and_more_come_before_fewer() -> None:
    scaler = FailingScaler()
    assert scale(scaler, ScaleTo({"k80": 1, "cpu": 3, "v100": 4})) == Scaled({"k80": 1, "cpu": 2, "v100": 4}, "no cpu")
    assert scaler.calls == ["v100", "cpu", "k80"]
    assert scale(scaler, ScaleTo({"v100": 4})) == Scaled({"v100": 4})
    assert scale(scaler, ScaleTo({"absent": 1})) == Scaled({}, "KeyError: 'absent'")
