"""PyTorch on a CUDA device: weights in mapped pages, a graph per batch size, copies on separate streams.

Imports nothing but PyTorch, so that benchmarks and tests/gpu can use it alone.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horologe_common.status import ModelFailed
from horologe_gpu_worker.execution.workspace import Arena, Workspace
from horologe_gpu_worker.runtime import StagedModel, WarmUpFailed
from horologe_gpu_worker.runtimes.pytorch.cuda_graphs import BatchLayout, CapturedGraph, GraphCapturer, batch_layout
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import load_driver
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_pages import CudaBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import PagePool
from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import PagedModel
from horologe_gpu_worker.runtimes.pytorch.program import DATATYPES, Program, load_program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import MadeUpInputs

DTYPES = {name: dtype for dtype, name in DATATYPES.items()}
COPY_BYTES = 16 << 20
"""A LOAD copies this many bytes at a time. Pieces do not keep a large INPUT fast: on an H100, 9.6 MB take 8.1 ms beside
a LOAD of 434 MB, and 1.2 ms alone (benchmarks/results/gpu.md).
"""
PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context."""


class CudaSlot:
    """A batch between lanes: host memory and device memory with the same layout, freed with the slot."""

    def __init__(self, gpu: CudaEngine, layout: BatchLayout) -> None:
        begin = gpu.arena.allocate(layout.size)
        if begin is None:
            raise ModelFailed(
                f"io: got a batch of {layout.size} bytes, wanted one that fits into the free part of "
                f"{gpu.arena.size} (worker.io_cache_bytes)"
            )
        weakref.finalize(self, gpu.arena.free, begin)
        middle, end = begin + layout.middle, begin + layout.size
        self.layout = layout
        self.host_inputs, self.host_outputs = gpu.host[begin:middle], gpu.host[middle:end]
        self.inputs, self.outputs = gpu.memory[begin:middle], gpu.memory[middle:end]
        self.space = Workspace(self.host_inputs.numpy())
        self.device_ns = 0


class CudaModel(PagedModel, StagedModel):
    """A model with its addresses and a graph over them for every batch size."""

    def __init__(self, spec: ModelSpec, program: Program, gpu: CudaEngine) -> None:
        super().__init__(program.layout, program.blob, gpu.pool, gpu.device)
        self._spec = spec
        self._program = program
        self._gpu = gpu
        self._layouts = {size: _layout_of_batch(spec, size) for size in spec.batch_sizes}
        self._graphs: dict[int, CapturedGraph] = {}

    def _copy_weights(self) -> None:
        stream = self._gpu.load_stream
        with torch.cuda.stream(stream):
            for begin in range(0, self.size, COPY_BYTES):
                end = min(begin + COPY_BYTES, self.size)
                self.base[begin:end].copy_(self.blob[begin:end], non_blocking=True)
        stream.synchronize()

    def warm(self, inputs: MadeUpInputs) -> None:
        """Capture every batch size, the largest first: the smaller ones then fit into its memory."""
        for size in reversed(self._spec.batch_sizes):
            try:
                self._capture(size, pack_inputs(self._layouts[size], inputs(size)))
            except torch.OutOfMemoryError as error:
                raise ModelFailed(f"model {self._spec.key}: batch size {size}: {error}") from error
            except RuntimeError as error:
                raise WarmUpFailed(f"model {self._spec.key}: batch size {size}: {error}") from error
            except ValueError as error:
                raise ModelFailed(f"model {self._spec.key}: batch size {size}: {error}") from error

    def _capture(self, size: int, inputs: Any) -> CapturedGraph:
        """Capture a batch size, with warm runs on `inputs`: the bytes of a batch, on the host or the device."""
        graph = self._gpu.capturer.capture(self._program.forward, self.tensors, self._layouts[size], inputs=inputs)
        self._graphs[size] = graph
        return graph

    def slot(self, batch_size: int) -> CudaSlot:
        return CudaSlot(self._gpu, self._layouts[batch_size])

    def stage(self, slot: CudaSlot, inputs: Mapping[str, NDArray[Any]]) -> None:
        for part in slot.layout.inputs:
            if not slot.space.may_contain(inputs[part.name]):
                np.copyto(part.view(slot.host_inputs).numpy(), inputs[part.name])
        _copy(slot.inputs, slot.host_inputs, self._gpu.input_stream)

    def execute(self, batch_size: int, slot: CudaSlot) -> None:
        gpu = self._gpu
        try:
            # A model that failed on made-up inputs is captured with the first real ones.
            captured = self._graphs.get(batch_size) or self._capture(batch_size, slot.inputs)
            with gpu.capturer.run_lock, torch.cuda.stream(gpu.exec_stream):
                gpu.begin.record()
                captured.inputs.copy_(slot.inputs, non_blocking=True)
                captured.graph.replay()
                slot.outputs.copy_(captured.outputs, non_blocking=True)
                gpu.end.record()
                gpu.end.synchronize()
                slot.device_ns = round(gpu.begin.elapsed_time(gpu.end) * 1e6)
        except (RuntimeError, ValueError) as error:
            raise ModelFailed(f"model {self._spec.key}: {error}") from error

    def fetch(self, batch_size: int, slot: CudaSlot) -> Mapping[str, NDArray[Any]]:
        _copy(slot.host_outputs, slot.outputs, self._gpu.output_stream)
        begin = slot.layout.middle
        return {
            part.name: part._replace(begin=part.begin - begin).view(slot.host_outputs).numpy().copy()
            for part in slot.layout.outputs
        }

    def retire(self) -> None:
        self._graphs.clear()
        super().retire()


