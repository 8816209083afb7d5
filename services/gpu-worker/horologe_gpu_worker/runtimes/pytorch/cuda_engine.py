"""A CUDA device for PyTorch: its pages, its streams, the memory of batches, and the order of copies."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horologe_gpu_worker.execution.workspace import Arena
from horologe_gpu_worker.runtimes.pytorch.copy_order import CopyOrder
from horologe_gpu_worker.runtimes.pytorch.cuda_graphs import GraphCapturer
from horologe_gpu_worker.runtimes.pytorch.cuda_model import CudaModel
from horologe_gpu_worker.runtimes.pytorch.paging import device_pages
from horologe_gpu_worker.runtimes.pytorch.program import Program, UnsupportedProgram, load_program

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context."""


class CudaEngine:
    """A CUDA device: its pages, its streams and the memory of batches. Raises OSError or `OutOfPages`."""

    inline_io = False

    def __init__(self, device: int, pages: int, page_bytes: int, io_bytes: int) -> None:
        self.device = device
        torch.cuda.init()
        torch.cuda.set_device(device)
        self.pool = device_pages.device_pool(device, pages, page_bytes)
        self.input_stream, self.output_stream, self.exec_stream = (torch.cuda.Stream(device, -1) for _ in range(3))
        self.load_stream = torch.cuda.Stream(device)
        self.copy_order = CopyOrder()
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.capturer = GraphCapturer(device)
        self.captures = ThreadPoolExecutor(1, "capture")
        self.arena = Arena(io_bytes)
        self.host = pinned_memory(io_bytes)
        self.memory = torch.empty(io_bytes, dtype=torch.uint8, device=self.capturer.device)

    def load_program(self, path: Path) -> Program:
        program = load_program(path, self.device)
        torch.cuda.empty_cache()  # frees the copies of weights that moving the program made
        if not program.shapes.has_known_outputs:
            raise UnsupportedProgram(
                "outputs: got shapes that depend on the values of inputs, wanted them to follow from their shapes: the "
                "memory of a batch is allocated before it runs"
            )
        pin_memory(program.memory)
        return program

    def create_model(self, spec: ModelSpec, program: Program, threads: int) -> CudaModel:
        return CudaModel(spec, program, self)


def pinned_memory(size: int) -> Any:
    """Allocate host memory that the device can read and write directly."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def pin_memory(memory: NDArray[np.uint8]) -> None:
    """Pin host memory for direct device access until the array is freed.

    Raises OSError if the system does not permit that many bytes.
    """
    runtime = torch.cuda.cudart()
    address = memory.ctypes.data
    code = int(runtime.cudaHostRegister(address, memory.nbytes, PORTABLE))
    if code:
        raise OSError(code, f"cudaHostRegister: CUDA error {code} for {memory.nbytes} bytes")
    # numpy calls its weak references before it frees the memory.
    weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False
