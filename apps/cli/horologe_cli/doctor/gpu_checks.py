"""Checks of NVIDIA GPUs: persistence mode, and MPS for shares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_gpus() -> Iterator[Finding]:
    """Check every GPU. A machine without NVIDIA's driver has one finding, of level ok."""
    try:
        import pynvml  # a package of the worker, which an installation may lack

        from horologe_gpu_worker.device_shares.mps import PIPES

        pynvml.nvmlInit()
    except ImportError:
        yield Finding("GPUs", "ok", "not checked: the package nvidia-ml-py is not installed")
        return
    except pynvml.NVMLError as error:
        yield Finding("GPUs", "ok", f"none: {error}")
        return
    yield Finding("NVIDIA driver", "ok", pynvml.nvmlSystemGetDriverVersion())
    for number in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
            name, persistent = pynvml.nvmlDeviceGetName(gpu), bool(pynvml.nvmlDeviceGetPersistenceMode(gpu))
        except pynvml.NVMLError as error:
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
