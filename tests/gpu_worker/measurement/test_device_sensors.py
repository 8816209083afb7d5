"""Device sensors: NVML on a pretend library, means over a run, a GPU that disappears, a machine without NVML."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import sleep

import pytest

from fakes.cuda import FakeCuda
from fakes.nvml import FakeGpu, FakeNvml, hide_nvml
from horologe_common.clock import s
from horologe_gpu_worker import nvml
from horologe_gpu_worker.measurement.device_sensor import (
    DeviceLimits,
    DeviceLost,
    DeviceReading,
    SensorFailed,
    SensorWindow,
)
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS
from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import NvmlSensor, open_nvml_sensor
from horologe_gpu_worker.nvml import gpu_metrics
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import Driver
from horologe_gpu_worker.settings import WorkerSettings


def a_sensor(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> NvmlSensor:
    """Return the sensor of the first CUDA device, which is on bus 0."""
    FakeNvml(list(gpus)).install(monkeypatch)
    monkeypatch.setattr(nvml, "load_driver", lambda: Driver(FakeCuda()))
    return open_nvml_sensor(0)


def test_nvml_reads_limits_power_and_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(power_mw=250_500, energy_mj=7000, clock_mhz=1755)
    sensor = a_sensor(monkeypatch, gpu)
    assert sensor.limits() == DeviceLimits("NVIDIA H100 80GB HBM3", 700.0, 1980.0, "580.159")
    assert sensor.read() == DeviceReading(250.5, 1755.0, 7.0)
    gpu.energy_mj = None
    assert sensor.read().energy_j is None


def test_nvml_finds_the_gpu_that_cuda_means(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = a_sensor(monkeypatch, FakeGpu("0000:01:00.0", b"first"), FakeGpu("0000:00:00.0", b"second"))
    assert sensor.limits().name == "second"
    with pytest.raises(SensorFailed, match="NVML: Not Found"):
        a_sensor(monkeypatch, FakeGpu("0000:07:00.0"))


def test_a_lost_gpu_is_told_from_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    sensor = a_sensor(monkeypatch, gpu)
    gpu.lost = True
    with pytest.raises(DeviceLost, match="the GPU is lost: NVML: GPU is lost"):
        sensor.read()


def test_without_nvml_the_error_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_nvml(monkeypatch)
    with pytest.raises(SensorFailed, match=r"NVML: .*Library Not Found; wanted libnvidia-ml\.so\.1"):
        DEVICE_SENSORS["nvml"](WorkerSettings(device="cuda:0"), Path())


def test_without_a_cuda_driver_the_error_names_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    FakeNvml().install(monkeypatch)
    monkeypatch.setattr(nvml, "load_driver", fail)
    with pytest.raises(SensorFailed, match=r"NVML: libcuda\.so\.1: cannot open shared object file"):
        DEVICE_SENSORS["nvml"](WorkerSettings(device="cuda:0"), Path())


class Readings:
    """A sensor that returns each reading once, and then the last one."""

    def __init__(self, *readings: DeviceReading | DeviceLost) -> None:
        self.left = list(readings)

    def limits(self) -> DeviceLimits:
        return DeviceLimits("d", 100.0, 1000.0)

    def read(self) -> DeviceReading:
        reading = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(reading, DeviceLost):
            raise reading
        return reading

    def close(self) -> None:
        pass


def test_means_of_a_window() -> None:
    readings = Readings(DeviceReading(100, 900), DeviceReading(200, 1000))
    with SensorWindow(readings, sample_s=60) as window:  # no sample between entry and exit
        pass
    assert window.mean() == DeviceReading(150, 950)


def test_power_follows_from_counted_energy() -> None:
    times = count(0, s(2))
    readings = Readings(DeviceReading(100, 900, 1000.0), DeviceReading(100, 900, 1600.0))
    with SensorWindow(readings, lambda: next(times), sample_s=60) as window:
        pass
    assert window.mean() == DeviceReading(300, 900)


def test_a_sensor_that_fails_during_a_run_fails_the_run() -> None:
    sensor = Readings(DeviceReading(100, 900), DeviceLost("the GPU is lost"))
    with SensorWindow(sensor, sample_s=0.001) as window:
        while len(sensor.left) > 1:
            sleep(0.001)
    with pytest.raises(DeviceLost, match="the GPU is lost"):
        window.mean()


def test_the_cpu_has_no_power_sensor() -> None:
    sensor = DEVICE_SENSORS["host"](WorkerSettings(), Path())
    assert sensor.limits().max_power_w == 0
    assert sensor.read().power_w == 0


def test_the_figures_of_a_gpu_have_tritons_names(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml([FakeGpu(energy_mj=5000, utilization=None)])
    fake.install(monkeypatch)
    monkeypatch.setattr(nvml, "pci_bus_id", lambda driver, device: "0000:00:00.0")
    monkeypatch.setattr(nvml, "load_driver", lambda: None)
    read = gpu_metrics(0)
    assert read is not None
    assert read().values == {
        ("nv_gpu_memory_total_bytes", "GPU-5a"): 80 << 30,
        ("nv_gpu_memory_used_bytes", "GPU-5a"): 8 << 30,
        ("nv_gpu_power_usage", "GPU-5a"): 120,
        ("nv_gpu_power_limit", "GPU-5a"): 700,
        ("nv_energy_consumption", "GPU-5a"): 5,
    }
    fake.gpus[0].utilization = 25
    assert read().values["nv_gpu_utilization", "GPU-5a"] == 0.25
    hide_nvml(monkeypatch)
    assert gpu_metrics(0) is None
