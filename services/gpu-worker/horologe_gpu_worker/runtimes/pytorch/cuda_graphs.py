"""A program captured as one CUDA graph per batch size, over weights and buffers whose addresses stay.

Imports nothing but PyTorch, so that benchmarks can use it alone.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from horologe_gpu_worker.execution.workspace import aligned_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AREA_MIN_BYTES = 16 << 20
WARM_RUNS = 3
"""Before a capture: libraries load their kernels, choose algorithms and take their workspaces in the first runs."""


def device_at(number: int) -> Any:
    """The torch.device of a CUDA device."""
    return torch.device("cuda", number)


class TensorSlice(NamedTuple):
    """One tensor of a batch: bytes [begin, begin + size) of the batch's buffer."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    begin: int
    size: int

    def view(self, buffer: Any) -> Any:
        """The tensor, in a uint8 buffer."""
        return buffer[self.begin : self.begin + self.size].view(self.dtype).view(self.shape)


class BatchLayout(NamedTuple):
    """The inputs of a batch in [0, middle), its outputs in [middle, size)."""

    inputs: tuple[TensorSlice, ...]
    outputs: tuple[TensorSlice, ...]
    middle: int
    size: int


def batch_layout(
    inputs: Sequence[tuple[str, Any, tuple[int, ...]]], outputs: Sequence[tuple[str, Any, tuple[int, ...]]]
) -> BatchLayout:
    """Tensors (name, dtype, shape) one after another, each where `Workspace.take` would put it."""
    at = 0
    sides: list[tuple[TensorSlice, ...]] = []
    ends: list[int] = []
    for side in (inputs, outputs):
        found = []
        for name, dtype, shape in side:
            size = torch.Size(shape).numel() * dtype.itemsize
            found.append(TensorSlice(name, dtype, tuple(shape), at, size))
            at += aligned_size(size)
        sides.append(tuple(found))
        ends.append(at)
    return BatchLayout(sides[0], sides[1], ends[0], ends[1])


class CapturedGraph(NamedTuple):
    """A graph with its buffers (uint8): `inputs` as it will read them, `outputs` as it will leave them."""

    graph: Any
    inputs: Any
    outputs: Any


class GraphCapturer:
    """Captures graphs that never run at the same time: one memory pool and one set of buffers serves all of them.

    That is Clockwork's workspace (section 5.2): intermediate results are only needed while a model runs, and one
    runs at a time. `turn` is held by whoever runs something in it.
    """

    def __init__(self, device: int) -> None:
        self.device = device_at(device)
        self.run_lock = Lock()
        self._capturing = Lock()
        self._stream = torch.cuda.Stream(self.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._areas: list[Any] = []

    def capture(
        self, run: Callable[..., Sequence[Any]], weights: Sequence[Any], layout: BatchLayout, warm_runs: int = WARM_RUNS
    ) -> CapturedGraph:
        """A graph that reads its inputs from the buffer, runs, and leaves the outputs there.

        Raises ValueError for an output of another dtype or shape than `layout` says, and what `run` raises.
        """
        with self._capturing:
            return self._capture(run, weights, layout, warm_runs)

    def _capture(
        self, run: Callable[..., Sequence[Any]], weights: Sequence[Any], layout: BatchLayout, warm_runs: int
    ) -> CapturedGraph:
        area = self._area(layout.size)
        inputs = [part.view(area) for part in layout.inputs]
        outputs = [part.view(area) for part in layout.outputs]

        def once() -> None:
            answers = run(*weights, *inputs)
            for part, place, answer in zip(layout.outputs, outputs, answers, strict=True):
                if (answer.dtype, tuple(answer.shape)) != (part.dtype, part.shape):
                    got = f"{answer.dtype} {list(answer.shape)}"
                    raise ValueError(f"output {part.name!r}: got {got}, wanted {part.dtype} {list(part.shape)}")
                place.copy_(answer)

        with torch.no_grad():
            # Warm-up shares the libraries' workspaces with captured graphs: none may run beside it.
            with self.run_lock, torch.cuda.stream(self._stream):
                area[: layout.middle].zero_()
                for _ in range(warm_runs):
                    once()
                self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Not torch.cuda.graph(), which waits for the whole device first. LOAD and EXEC go on in other threads,
            # hence thread_local.
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    once()
                finally:
                    graph.capture_end()
        return CapturedGraph(graph, area[: layout.middle], area[layout.middle : layout.size])

    def _area(self, size: int) -> Any:
        """The smallest buffer that holds a batch. Those in use by graphs cannot grow, so a larger one is added."""
        fitting = [area for area in self._areas if len(area) >= size]
        if not fitting:
            wanted = max(AREA_MIN_BYTES, 1 << (size - 1).bit_length())
            fitting = [torch.empty(wanted, dtype=torch.uint8, device=self.device)]
            self._areas += fitting
        return min(fitting, key=len)
