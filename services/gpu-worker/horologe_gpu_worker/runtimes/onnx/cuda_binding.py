"""ONNX Runtime on a CUDA device: weights and buffers stay on the device, bound once per batch size (IO binding)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime

from horologe_common.models import DTYPES, ModelSpec
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.model_signature import shape_for
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import Context, load_driver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

CUDA = "CUDAExecutionProvider"
STREAM_DEFAULT = 0
"""CU_STREAM_DEFAULT: synchronised with ONNX Runtime's own copies, which use the legacy stream."""


class _Batch(NamedTuple):
    """Binding of one batch size, and its device buffers by name."""

    binding: Any
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class BoundModel:
    """A session with buffers on `kind` (`cuda`; `cpu` in tests). `run` copies in, computes and copies out."""

    def __init__(self, spec: ModelSpec, session: Any, kind: str, device: int) -> None:
        self._spec = spec
        self._session = session
        self._batches = {size: self._bind(size, kind, device) for size in spec.batch_sizes}

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch; see `OpenModel.run`."""
        batch = self._batches[batch_size]
        try:
            for name, buffer in batch.inputs.items():
                buffer.update_inplace(inputs[name])
            self._session.run_with_iobinding(batch.binding)
            batch.binding.synchronize_outputs()
            # `numpy` copies a device buffer. On the CPU it returns the buffer itself, which the next batch overwrites.
            return {name: buffer.numpy().copy() for name, buffer in batch.outputs.items()}
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base class
            raise ModelFailed(f"model {self._spec.key}: {error}") from error

    def close(self) -> None:
        self._batches.clear()
        self._session = None

    def _bind(self, batch_size: int, kind: str, device: int) -> _Batch:
        binding = self._session.io_binding()
        sides = [
            {
                tensor.name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                    shape_for(self._spec, tensor, batch_size), DTYPES[tensor.datatype].type, kind, device
                )
                for tensor in side
            }
            for side in (self._spec.inputs, self._spec.outputs)
        ]
        for name, buffer in sides[0].items():
            binding.bind_ortvalue_input(name, buffer)
        for name, buffer in sides[1].items():
            binding.bind_ortvalue_output(name, buffer)
        return _Batch(binding, *sides)


def bindable(spec: ModelSpec) -> bool:
    """Return True if buffers can be allocated in advance: only the number of rows varies, and there are no strings."""
    tensors = (*spec.inputs, *spec.outputs)
    fixed = all(-1 not in tensor.shape[1 if spec.batched else 0 :] for tensor in tensors)
    return fixed and all(tensor.datatype != "BYTES" for tensor in tensors)


def cuda_providers(device: int) -> list[Any]:
    """Return the execution providers of a session. Raises `InvalidModel` if the package or the machine has no CUDA."""
    if CUDA not in onnxruntime.get_available_providers():
        raise InvalidModel(
            f"worker.device: got 'cuda:{device}' and an onnxruntime for {onnxruntime.get_available_providers()}, "
            "wanted the package onnxruntime-gpu (the extra `onnx-cuda`)"
        )
    options = {
        "device_id": str(device),
        "user_compute_stream": str(_stream(device)),
        "cudnn_conv_algo_search": "HEURISTIC",  # the default benchmarks all algorithms for every new shape
    }
    return [(CUDA, options), "CPUExecutionProvider"]


@cache
def _stream(device: int) -> int:
    """Return the stream of all sessions of this process. One EXEC runs at a time, so one stream is enough."""
    driver = load_driver()
    Context(driver, device).enter()
    stream = ctypes.c_void_p()
    driver("cuStreamCreate", ctypes.byref(stream), STREAM_DEFAULT)
    return stream.value or 0
