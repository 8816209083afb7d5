"""ONNX Runtime models on the CPU or a CUDA device. On the CPU, one thread per EXEC unless the model sets `threads`."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import onnxruntime

from horologe_common.models import DTYPES, ModelSpec, TensorSpec
from horologe_common.status import ModelFailed
from horologe_common.string_tensors import decode_text
from horologe_gpu_worker.repository.content import content_bytes
from horologe_gpu_worker.repository.manifest import InvalidModel, model_path, read_manifest, settings_path, size_bytes
from horologe_gpu_worker.repository.model_signature import shape_for, tensor_bytes
from horologe_gpu_worker.repository.model_spec import build_spec, correct_tensors, default_length
from horologe_gpu_worker.repository.reshaping import NO_RESHAPES, Reshapes, read_reshapes
from horologe_gpu_worker.repository.warm_up import warm_up
from horologe_gpu_worker.runtime import OpenModel, Runtime
from horologe_gpu_worker.runtimes.kept_models import KeptModels
from horologe_gpu_worker.runtimes.onnx.providers import check_providers, session_providers, uses_cuda
from horologe_gpu_worker.runtimes.onnx.sessions import open_session
from horologe_gpu_worker.runtimes.pytorch.paging.device_pages import HeldPages
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MODEL = "model.onnx"
SESSION_BYTES, COPIES = 128 << 10, 2
"""Memory of a session: a fixed part, and its weights with copies packed for the processor. 128 kB for a no-op (73 kB
measured), 0.6 MB for digits-cnn with weights of 0.24 MB (0.68 MB measured).
"""
ELEMENTS = {
    **{f"tensor({dtype.name})": name for name, dtype in DTYPES.items() if name not in ("FP32", "FP64")},
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
"""ONNX Runtime's type names -> Open Inference Protocol datatypes."""


class OnnxModel(OpenModel):
    """A session. `run` allocates new outputs, so they may be sent while the next batch runs.

    `close` returns the session to `idle`, or its pages to the device, if given.
    """

    def __init__(
        self,
        spec: ModelSpec,
        session: Any,
        idle: KeptModels[Any] | None = None,
        reshapes: Reshapes = NO_RESHAPES,
        held: HeldPages | None = None,
    ) -> None:
        self._spec = spec
        self._session = session
        self._idle = idle
        self._reshapes = reshapes
        self._held = held
        # 10 us for a no-op. Pre-bound buffers take 6, but then inputs and outputs are copied: 600 kB inputs x 4
        # cost 315 us that way, 120 this way.
        self._names = [tensor.name for tensor in spec.outputs]
        self._strings = [tensor.name for tensor in spec.inputs if tensor.datatype == "BYTES"]

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        if self._strings:  # of any other object, ONNX Runtime takes its `str`
            inputs = dict(inputs) | {name: decode_text(f"input {name!r}", inputs[name]) for name in self._strings}
        inputs = self._reshapes.inputs.apply(inputs)
        try:
            outputs = self._session.run(self._names, inputs)
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base class
            raise ModelFailed(f"model {self._spec.key}: {error}") from error
        return self._reshapes.outputs.apply(dict(zip(self._names, outputs, strict=True)))

    def close(self) -> None:
        session, self._session = self._session, None
        if self._idle is not None and session is not None:
            self._idle.keep(self._spec, (session, self._reshapes), SESSION_BYTES + COPIES * self._spec.weights_bytes)
        del session
        if self._held is not None:
            self._held.put_back()


class _Batch(NamedTuple):
    """Binding of one batch size, and its device buffers by name."""

    binding: Any
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class BoundModel(OpenModel):
    """A session with buffers on `kind` (`cuda`; `cpu` in tests), bound once per batch size (IO binding).

    `run` copies in, computes and copies out.
    """

    def __init__(self, spec: ModelSpec, session: Any, kind: str, device: int, held: HeldPages | None = None) -> None:
        self._spec = spec
        self._held = held
        self._session = session
        self._batches = {size: self._bind(size, kind, device) for size in spec.batch_sizes}

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
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
        if self._held is not None:
            self._held.put_back()

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


