"""Emulated shares: times alone and beside neighbours, fading activity, noise, and the file that connects processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model_folders import SIGNATURE, a_folder
from horologe_common.clock import ms, s
from horologe_common.interference.colocation import CoLocatedModel, ExecutionNoise, LastExecution, SharedDevice
from horologe_common.interference.prediction import INTERFERENCE_MODELS, predict_shares, stack_coefficients
from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.emulated import EmulatedRuntime, Sleeper
from horologe_gpu_worker.runtimes.emulated_device import FILE_BYTES, SLOT, SLOTS, EmulatedDeviceFile
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from pathlib import Path

MODELS = sorted(V100_CATALOGUES["igniter"].models)
NAMES = sorted(INTERFERENCE_MODELS)


def a_model(
    device: SharedDevice, name: str, percent: float, interference: str = "igniter", **more: Any
) -> CoLocatedModel:
    gpu, models = V100_CATALOGUES[interference]
    return CoLocatedModel(gpu, models[name], interference, percent, device.join(), **more)


def run_side_by_side(models: list[CoLocatedModel], batch: int, until_ns: int = s(2)) -> list[int]:
    """Execute batches without a pause on every share. Return the last time of each."""
    free_ns, took_ns = [0] * len(models), [0] * len(models)
    while min(free_ns) < until_ns:
        at = free_ns.index(min(free_ns))
        took_ns[at] = models[at].begin_exec(free_ns[at], batch)
        free_ns[at] += took_ns[at]
    return took_ns


@pytest.mark.parametrize("interference", NAMES)
def test_shares_that_never_pause_take_the_predicted_times(interference: str) -> None:
    gpu, models = V100_CATALOGUES[interference]
    names, percents = ["alexnet", "resnet50", "vgg19"], [20.0, 30.0, 50.0]
    device = SharedDevice()
    running = [a_model(device, name, percent, interference) for name, percent in zip(names, percents, strict=True)]
    took_ms = np.array(run_side_by_side(running, 4)) / 1e6
    stacked = stack_coefficients([models[name] for name in names])
    predicted = predict_shares(INTERFERENCE_MODELS[interference], gpu, stacked, np.full(3, 4.0), np.array(percents))
    np.testing.assert_allclose(took_ms, predicted.gpu_ms, rtol=1e-6)
    np.testing.assert_allclose([model.input_ns(4) / 1e6 for model in running], predicted.load_ms, rtol=1e-4)
    np.testing.assert_allclose([model.output_ns(4) / 1e6 for model in running], predicted.feedback_ms, rtol=1e-3)


def test_a_neighbour_counts_by_its_busy_fraction() -> None:
    device = SharedDevice()
    own, other = a_model(device, "vgg19", 50.0), a_model(device, "ssd", 50.0)
    alone_ns = own.begin_exec(0, 4)
    assert alone_ns == own.solo_ns(4)
    half_ns = s(1)
    for begin_ns in range(s(1), s(2), 2 * other.solo_ns(4)):  # every second moment is idle
        half_ns = other.begin_exec(begin_ns, 4) and own.begin_exec(begin_ns + 1, 4)
    busy_ns = run_side_by_side([own, other], 4, s(4))[0]
    assert alone_ns < half_ns < busy_ns
    assert own.begin_exec(s(60), 4) == alone_ns  # the neighbour has been idle for long


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(NAMES), st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, 32)), min_size=2, max_size=5))
def test_no_neighbour_makes_a_share_faster(interference: str, loads: list[tuple[str, int]]) -> None:
    device = SharedDevice()
    models = [a_model(device, name, 100 / len(loads), interference) for name, _ in loads]
    for round_ns in range(0, ms(200), ms(5)):
        for model, (_, batch) in zip(models, loads, strict=True):
            assert model.begin_exec(round_ns, batch) >= model.solo_ns(batch)


@given(st.integers(0, s(1)), st.integers(0, s(1)), st.floats(0, 1), st.integers(0, s(3)))
def test_a_busy_fraction_grows_while_executing_and_then_falls(begin: int, took: int, busy: float, now: int) -> None:
    activity = LastExecution(begin, begin + took, busy)
    assert 0 <= activity.busy_at(now) <= 1
    assert activity.busy_at(begin) == busy
    if now < begin + took:
        assert activity.busy_at(now) <= activity.busy_at(begin + took) + 1e-12
    else:
        assert activity.busy_at(now + ms(1)) <= activity.busy_at(now)


def test_a_share_that_leaves_slows_nobody() -> None:
    device = SharedDevice()
    gpu, models = V100_CATALOGUES["igniter"]
    own, leaving = a_model(device, "vgg19", 50.0), device.join()
    other = CoLocatedModel(gpu, models["ssd"], "igniter", 50.0, leaving)
    assert run_side_by_side([own, other], 4)[0] > own.solo_ns(4)
    leaving.leave()
    assert own.begin_exec(s(2), 4) == own.solo_ns(4)


def test_noise_is_a_constant_error_and_jitter() -> None:
    coefficients = msgspec.structs.replace(V100_CATALOGUES["igniter"].models["ssd"], relative_error=0.2, jitter=0.05)
    noises = [ExecutionNoise(coefficients, [seed]) for seed in range(400)]
    assert np.std(np.log([noise.error for noise in noises])) == pytest.approx(0.2, rel=0.15)
    factors = np.array([noises[0].next_factor() for _ in range(3000)]) / noises[0].error
    assert np.std(np.log(factors)) == pytest.approx(0.05, rel=0.1)
    assert np.median(factors) == pytest.approx(1, abs=0.01)
    same, other = ExecutionNoise(coefficients, [1]), ExecutionNoise(coefficients, [1])
    assert [same.next_factor() for _ in range(9)] == [other.next_factor() for _ in range(9)]


def test_a_time_factor_multiplies_all_times() -> None:
    fast = [a_model(device, "ssd", 50.0) for device in [SharedDevice()] for _ in range(2)]
    slow = [a_model(device, "ssd", 50.0, time_factor=10.0) for device in [SharedDevice()] for _ in range(2)]
    fast_ns, slow_ns = run_side_by_side(fast, 8, s(1)), run_side_by_side(slow, 8, s(10))
    assert slow_ns == [pytest.approx(10 * took_ns, rel=1e-6) for took_ns in fast_ns]


# the file of an emulated device


def test_shares_of_a_file_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "devices" / "gpu0"
    first, second = EmulatedDeviceFile(path), EmulatedDeviceFile(path)
    assert list(first.neighbours()) == []
    activity = LastExecution(5, 9, 0.25, tuple(map(float, range(10))))
    first.publish(activity)
    assert list(second.neighbours()) == [activity]
    assert (first.own(), list(first.neighbours())) == (activity, [])
    first.close()
    third = EmulatedDeviceFile(path)  # takes the free slot, idle
    assert list(second.neighbours()) == []
    second.close()
    third.close()


def test_the_slot_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "gpu0"
    code = (
        "import sys; from pathlib import Path\n"
        "from horologe_gpu_worker.runtimes.emulated_device import EmulatedDeviceFile as File, LastExecution\n"
        f"file = File(Path({str(path)!r})); file.publish(LastExecution(1, 2, 1.0))\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        others = [EmulatedDeviceFile(path) for _ in range(SLOTS - 1)]
        with pytest.raises(SettingsError, match=f"gpu0: got {SLOTS} shares, wanted fewer"):
            EmulatedDeviceFile(path)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdin.close()
        child.stdout.close()
    others.append(EmulatedDeviceFile(path))
    assert list(others[0].neighbours()) == []
    for share in others:
        share.close()


def test_a_slot_that_is_being_written_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "gpu0"
    first, second = EmulatedDeviceFile(path), EmulatedDeviceFile(path)
    first.publish(LastExecution(1, 2, 1.0))
    with path.open("r+b") as file:
        file.seek(SLOT.size - 8)
        file.write((99).to_bytes(8, "little"))  # a write has begun
    assert list(second.neighbours()) == []
    first.publish(LastExecution(3, 4, 0.5))
    assert [other.begin_ns for other in second.neighbours()] == [3]
    first.close()
    second.close()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("hello")
    with pytest.raises(SettingsError, match=f"notes: got 5 bytes, wanted {FILE_BYTES}"):
        EmulatedDeviceFile(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "hello"
    with pytest.raises(SettingsError, match="wanted a file that can be written"):
        EmulatedDeviceFile(tmp_path)


# the emulated runtime

SHARING = "batch_sizes = [1, 2, 4]\n" + SIGNATURE + "[emulated]\nload_ms = 3\n[emulated.sharing]\n"


ABSURD = (
    "model = {model = 'm', k1 = 0, k2 = -1, k3 = 0, k4 = 0, k5 = 0, alpha_cache = 0, alpha_power = 0, beta_power = 0, "
    "alpha_cacheutil = 0, beta_cacheutil = 0, kernels = 1, scheduling_delay_ms = 0, load_bytes = 0, feedback_bytes = 0}"
)


class StillClock:
    """A clock that stands still but for sleeps."""

    now_ns = 1000

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def test_emulated_workers_with_one_device_slow_each_other(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "m", SHARING + "model = 'vgg19'\nnoise = false\n")
    clock = StillClock()
    waiter = Sleeper(clock.clock, clock.sleep)
    x = {"x": np.zeros((4, 4), np.float32)}

    def open_share(percent: float, device: str = "gpu0") -> tuple[EmulatedRuntime, object]:
        config = WorkerSettings(share_percent=percent, emulated_device=str(tmp_path / device))
        runtime = EmulatedRuntime(config, waiter)
        return runtime, runtime.open(runtime.inspect(folder), folder)

    def took(model: object) -> int:
        begin_ns = clock.now_ns
        model.run(4, x)  # type: ignore[attr-defined]
        return clock.now_ns - begin_ns

    (runtime, first), (_, second), (_, elsewhere) = open_share(50), open_share(50), open_share(50, "gpu1")
    profile = runtime.profile(runtime.inspect(folder), folder)
    assert sorted(profile.exec_ns) == [1, 2, 4]
    assert took(first) == profile.exec_ns[4]
    beside = [took(model) for _ in range(20) for model in (first, second)][-1]
    assert beside > profile.exec_ns[4]
    assert took(elsewhere) == profile.exec_ns[4]
    assert took(open_share(100, "gpu2")[1]) < profile.exec_ns[4]


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("model = 'lenet'", r"emulated\.sharing\.model: got 'lenet', wanted one of alexnet, resnet50, vgg19, ssd, or"),
        ("model = 'ssd'\ngpu = 'h900'", r"emulated\.sharing\.gpu: got 'h900', wanted 'v100' or a table"),
        ("model = 'ssd'\ninterference = 'none'", r"interference: got 'none', wanted one of igniter, pcie-contention"),
        ("model = 'ssd'\ntime_factor = 0", r"time_factor: got 0.0, wanted at least 1e-06"),
        ("model = 'ssd'\ntime = 0", r"model\.toml: .*`time`"),
        (ABSURD, r"emulated\.sharing: m: k2: got -1, wanted a number above 0"),
        ("model = 'ssd'\n[emulated.exec_ms]\n1 = 2", r"exec_ms: got times and \[emulated\.sharing\], wanted one"),
    ],
)  # fmt: skip
def test_a_bad_sharing_table_names_the_field(tmp_path: Path, table: str, wanted: str) -> None:
    folder = a_folder(tmp_path, "m", SHARING + table)
    with pytest.raises(InvalidModel, match=wanted):
        EmulatedRuntime().inspect(folder)


def test_every_built_in_model_is_valid() -> None:
    for gpu, models in V100_CATALOGUES.values():
        gpu.validate()
        for model in models.values():
            model.validate()
            assert 0 < model.jitter < 0.05
