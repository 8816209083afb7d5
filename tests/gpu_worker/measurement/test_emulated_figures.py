"""Instruments of an emulated device: power, clock and traces that follow from the activity of its shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.model_folders import SIGNATURE, a_folder, an_emulated_model
from horologe_common.clock import monotonic_ns, s
from horologe_common.interference.colocation import LastExecution
from horologe_common.interference.prediction import run_alone, stack_coefficients
from horologe_common.interference.v100 import CALIBRATED
from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceReading
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS
from horologe_gpu_worker.measurement.emulated_figures import EmulatedFigures
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.emulated_device import EmulatedDeviceFile
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from pathlib import Path

GPU, VGG = CALIBRATED.gpu, CALIBRATED.models["vgg19"]
BATCH, SHARE = 8, 40.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_folder(
        tmp_path, "vgg19", f'runtime = "emulated"\n{SIGNATURE}[emulated]\n[emulated.sharing]\nmodel = "vgg19"\n'
    )


def alone(share: float = SHARE) -> Any:
    arrays: Any = run_alone(GPU, stack_coefficients([VGG])[:, 0], *np.array([BATCH, share]))
    return arrays._make(map(float, arrays))


def execute(device: Path, share: float = SHARE) -> EmulatedDeviceFile:
    """Add a share to the device that has executed for long and goes on."""
    view, now_ns = EmulatedDeviceFile(device), monotonic_ns()
    view.publish(LastExecution(now_ns - s(60), now_ns + s(60), 1.0, tuple(alone(share))))
    return view


def test_power_and_clock_follow_from_the_shares_that_execute(folder: Path, tmp_path: Path) -> None:
    device = tmp_path / "device"
    sensor = DEVICE_SENSORS["emulated"](WorkerSettings(emulated_device=str(device)), folder)
    assert sensor.limits() == DeviceLimits("emulated v100", GPU.max_power_w, GPU.max_frequency_mhz)
    assert sensor.read() == DeviceReading(GPU.idle_power_w, GPU.max_frequency_mhz)
    shares = [execute(device)]
    assert sensor.read().power_w == pytest.approx(GPU.idle_power_w + alone().power_w)
    shares += [execute(device), execute(device)]
    reading = sensor.read()
    assert reading.power_w == GPU.max_power_w  # the demand exceeds the cap
    demand_w = GPU.idle_power_w + 3 * alone().power_w
    slower = GPU.frequency_slope * (demand_w - GPU.max_power_w)
    assert reading.frequency_mhz == pytest.approx(GPU.max_frequency_mhz + slower)
    for share in shares:
        share.close()
    sensor.close()


def test_the_scheduling_delay_grows_with_the_neighbours(folder: Path, tmp_path: Path) -> None:
    figures = EmulatedFigures(str(tmp_path / "device"), folder)
    own = alone()
    lonely = figures.trace(BATCH, SHARE)
    assert (lonely.kernels, lonely.cache_percent) == (VGG.kernels, own.cache_percent)
    total_ms = own.scheduling_ms + own.active_ms + own.feedback_ms
    assert lonely.gaps == pytest.approx(own.scheduling_ms / total_ms)
    itself, other = execute(tmp_path / "device"), execute(tmp_path / "device", 20)
    assert figures.trace(BATCH, SHARE).gaps > 2 * lonely.gaps
    for view in (itself, other):
        view.close()
    figures.close()


def test_a_model_without_declared_sharing_has_no_device(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"emulated\.sharing: got no table, wanted the coefficients"):
        EmulatedFigures(str(tmp_path / "device"), an_emulated_model(tmp_path))
