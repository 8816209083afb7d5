"""PyTorch on the CPU: parameters and buffers are views into pages of host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horologe_common.models import DTYPES
from horologe_common.status import ModelFailed
from horologe_gpu_worker.runtimes.pytorch.paging.host_pages import HostBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import PagePool
from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import PagedModel
from horologe_gpu_worker.runtimes.pytorch.program import Program, load_program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec, TensorSpec


class HostModel(PagedModel):
    """A model with its addresses and its program. The caller warms it by running every batch size once."""

    def __init__(self, spec: ModelSpec, program: Program, pool: PagePool, threads: int) -> None:
        super().__init__(program.layout, program.blob, pool)
        self._spec = spec
        self._program = program
        self._threads = threads

    def _copy_weights(self) -> None:
        self.base[: self.size].copy_(self.blob)

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # a setting of the calling thread, and each lane is a thread
        tensors = [torch.from_numpy(writable(inputs[tensor.name])) for tensor in self._spec.inputs]
        try:
            with torch.inference_mode():
                outputs = self._program.forward(*self.tensors, *tensors)
        except Exception as error:  # a model may raise anything
            raise ModelFailed(f"model {self._spec.key}: {error}") from error
        return {
            tensor.name: self._detached_output(tensor, output)
            for tensor, output in zip(self._spec.outputs, outputs, strict=True)
        }

    def _detached_output(self, tensor: TensorSpec, output: Any) -> NDArray[Any]:
        """Return the output as an array. Copy an output that is a weight, because its page may be unmapped."""
        if not isinstance(output, torch.Tensor):
            return np.array(output, DTYPES[tensor.datatype])
        if output.layout != torch.strided:
            raise ModelFailed(
                f"model {self._spec.key}: output {tensor.name!r}: layout: got {output.layout}, wanted a dense tensor"
            )
        kept = output.clone() if self.contains_address(output.data_ptr()) else output
        array: NDArray[Any] = kept.resolve_neg().numpy()
        return array


class HostEngine:
    """Models of one worker on the CPU."""

    inline_io = True

    def __init__(self, pages: int, page_bytes: int) -> None:
        self.pool = PagePool(HostBacking(page_bytes), pages)

    def load_program(self, path: Path) -> Program:
        return load_program(path)

    def create_model(self, spec: ModelSpec, program: Program, threads: int) -> HostModel:
        return HostModel(spec, program, self.pool, threads)


class _WritableArray:
    """Exposes an array's memory as writable through `__array_interface__`, and keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same memory marked writable. PyTorch has no read-only tensors; programs that write to their inputs are
    refused.
    """
    return array if array.flags.writeable else np.asarray(_WritableArray(array))
