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
from horologe_common.models import PAGE_BYTES
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.settings import WorkerSettings

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Any:
    return RUNTIMES["pytorch"](WorkerSettings(device="cuda:0", pages_bytes=8 * PAGE_BYTES, io_cache_bytes=16 << 20))
