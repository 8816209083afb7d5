"""CUDA graphs: a program captured once per batch size, over weights and buffers at fixed addresses."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from horologe_gpu_worker.execution.workspace import aligned_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AREA_MIN_BYTES = 16 << 20
WARM_RUNS = 3
"""Runs before a capture: in their first runs, libraries load kernels, choose algorithms and allocate workspaces."""


def device_at(number: int) -> Any:
    """Return the torch.device of a CUDA device."""
    return torch.device("cuda", number)


class TensorSlice(NamedTuple):
    """A tensor of a batch: bytes [begin, begin + size) of the batch's buffer."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    begin: int
    size: int

    def view(self, buffer: Any) -> Any:
        """Return the tensor as a view of a uint8 buffer."""
        return buffer[self.begin : self.begin + self.size].view(self.dtype).view(self.shape)


class BatchLayout(NamedTuple):
    """Layout of a batch: its inputs in [0, middle), its outputs in [middle, size)."""

    inputs: tuple[TensorSlice, ...]
    outputs: tuple[TensorSlice, ...]
    middle: int
    size: int


def batch_layout(
    inputs: Sequence[tuple[str, Any, tuple[int, ...]]], outputs: Sequence[tuple[str, Any, tuple[int, ...]]]
) -> BatchLayout:
    """Lay out tensors (name, dtype, shape) one after another, at the offsets that `Workspace.allocate` would return."""
    begin = 0
    sides: list[tuple[TensorSlice, ...]] = []
    ends: list[int] = []
    for side in (inputs, outputs):
        slices = []
        for name, dtype, shape in side:
            size = torch.Size(shape).numel() * dtype.itemsize
            slices.append(TensorSlice(name, dtype, tuple(shape), begin, size))
            begin += aligned_size(size)
        sides.append(tuple(slices))
        ends.append(begin)
    return BatchLayout(sides[0], sides[1], ends[0], ends[1])


def store_outputs(layout: BatchLayout, targets: Sequence[Any], results: Sequence[Any]) -> None:
    """Copy results to the outputs of a batch. Raises ValueError for one of another dtype or shape than in `layout`."""
    for part, target, result in zip(layout.outputs, targets, results, strict=True):
        if not isinstance(result, torch.Tensor):  # a number
            target.fill_(result)
            continue
        if (result.dtype, tuple(result.shape)) != (part.dtype, part.shape):
            got = f"{result.dtype} {list(result.shape)}"
            raise ValueError(f"output {part.name!r}: got {got}, wanted {part.dtype} {list(part.shape)}")
        target.copy_(result)


class CapturedGraph(NamedTuple):
    """A graph and its uint8 buffers: it reads `inputs` and writes `outputs`."""

    graph: Any
    inputs: Any
    outputs: Any


class GraphCapturer:
    """Captures graphs that never run at the same time, so all of them share one memory pool and one set of buffers.

    This is Clockwork's workspace (section 5.2): intermediate results are needed only while a model runs, and one model
    runs at a time. Hold `run_lock` while a graph runs.
    """

    def __init__(self, device: int) -> None:
        self.device = device_at(device)
        self.run_lock = Lock()
        self._capturing = Lock()
        self._stream = torch.cuda.Stream(self.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._areas: list[Any] = []
        # PyTorch destroys a pool with its last graph and rejects the handle from then on; every model may be retired
        # and another one captured afterwards. This graph never runs.
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        self._kept = self._record(byte.zero_)

    def capture(
        self,
        run: Callable[..., Sequence[Any]],
        weights: Sequence[Any],
        layout: BatchLayout,
        warm_runs: int = WARM_RUNS,
        inputs: Any = None,
    ) -> CapturedGraph:
        """Capture a graph that reads its inputs from the buffer and writes its outputs to it.

        `inputs`: uint8 tensor with the bytes of the batch that the warm runs read; None: zeros.

        Raises ValueError if an output's dtype or shape differs from `layout`, and the errors of `run`.
        """
        with self._capturing, torch.no_grad():
            area = self._area(layout.size)
            read, written = area[: layout.middle], area[layout.middle : layout.size]
            arguments = [*weights, *(part.view(area) for part in layout.inputs)]
            targets = [part.view(area) for part in layout.outputs]

            def run_and_store() -> None:
                store_outputs(layout, targets, run(*arguments))

            # Warm-up uses the same library workspaces as captured graphs, so no graph may run at the same time.
            with self.run_lock, torch.cuda.stream(self._stream):
                if inputs is None:
                    read.zero_()
                else:
                    read.copy_(inputs)
                for _ in range(warm_runs):
                    run_and_store()
                self._stream.synchronize()
            return CapturedGraph(self._record(run_and_store), read, written)

    def _record(self, run: Callable[[], object]) -> Any:
        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph() would wait for the whole device. thread_local, because LOAD and EXEC continue in other
        # threads.
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        return graph

    def _area(self, size: int) -> Any:
        """Return the smallest buffer that holds a batch. Buffers in use by graphs cannot grow, so a larger one is
        added.
        """
        fitting = [area for area in self._areas if len(area) >= size]
        if not fitting:
            wanted = max(AREA_MIN_BYTES, 1 << (size - 1).bit_length())
            fitting = [torch.empty(wanted, dtype=torch.uint8, device=self.device)]
            self._areas += fitting
        return min(fitting, key=len)
