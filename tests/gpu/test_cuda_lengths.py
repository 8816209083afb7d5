"""PyTorch models of variable length on a real CUDA device. They need msgspec and onnx."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
for package in ("msgspec", "onnx"):
    pytest.importorskip(package, reason=f"{package} is not installed: carry its wheel to run whole runtimes")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from gpu_worker.cuda_length_cases import *  # noqa: F403 (its tests are run here)
from horologe_gpu_worker.runtime import DeviceConfig
from horologe_gpu_worker.runtimes import RUNTIMES

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Any:
    return RUNTIMES["pytorch"](DeviceConfig("cuda:0", 8, 16 << 20))
