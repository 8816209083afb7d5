"""Instruments of `horologe measure` on a real CUDA device. They need msgspec and structlog (carry their wheels)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
for package in ("msgspec", "structlog", "zmq"):
    pytest.importorskip(package, reason=f"{package} is not installed: carry its wheel to run whole runtimes")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench_gpu.rig import Rig
from horologe_gpu_worker.measurement.device_sensor import SensorWindow
from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import open_nvml_sensor
from horologe_gpu_worker.measurement.kernel_trace import RUNS, trace_cuda
from horologe_gpu_worker.measurement.share_runner import cuda_rates

pytestmark = pytest.mark.gpu


def test_nvml_reads_the_device_that_pytorch_uses() -> None:
    sensor = open_nvml_sensor(0)
    limits = sensor.limits()
    assert limits.name == torch.cuda.get_device_properties(0).name
    busy = torch.randn(4096, 4096, device="cuda:0")
    with SensorWindow(sensor) as window:
        for _ in range(50):
            busy = busy @ busy / 4096
        torch.cuda.synchronize()
    reading = window.mean()
    assert 0 < reading.power_w < 1.2 * limits.max_power_w
    assert 0 < reading.frequency_mhz <= limits.max_frequency_mhz


def test_kernels_of_a_captured_graph_are_traced() -> None:
    run = Rig(pretend=False, tiny=True).runner("resnet50", 4)
    run()
    traced = trace_cuda(run)
    assert traced.kernels > RUNS
    assert 0 <= traced.gaps < 1


def test_copies_have_rates() -> None:
    rates = cuda_rates(0)
    assert rates.memory_bytes_per_ms > rates.transfer_bytes_per_ms > 1e5