class CudaEngine:
    """A CUDA device: its pages, its streams and the memory of batches. Raises OSError or `OutOfPages`."""

    inline_io = False

    def __init__(self, device: int, pages: int, page_bytes: int, io_bytes: int) -> None:
        self.device = device
        torch.cuda.init()
        torch.cuda.set_device(device)
        self.pool = PagePool(CudaBacking(load_driver(), device, page_bytes), pages)
        self.pool.fill()
        # A request waits for the small copies of inputs and outputs; the large copy of a LOAD has low priority.
        self.input_stream, self.output_stream, self.exec_stream = (torch.cuda.Stream(device, -1) for _ in range(3))
        self.load_stream = torch.cuda.Stream(device)
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.capturer = GraphCapturer(device)
        self.arena = Arena(io_bytes)
        self.host = pinned_memory(io_bytes)
        self.memory = torch.empty(io_bytes, dtype=torch.uint8, device=self.capturer.device)

    def load_program(self, path: Path) -> Program:
        program = load_program(path, self.device)
        pin_memory(program.memory)
        torch.cuda.empty_cache()  # frees the copies of weights that moving the program made
        return program

    def unsupported_reason(self, spec: ModelSpec, program: Program) -> str:
        if program.numbers:
            return (
                f"{program.numbers[0]}: got a number that differs between requests, wanted a tensor: a captured graph "
                "has the number of its capture"
            )
        for tensor in (*spec.inputs, *spec.outputs):
            if -1 in tensor.shape[1 if spec.batched else 0 :]:
                return (
                    f"{tensor.name}: shape: got {list(tensor.shape)}, wanted fixed sizes except the rows: "
                    "a captured graph has one shape"
                )
        return ""

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


def _copy(to: Any, source: Any, stream: Any) -> None:
    """Copy between host and device, and wait for the end."""
    with torch.cuda.stream(stream):
        to.copy_(source, non_blocking=True)
    stream.synchronize()


def pack_inputs(layout: BatchLayout, inputs: Mapping[str, NDArray[Any]]) -> Any:
    """Return the bytes of a batch's inputs in host memory."""
    packed = torch.zeros(layout.middle, dtype=torch.uint8)
    for part in layout.inputs:
        np.copyto(part.view(packed).numpy(), inputs[part.name])
    return packed


def _layout_of_batch(spec: ModelSpec, batch_size: int) -> BatchLayout:
    sides = [
        [
            (tensor.name, DTYPES[tensor.datatype], (batch_size, *tensor.shape[1:]) if spec.batched else tensor.shape)
            for tensor in side
        ]
        for side in (spec.inputs, spec.outputs)
    ]
    return batch_layout(*sides)
