"""A PyTorch model on a CUDA device: its batches, its graphs by shape, and batches without a graph."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horologe_common.status import ModelFailed
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.runtime import StagedModel, WarmUpFailed
from horologe_gpu_worker.runtimes.pytorch.cuda_graphs import (
    WARM_RUNS,
    BatchLayout,
    CapturedGraph,
    batch_layout,
    store_outputs,
)
from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import PagedModel
from horologe_gpu_worker.runtimes.pytorch.program import DATATYPES, Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import Shapes
    from horologe_gpu_worker.runtimes.pytorch.cuda_engine import CudaEngine
    from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import MadeUpInputs

DTYPES = {name: dtype for dtype, name in DATATYPES.items()}
GRAPHS_MAX = 64
"""Graphs per model that are captured on demand. Each takes some megabytes of the device."""
CAPTURE_AFTER = 3
"""Eager runs of the same shapes before a graph is captured for them: it takes as long as a few of them."""
SHAPES_MAX = 1024
"""Shapes per model whose layout and number of runs are kept."""
LENGTH_STEP = 8

log = logging.getLogger("device")


class CudaSlot:
    """A batch between lanes: host memory and device memory with the same layout, freed with the slot."""

    def __init__(self, gpu: CudaEngine, shapes: Shapes, layout: BatchLayout) -> None:
        begin = gpu.arena.allocate(layout.size)
        if begin is None:
            raise ModelFailed(
                f"io: got a batch of {layout.size} bytes, wanted one that fits into the free part of "
                f"{gpu.arena.size} (worker.io_cache_bytes)"
            )
        weakref.finalize(self, gpu.arena.free, begin)
        middle, end = begin + layout.middle, begin + layout.size
        self.shapes = shapes
        self.layout = layout
        self.host_inputs, self.host_outputs = gpu.host[begin:middle], gpu.host[middle:end]
        self.inputs, self.outputs = gpu.memory[begin:middle], gpu.memory[middle:end]
        self.space = Workspace(self.host_inputs.numpy())
        self.device_ns = 0


class CudaModel(PagedModel, StagedModel):
    """A model with its addresses, and graphs over them: one for every batch size, captured in advance, and the most
    recently used ones of other shapes. Batches of shapes without a graph run operator by operator (eagerly).
    """

    def __init__(self, spec: ModelSpec, program: Program, gpu: CudaEngine) -> None:
        super().__init__(program.layout, program.blob, gpu.pool, gpu.device)
        self._spec = spec
        self._program = program
        self._gpu = gpu
        self.layout_of = lru_cache(SHAPES_MAX)(partial(_lay_out, spec, program))
        self._graphs: dict[Shapes, CapturedGraph] = {}
        self._recent: OrderedDict[Shapes, CapturedGraph] = OrderedDict()
        """Graphs that were captured on demand, the least recently used one first."""
        self._eager_runs: OrderedDict[Shapes, int] = OrderedDict()
        """Number of eager runs by shapes."""
        self._lock = Lock()
        """Keeps the weights in place while a graph is captured."""

    def load(self) -> None:
        with self._lock:
            super().load()

    def close(self) -> None:
        with self._lock:
            super().close()

    def _copy_weights(self) -> None:
        self._gpu.copy_order.copy_pieces(self.size, self._copy_piece)

    def _copy_piece(self, begin: int, end: int) -> None:
        copy_and_wait(self.base[begin:end], self.blob[begin:end], self._gpu.load_stream)

    def warm(self, inputs: MadeUpInputs) -> None:
        """Capture every batch size, the largest first: the smaller ones then fit into its memory."""
        for size in [] if self._program.numbers else reversed(self._spec.batch_sizes):
            try:
                made_up = inputs(size)
                shapes = self.shapes_of(made_up)
                self._graphs[shapes] = self._capture(shapes, pack_inputs(self.layout_of(shapes), made_up))
            except (RuntimeError, ValueError) as error:
                by_inputs = isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
                kind = WarmUpFailed if by_inputs else ModelFailed
                raise kind(f"model {self._spec.key}: batch size {size}: {error}") from error

    def _capture(self, shapes: Shapes, inputs: Any, warm_runs: int = WARM_RUNS) -> CapturedGraph:
        """Capture a graph, with warm runs on `inputs`: the bytes of a batch, on the host or the device."""
        layout = self.layout_of(shapes)
        return self._gpu.capturer.capture(self._program.forward, self.tensors, layout, warm_runs, inputs=inputs)

    def _capture_on_demand(self, shapes: Shapes, inputs: Any) -> None:
        """Capture a graph for shapes that come often, unless the model has been unloaded meanwhile."""
        with self._lock:
            if not self.loaded or self._retired:
                self._eager_runs.pop(shapes, None)
                return
            try:
                captured = self._capture(shapes, inputs, warm_runs=1)
            except (RuntimeError, ValueError) as error:
                log.warning("model %s: batches of %s run without a graph: %s", self._spec.key, shapes, error)
                return
            self._recent[shapes] = captured
            if len(self._recent) > GRAPHS_MAX:
                dropped, _ = self._recent.popitem(last=False)
                self._eager_runs.pop(dropped, None)

    def shapes_of(self, inputs: Mapping[str, NDArray[Any]]) -> Shapes:
        return tuple(tuple(inputs[tensor.name].shape) for tensor in self._spec.inputs)

    def bucket(self, shapes: Shapes) -> Shapes:
        """Return shapes to which a batch is padded, so that few graphs serve all lengths. Only for `padded` models."""
        limit = self._spec.max_length
        longer = []
        for shape, tensor in zip(shapes, self._spec.inputs, strict=True):
            sizes = [
                bucket_length(size, limit) if want == -1 else size
                for size, want in zip(shape[1:], tensor.shape[1:], strict=True)
            ]
            longer.append((shape[0], *sizes))
        try:
            self.layout_of(tuple(longer))
        except ValueError:  # longer than the program allows
            return shapes
        return tuple(longer)

    def slot(self, shapes: Shapes) -> CudaSlot:
        try:
            return CudaSlot(self._gpu, shapes, self.layout_of(shapes))
        except ValueError as error:
            raise ModelFailed(f"model {self._spec.key}: {error}") from error

    def stage(self, slot: CudaSlot, inputs: Mapping[str, NDArray[Any]]) -> None:
        for part in slot.layout.inputs:
            if not slot.space.may_contain(inputs[part.name]):
                np.copyto(part.view(slot.host_inputs).numpy(), inputs[part.name])
        with self._gpu.copy_order.input_copy():
            copy_and_wait(slot.inputs, slot.host_inputs, self._gpu.input_stream)

    def execute(self, batch_size: int, slot: CudaSlot) -> None:
        gpu, captured = self._gpu, self._graph_of(slot.shapes)
        try:
            with gpu.capturer.run_lock, torch.cuda.stream(gpu.exec_stream):
                gpu.begin.record()
                if captured is None:
                    self._run_eagerly(slot)
                else:
                    captured.inputs.copy_(slot.inputs, non_blocking=True)
                    captured.graph.replay()
                    slot.outputs.copy_(captured.outputs, non_blocking=True)
                gpu.end.record()
                gpu.end.synchronize()
                slot.device_ns = round(gpu.begin.elapsed_time(gpu.end) * 1e6)
        except (RuntimeError, ValueError) as error:
            raise ModelFailed(f"model {self._spec.key}: {error}") from error
        if captured is None and not self._program.numbers:
            self._count_eager_run(slot)

    def _graph_of(self, shapes: Shapes) -> CapturedGraph | None:
        if (captured := self._graphs.get(shapes) or self._recent.get(shapes)) and shapes in self._recent:
            with suppress(KeyError):  # the capturing thread has just dropped it
                self._recent.move_to_end(shapes)
        return captured

    def _run_eagerly(self, slot: CudaSlot) -> None:
        layout = slot.layout
        inputs = [part.view(slot.inputs) for part in layout.inputs]
        outputs = [part._replace(begin=part.begin - layout.middle).view(slot.outputs) for part in layout.outputs]
        with torch.no_grad():
            store_outputs(layout, outputs, self._program.forward(*self.tensors, *inputs))

    def _count_eager_run(self, slot: CudaSlot) -> None:
        """Have a graph captured, on another thread, for shapes that have come `CAPTURE_AFTER` times."""
        runs = self._eager_runs[slot.shapes] = self._eager_runs.pop(slot.shapes, 0) + 1
        if len(self._eager_runs) > SHAPES_MAX:
            self._eager_runs.popitem(last=False)
        if runs == CAPTURE_AFTER:
            stream = self._gpu.exec_stream
            with torch.cuda.stream(stream):
                inputs = slot.inputs.clone()
            stream.synchronize()  # the slot may be freed before the capture
            self._gpu.captures.submit(self._capture_on_demand, slot.shapes, inputs)

    def fetch(self, batch_size: int, slot: CudaSlot) -> Mapping[str, NDArray[Any]]:
        copy_and_wait(slot.host_outputs, slot.outputs, self._gpu.output_stream)
        begin = slot.layout.middle
        return {
            part.name: part._replace(begin=part.begin - begin).view(slot.host_outputs).numpy().copy()
            for part in slot.layout.outputs
        }

    def retire(self) -> None:
        with self._lock:
            self._graphs.clear()
            self._recent.clear()
            super().retire()


def copy_and_wait(to: Any, source: Any, stream: Any) -> None:
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


def bucket_length(size: int, limit: int = 0) -> int:
    """Return the size rounded up to a multiple of 8, above 128 to one of eight steps between powers of two, but not
    beyond `limit` (0: none).
    """
    step = max(LENGTH_STEP, 1 << max(0, (size - 1).bit_length() - 4))
    rounded = -(-size // step) * step
    return min(rounded, limit) if limit else rounded


def _lay_out(spec: ModelSpec, program: Program, shapes: Shapes) -> BatchLayout:
    """Lay out a batch. Raises ValueError for shapes that the program does not allow."""
    sides = zip((spec.inputs, spec.outputs), (shapes, program.shapes.output_shapes(shapes)), strict=True)
    return batch_layout(
        *(
            [(tensor.name, DTYPES[tensor.datatype], shape) for tensor, shape in zip(side, sizes, strict=True)]
            for side, sizes in sides
        )
    )
