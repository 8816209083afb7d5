"""Device sensors: NVML on a pretend library, means over a run, a GPU that disappears, a machine without NVML."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import sleep

import pytest

from fakes.cuda import FakeCuda
from fakes.nvml import FakeGpu, FakeNvml
from horologe_common.clock import s
from horologe_gpu_worker.measurement.device_sensor import (
    DeviceLimits,
    DeviceLost,
    DeviceReading,
    SensorFailed,
    SensorWindow,
)
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS, nvml_sensor
from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import NvmlSensor, pci_bus_id
from horologe_gpu_worker.nvml import GpuLost, Nvml, NvmlError
from horologe_gpu_worker.runtime import DeviceConfig
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import Driver


def test_nvml_reads_limits_power_and_clock() -> None:
    gpu = FakeGpu(power_mw=250_500, energy_mj=7000, clock_mhz=1755)
    sensor = NvmlSensor(Nvml(FakeNvml([gpu])).gpu(0))
    assert sensor.limits() == DeviceLimits("NVIDIA H100 80GB HBM3", 700.0, 1980.0, "580.159")
    assert sensor.read() == DeviceReading(250.5, 1755.0, 7.0)
    gpu.energy_mj = None
    assert sensor.read().energy_j is None


def test_nvml_finds_the_gpu_that_cuda_means() -> None:
    library = FakeNvml([FakeGpu("0000:01:00.0", b"first"), FakeGpu("0000:00:00.0", b"second")])
    bus_id = pci_bus_id(Driver(FakeCuda()), 0)
    assert Nvml(library).gpu(pci_bus_id=bus_id).name == "second"
    assert [gpu.name for gpu in Nvml(library).gpus()] == ["first", "second"]
    with pytest.raises(NvmlError, match="nvmlDeviceGetHandleByPciBusId_v2: NVML error 6: Not Found"):
        Nvml(library).gpu(pci_bus_id="0000:07:00.0")


def test_a_lost_gpu_is_told_from_a_call_that_fails() -> None:
    gpu = FakeGpu()
    found = Nvml(FakeNvml([gpu])).gpu(0)
    gpu.lost = True
    with pytest.raises(GpuLost, match="GPU is lost"):
        _ = found.power_w
    with pytest.raises(DeviceLost, match="the GPU is lost: nvmlDeviceGetPowerUsage: NVML error 15"):
        NvmlSensor(found).read()


@pytest.mark.parametrize("missing", ["load_nvml", "load_driver"])
def test_without_nvml_or_driver_the_error_names_the_library(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(f"{missing}: cannot open shared object file")

    monkeypatch.setattr(nvml_sensor, "load_nvml", lambda: Nvml(FakeNvml()))
    monkeypatch.setattr(nvml_sensor, missing, fail)
    with pytest.raises(SensorFailed, match=r"NVML: .*cannot open shared object file; wanted libnvidia-ml\.so\.1"):
        DEVICE_SENSORS["nvml"](DeviceConfig("cuda:0"), Path())


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
    sensor = DEVICE_SENSORS["host"](DeviceConfig(), Path())
    assert sensor.limits().max_power_w == 0
    assert sensor.read().power_w == 0
