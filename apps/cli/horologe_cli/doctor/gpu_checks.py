"""Checks of NVIDIA GPUs: persistence mode, and MPS for shares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded
from horologe_gpu_worker.device_shares.mps import PIPES
from horologe_gpu_worker.nvml import NvmlError, load_nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_gpu_worker.nvml import Nvml


def check_gpus(load: Callable[[], Nvml] = load_nvml) -> Iterator[Finding]:
    """Check every GPU. A machine without NVIDIA's driver has one finding, of level ok."""
    try:
        nvml = load()
        driver, gpus = nvml.text("nvmlSystemGetDriverVersion"), list(nvml.gpus())
    except OSError as error:
        yield Finding("GPUs", "ok", f"none: {error}")
        return
    yield Finding("NVIDIA driver", "ok", driver)
    for number, gpu in enumerate(gpus):
        try:
            name, persistent = gpu.name, gpu.persistence
        except NvmlError as error:
            yield Finding(f"GPU {number}", "warn", str(error), "reset the GPU, or restart the machine")
            continue
        state = f"{name}, persistence mode {'on' if persistent else 'off'}"
        hint = "nvidia-smi -pm 1: else the first use of the GPU takes seconds, and its clocks are low at first"
        yield graded(f"GPU {number}", persistent, state, hint)
    pipes = Path(os.environ.get(PIPES) or "/tmp/nvidia-mps")
    if (pipes / "control").exists():
        yield Finding("MPS", "ok", f"control daemon in {pipes}")
    else:
        yield Finding("MPS", "ok", "no control daemon", "for shares of a GPU: nvidia-cuda-mps-control -d")