class OnnxRuntime(Runtime):
    """Sessions on the CPU provider, or on the worker's CUDA device. Needs the package `onnxruntime` (the extra `onnx`;
    `onnx-cuda` for CUDA), never `onnx`.
    """

    def __init__(self, settings: WorkerSettings = DEFAULTS) -> None:
        self._settings = settings
        self._cuda = settings.cuda
        self._idle = KeptModels[Any](settings.host_bytes if settings.cuda is None else 0, lambda session: None)

    def inspect(self, folder: Path) -> ModelSpec:
        manifest = read_manifest(folder)
        path = model_path(folder, manifest, MODEL)
        session = open_session(path, threads=1, optimise=False)
        where = str(settings_path(folder) or path)
        signature = (
            correct_tensors(where, "inputs", _tensors(path, "input", session.get_inputs()), manifest.inputs),
            correct_tensors(where, "outputs", _tensors(path, "output", session.get_outputs()), manifest.outputs),
        )
        lengths = fitting_shapes(session.get_inputs(), default_length(manifest), manifest.max_length)
        if manifest.declared_outputs_only:
            declared = {entry.name for entry in manifest.outputs}
            signature = signature[0], tuple(tensor for tensor in signature[1] if tensor.name in declared)
        spec = build_spec(folder, manifest, "onnx", signature, content_bytes(folder), lengths)
        return msgspec.structs.replace(spec, shares_pages=True, text=True)

    def place(self, spec: ModelSpec, folder: Path) -> ModelSpec:
        """Count the memory of a model on a CUDA device in whole pages: its `gpu_memory`, or weights and buffers."""
        manifest = read_manifest(folder)
        if self._cuda is None or not uses_cuda(manifest.providers):
            return spec
        size = size_bytes(manifest.gpu_memory) or spec.weights_bytes + buffer_bytes(spec)
        return msgspec.structs.replace(spec, on_gpu=True, shares_pages=False, weights_bytes=size)

    def is_open(self, spec: ModelSpec) -> bool:
        """Return True if `open` returns at once: an idle session of the model is in host memory."""
        return spec in self._idle

    def open_kept(self, spec: ModelSpec) -> OpenModel | None:
        """Return an idle session; None if there is none."""
        kept = self._idle.take(spec)
        return None if kept is None else OnnxModel(spec, kept[0], self._idle, kept[1])

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> OpenModel:
        manifest = read_manifest(folder)
        path, reshapes = model_path(folder, manifest, MODEL), read_reshapes(manifest)
        providers = session_providers(path, spec.content_hash, manifest, self._settings)
        held = HeldPages(self._settings, spec.pages, spec.on_gpu)
        try:
            session = open_session(path, manifest.threads, optimise=True, providers=providers)
            check_providers(path, session.get_providers(), providers)
            if not spec.on_gpu:
                model: OpenModel = OnnxModel(spec, session, self._idle, reshapes)
            elif bindable(spec) and not any(reshapes):
                model = BoundModel(spec, session, "cuda", self._cuda or 0, held)
            else:
                model = OnnxModel(spec, session, reshapes=reshapes, held=held)
            if warm:
                warm_up(model.run, spec, folder)
        except BaseException:
            held.put_back()
            raise
        self._idle.set_content(spec)
        return model


def _tensors(path: Path, kind: str, nodes: Iterable[Any]) -> tuple[TensorSpec, ...]:
    tensors = []
    for node in nodes:
        datatype = ELEMENTS.get(node.type)
        if datatype is None:
            raise InvalidModel(
                f"{path}: {kind} {node.name!r}: type: got {node.type}, wanted one of {', '.join(ELEMENTS)}"
            )
        # A symbolic dimension is its name (text), an unnamed one is None.
        tensors.append(TensorSpec(node.name, datatype, tuple(d if isinstance(d, int) else -1 for d in node.shape)))
    return tuple(tensors)


def fitting_shapes(nodes: Sequence[Any], length: int, limit: int) -> dict[str, tuple[int, ...]]:
    """Return warm-up shapes that fit together, if a dimension is named as a sum, such as `past + 1` of a mask.

    Every other variable size is `length`, or less so that no sum exceeds `limit` (0: no limit). -1 stands for `length`.
    """
    sums = [dim for node in nodes for dim in node.shape if isinstance(dim, str) and "+" in dim]
    if not sums:
        return {}
    used = length
    if limit:
        lengths = range(1, length + 1)
        used = bisect_right(lengths, limit, key=lambda tried: max(_sum(dim, tried) for dim in sums))
    variable = -1 if used == length else used
    return {
        node.name: tuple(
            dim if isinstance(dim, int) else _sum(dim, used) if dim in sums else variable for dim in node.shape
        )
        for node in nodes
    }


def _sum(dimension: str, length: int) -> int:
    """Return a size that is named as a sum, in which every name is `length`."""
    terms = [term.strip() for term in dimension.split("+")]
    return sum(int(term) if term.isdecimal() else length for term in terms)


def bindable(spec: ModelSpec) -> bool:
    """Return True if buffers can be allocated in advance: only the number of rows varies, and there are no strings."""
    tensors = (*spec.inputs, *spec.outputs)
    fixed = all(-1 not in tensor.shape[1 if spec.batched else 0 :] for tensor in tensors)
    return fixed and all(tensor.datatype != "BYTES" for tensor in tensors)


def buffer_bytes(spec: ModelSpec) -> int:
    """Return the bytes of the bound inputs and outputs of all batch sizes; 0 if none can be bound."""
    if not bindable(spec):
        return 0
    tensors = (*spec.inputs, *spec.outputs)
    return sum(tensor_bytes(spec, tensor, size) for size in spec.batch_sizes for tensor in tensors)
