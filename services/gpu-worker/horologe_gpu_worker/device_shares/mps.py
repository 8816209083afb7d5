"""A share of a GPU by NVIDIA's Multi-Process Service: the driver limits the threads of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.device_shares import EnteredShare
from horologe_gpu_worker.nvml import describe_cuda_device

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings

PERCENTAGE, PIPES = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY"


def enter(settings: WorkerSettings) -> EnteredShare:
    """Set the active thread percentage in the environment. The driver reads it when the process first uses the GPU.

    Raises SettingsError without an MPS control daemon: every process would then get the whole GPU in turn.
    """
    percent, given = settings.share_percent, os.environ.get(PERCENTAGE)
    if given is not None and given != f"{percent:g}":
        raise SettingsError(f"environment {PERCENTAGE}: got {given!r}, wanted worker.share_percent, {percent:g}")
    pipes = os.environ.get(PIPES) or "/tmp/nvidia-mps"
    if not (Path(pipes) / "control").exists():
        raise SettingsError(
            f"setting worker.share_mechanism: got 'mps', and no MPS control daemon has its pipes in {pipes}; start "
            f"`nvidia-cuda-mps-control -d`, or set {PIPES}"
        )
    os.environ[PERCENTAGE] = f"{percent:g}"
    return EnteredShare(describe_cuda_device(settings, settings.cuda or 0), percent)
