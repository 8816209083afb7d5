"""Emulated CUDA on the CPU: as much of it as the worker's code uses, to find mistakes without a device.

Streams run work at once, and events read the clock. A graph repeats the recorded operators over the recorded tensors,
so it returns wrong results if a weight or a buffer has moved, as a real graph does. Addresses and pages are real host
memory.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from horologe_gpu_worker.runtimes.pytorch import cuda_engine, cuda_graphs, program
from horologe_gpu_worker.runtimes.pytorch.paging import device_pages, paged_weights
from horologe_gpu_worker.runtimes.pytorch.paging.host_pages import HostBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import PagePool

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stream:
    """A stream that runs work at once."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.cuda_stream = 0

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass


class Event:
    """An event that is recorded at once."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_ns = 0

    def record(self, stream: Any = None) -> None:
        self.at_ns = time.perf_counter_ns()

    def query(self) -> bool:
        return self.at_ns > 0

    def synchronize(self) -> None:
        assert self.at_ns, "the event was never recorded"

    def elapsed_time(self, end: Event) -> float:
        return (end.at_ns - self.at_ns) / 1e6


class Graph(TorchDispatchMode):
    """Records operators while it is active, and replays them into the tensors that they returned."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        self.steps.append((function, arguments, keywords or {}, result))
        return result

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        with torch.no_grad():
            for function, arguments, keywords, before in self.steps:
                result = function(*arguments, **keywords)
                for old, new in zip(_tensors(before), _tensors(result), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Runtime:
    """Replacement of torch.cuda.cudart()."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0


@contextlib.contextmanager
def pretend_cuda() -> Iterator[None]:
    """Run the worker's CUDA code on the CPU within this context."""
    cuda: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "cudart": Runtime,
        "graph_pool_handle": lambda: (0, 0),
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "init": lambda: None,
        "set_device": lambda device: None,
        "is_available": lambda: True,
        "get_rng_state": lambda device=None: torch.zeros(1, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
    }
    tensor_at = paged_weights.tensor_at
    with contextlib.ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        patches: list[tuple[Any, str, Any]] = [
            (cuda_graphs, "device_at", lambda number: torch.device("cpu")),
            (device_pages, "device_pool", functools.cache(_host_pool)),
            (cuda_engine, "pinned_memory", lambda size: torch.zeros(size, dtype=torch.uint8)),
            (cuda_engine, "load_program", lambda path, cuda: program.load_program(path)),
            (paged_weights, "tensor_at", lambda address, size, cuda: tensor_at(address, size, None)),
        ]
        for module, name, value in patches:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def _host_pool(device: int, pages: int, page_bytes: int = device_pages.PAGE_BYTES) -> PagePool:
    pool = PagePool(HostBacking(page_bytes), pages)
    pool.fill()
    return pool


def _tensors(result: Any) -> list[Any]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for tensor in result if isinstance(tensor, torch.Tensor)] if isinstance(result, tuple | list) else []
