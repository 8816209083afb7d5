"""Shares of devices in a worker: settings that contradict each other, MPS, CPU quotas and CPUs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import FakeGpu, FakeNvml, hide_nvml
from horologe_common.service.settings import SettingsError
from horologe_common.wire import DeviceInfo
from horologe_gpu_worker import nvml
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.device_shares import cpu as cpu_share
from horologe_gpu_worker.device_shares import enter_share
from horologe_gpu_worker.execution.realtime import CpuClaims
from horologe_gpu_worker.file_lock import lock_file
from horologe_gpu_worker.settings import WorkerSettings

CGROUPS = Path("/sys/fs/cgroup")


def settings(**fields: Any) -> WorkerSettings:
    return WorkerSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"share_percent": 0.0}, "worker.share_percent: got 0, wanted above 0 and at most 100"),
        ({"share_percent": -5.0}, "worker.share_percent: got -5"),
        ({"share_percent": 120.0}, "worker.share_percent: got 120"),
        ({"share_percent": float("nan")}, "worker.share_percent: got nan"),
        ({"share_percent": 40.0, "share_mechanism": "whole"}, "got 40, wanted 100 for share_mechanism 'whole'"),
        ({"share_percent": 40.0, "share_mechanism": "mps"}, "got 'mps', wanted one of whole, container, cpu, emulated"),
        ({"share_mechanism": "cpu", "device": "cuda:1"}, "got 'cpu', wanted one of whole, container, mps, mig"),
        ({"share_percent": 40.0, "shares": 2}, "worker.shares: got 2, wanted 1 for a share of 40%"),
        ({"device_id": "GPU-1", "device": "cuda:1"}, "worker.device: got 'cuda:1', wanted cuda: worker.device_id"),
        ({"device_id": "GPU-1", "device": "cpu"}, "worker.device: got 'cpu', wanted cuda: worker.device_id"),
    ],
)
def test_settings_that_contradict_each_other_are_errors(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError) as error:
        enter_share(settings(**fields))
    assert reason in error.value.reason


def test_shares_of_one_host_and_device_are_neighbours_and_whole_cpu_workers_are_not() -> None:
    left, right = (enter_share(settings(name=name, device="v100", share_percent=40.0)) for name in "ab")
    assert left.device.id == right.device.id
    assert (left.device.type, left.percent) == ("v100", 40)
    first, second = (enter_share(settings(name=name)) for name in "ab")
    assert first.device.id != second.device.id
    assert enter_share(settings(device_id="gpu-7", share_percent=20.0)).device.id == "gpu-7"


def test_a_worker_reports_its_share_and_its_device() -> None:
    worker = Worker("worker/0#1", settings(device_id="gpu-7", hardware="v100", share_percent=40.0), [], lambda _: True)
    (share,) = [share.describe_share() for share in worker.shares]
    assert share.percent == 40
    assert (worker.device_info.id, worker.device_info.type) == ("gpu-7", "v100")
    halves = Worker("worker/0#1", settings(shares=2), [], lambda _: True)
    assert [share.describe_share().percent for share in halves.shares] == [50, 50]


def test_mps_needs_its_daemon_and_sets_the_percentage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    wanted = settings(device="cuda", share_percent=37.5, device_id="gpu-0")
    with pytest.raises(SettingsError, match="no MPS control daemon has its pipes in"):
        enter_share(wanted)
    (tmp_path / "control").touch()
    assert enter_share(wanted).percent == 37.5
    assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "37.5"
    with pytest.raises(SettingsError, match=r"got '37.5', wanted worker\.share_percent, 50"):
        enter_share(settings(device="cuda", share_percent=50.0, device_id="gpu-0"))


class FakeDriver:
    """A CUDA driver that knows the bus of its devices."""

    def __call__(self, call: str, *arguments: Any) -> None:
        if call == "cuDeviceGetPCIBusId":
            arguments[0].value = b"0000:00:00.0"


def test_a_cuda_device_is_described_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml([FakeGpu()])
    fake.install(monkeypatch)
    monkeypatch.setattr(nvml, "load_driver", FakeDriver)
    device = enter_share(settings(device="cuda")).device
    assert device == DeviceInfo("GPU-5a", "NVIDIA H100 80GB HBM3", 80 << 30, 700.0)
    assert enter_share(settings(device="cuda", device_id="mine")).device.id == "mine"
    fake.gpus[0].lost = True
    assert enter_share(settings(device="cuda", hardware="h100")).device.type == "h100"


def test_without_nvml_a_cuda_device_has_the_name_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_nvml(monkeypatch)
    device = enter_share(settings(device="cuda:1", hardware="h100")).device
    assert device.id.endswith("/cuda:1")
    assert (device.type, device.memory_bytes, device.power_cap_w) == ("h100", 0, 0)


@pytest.fixture
def mig(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs: one without MIG, one with slices of 3, 2 and 2 of 7."""
    fake = FakeNvml([FakeGpu(), FakeGpu(uuid=b"GPU-6b", mig=[(b"MIG-3", 3), (b"MIG-2a", 2), (b"MIG-2b", 2)])])
    fake.install(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return fake


def a_mig_share(folder: Path, percent: float, **fields: Any) -> WorkerSettings:
    return settings(cache=str(folder), device="cuda", share_mechanism="mig", share_percent=percent, **fields)


def test_a_mig_share_takes_a_free_slice_of_its_size(tmp_path: Path, mig: FakeNvml) -> None:
    first = enter_share(a_mig_share(tmp_path, 30.0))
    assert (first.percent, first.device.id, os.environ["CUDA_VISIBLE_DEVICES"]) == (28.6, "GPU-6b", "MIG-2a")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    enter_share(a_mig_share(tmp_path, 28.6, device_id="GPU-6b"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-2b"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with pytest.raises(SettingsError, match=r"got 30, wanted a MIG device, of 42.9%, 28.6%, 28.6%; all 2 of this size"):
        enter_share(a_mig_share(tmp_path, 30.0))
    with pytest.raises(SettingsError, match=r"got 60, wanted a MIG device, of 42.9%, 28.6%, 28.6%$"):
        enter_share(a_mig_share(tmp_path, 60.0))
    with pytest.raises(SettingsError, match="wanted a MIG device, of none: MIG is off"):
        enter_share(a_mig_share(tmp_path, 42.9, device_id="GPU-5a"))


def test_a_mig_share_takes_the_slice_of_its_container(
    tmp_path: Path, mig: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2b")
    assert enter_share(a_mig_share(tmp_path, 28.0)).percent == 28.6
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-2b"


def test_a_mig_share_needs_nvml_and_the_first_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_nvml(monkeypatch)
    with pytest.raises(SettingsError, match="got 'mig', and NVML cannot be used: NVML Shared Library Not Found"):
        enter_share(a_mig_share(tmp_path, 28.6))
    with pytest.raises(SettingsError, match="got 'cuda:1', wanted cuda for share_mechanism 'mig'"):
        enter_share(settings(device="cuda:1", share_mechanism="mig", share_percent=28.6))


def test_a_gpu_is_selected_by_its_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert enter_share(settings(device="cuda", device_id="GPU-5a")).device.id == "GPU-5a"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-5a"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A folder like that of a control group of the second version that is delegated to this process."""
    return tmp_path


def test_a_quota_is_a_part_of_each_period(groups: Path) -> None:
    quotas = [(1.2, "12000 10000"), (0.05, "1000 20000")]
    for cpus, written in quotas:
        assert cpu_share.set_quota(cpus, [groups])
        group = groups / f"horologe-{os.getpid()}"
        assert (group / "cpu.max").read_text() == f"{written}\n"
        assert (group / "cgroup.procs").read_text() == f"{os.getpid()}\n"


def test_without_a_quota_the_share_is_cpus_that_no_other_share_has(tmp_path: Path) -> None:
    """Two workers with half of the CPUs each get different CPUs, in processes of their own."""
    if (count := len(os.sched_getaffinity(0))) % 2:
        pytest.skip("needs an even number of CPUs")
    program = (
        "import os, sys; from horologe_gpu_worker.device_shares.cpu import enter;"
        "from horologe_gpu_worker.settings import WorkerSettings;"
        f"s = WorkerSettings(cache={str(tmp_path)!r}, share_percent=50.0, share_mechanism='cpu');"
        "e = enter(s, ()); print(e.percent, *os.sched_getaffinity(0), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    cpus: list[str] = []
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) for _ in "ab"]
    for worker in workers:
        assert worker.stdout is not None
        percent, *own = worker.stdout.readline().split()
        assert (float(percent), len(own)) == (50, count // 2)
        cpus += own
    for worker in workers:
        worker.communicate()
    assert len(set(cpus)) == count


@pytest.mark.skipif(not os.access(CGROUPS / "cpu", os.W_OK), reason="no control group can be created")
def test_the_kernel_limits_a_worker_with_a_quota(tmp_path: Path) -> None:
    program = (
        "import time; from pathlib import Path; from horologe_gpu_worker.device_shares import enter_share;"
        "from horologe_gpu_worker.settings import WorkerSettings;"
        f"enter_share(WorkerSettings(cache={str(tmp_path)!r}, share_percent=5.0, share_mechanism='cpu'));"
        "sum(range(3_000_000));"
        "(line,) = [line for line in open('/proc/self/cgroup') if ':cpu:' in line];"
        "print(Path('/sys/fs/cgroup/cpu' + line.split(':')[2].strip(), 'cpu.stat').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    statistics = dict(line.split() for line in done.stdout.split("\n") if line)
    assert int(statistics["nr_throttled"]) > 0, done.stderr


def test_a_claim_lasts_until_its_process_ends(tmp_path: Path) -> None:
    program = (
        "import pathlib; from horologe_gpu_worker.file_lock import lock_file;"
        f"print(lock_file(pathlib.Path({str(tmp_path)!r}) / 'cpu-0') is not None)"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"
    lock = lock_file(tmp_path / "cpu-0")
    assert lock is not None
    assert lock_file(tmp_path / "cpu-0") is None
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
    os.close(lock)


def test_a_cpu_share_describes_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None)
    entered = cpu_share.enter(settings(cache=str(tmp_path), share_percent=1.0, share_mechanism="cpu"), ())
    assert entered.device.memory_bytes > 1 << 20
    assert entered.percent == 100 / len(os.sched_getaffinity(0))  # at least one CPU


def test_lanes_are_pinned_from_four_cores_up_and_never_two_to_one_core(tmp_path: Path) -> None:
    assert CpuClaims(tmp_path).claim({0, 1}) is None
    workers = [CpuClaims(tmp_path) for _ in range(3)]
    places = [worker.claim(set(range(8))) for worker in workers for _ in range(2)]
    assert places == [7, 6, 5, 4, None, None]
    workers[0].release()
    assert workers[2].claim({2, 3, 6, 7}) == 7
    for worker in workers[1:]:
        worker.release()
