"""PyTorch runtime: models are torch.export programs (`model.pt2`) with weights in pages, on the CPU or a CUDA device.

Slow work (reading the file, warm-up, graph capture) happens once, when the repository is scanned. LOAD maps pages into
the model's addresses and copies the weights; UNLOAD unmaps the pages.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from horologe_common.models import PAGE_BYTES, ModelSpec, TensorSpec
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import (
    InvalidModel,
    Manifest,
    build_spec,
    manifest_path,
    read_manifest,
    tensor_specs,
)
from horologe_gpu_worker.repository.model_signature import check_outputs, larger_batch, zeros
from horologe_gpu_worker.repository.signature_corrections import check_narrower
from horologe_gpu_worker.runtime import HOST_DEVICE, DeviceConfig, OpenModel
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages
from horologe_gpu_worker.runtimes.pytorch.program import Program, ProgramTensor, UnsupportedProgram

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from horologe_gpu_worker.repository.manifest import TensorEntry
    from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import PagedModel

MODEL = "model.pt2"


class Engine(Protocol):
    """The device-specific part: HostEngine for the CPU, CudaEngine for CUDA."""

    inline_io: bool

    def load_program(self, path: Path) -> Program:
        """Read a program, with its operators on this device."""

    def unsupported_reason(self, spec: ModelSpec) -> str:
        """Return why models with this signature cannot run on this device; empty if they can."""

    def create_model(self, spec: ModelSpec, program: Program, threads: int) -> PagedModel:
        """Create a model with reserved addresses and no pages."""


class _CachedProgram(NamedTuple):
    """A program in host memory and its models: one for each share that loaded it at the same time."""

    stamp: tuple[int, ...]
    manifest: Manifest
    program: Program
    models: list[PagedModel]
    lock: Lock
    """Protects `models`: one model may be prepared while another is loaded."""


class PytorchRuntime:
    """Opens torch.export programs. Needs the package `torch` (the extra `torch`)."""

    def __init__(self, device: DeviceConfig = HOST_DEVICE) -> None:
        self._engine = _create_engine(device)
        self.inline_io = self._engine.inline_io
        self._programs: dict[Path, _CachedProgram] = {}

    def inspect(self, folder: Path) -> ModelSpec:
        """Read the spec from the program and `model.toml`. Raises `InvalidModel` naming file, field, got and wanted."""
        cached = self._load_program(folder)
        path, program, manifest = folder / MODEL, cached.program, cached.manifest
        inputs = _apply_names(path, "inputs", program.inputs, manifest.inputs)
        outputs = _apply_names(path, "outputs", program.outputs, manifest.outputs)
        spec = build_spec(folder, manifest, "pytorch", (inputs, outputs), program.layout.size)
        low, high = program.rows
        if spec.batched and (spec.batch_sizes[0] < low or (high is not None and spec.max_batch > high)):
            raise InvalidModel(
                f"{manifest_path(folder) or path}: batch_sizes: got {list(spec.batch_sizes)}, wanted {low} to {high}, "
                "as the program was exported"
            )
        if reason := self._engine.unsupported_reason(spec):
            raise InvalidModel(f"{path}: {reason}")
        return spec

    def unsupported_reason(self, spec: ModelSpec) -> str:
        """Return why a model with this signature cannot run on the device; empty if it can."""
        return self._engine.unsupported_reason(spec)

    def prepare(self, spec: ModelSpec, folder: Path) -> None:
        """Load, warm up and unload the model once, if that has not been done."""
        cached = self._load_program(folder)
        with cached.lock:
            if not cached.models:
                self._create_model(spec, cached).close()

    def open(self, spec: ModelSpec, folder: Path) -> OpenModel:
        """Load the weights into pages; warm up if `prepare` has not done it. Raises `InvalidModel` or `ModelFailed`."""
        cached = self._load_program(folder)
        with cached.lock:
            model = next((unloaded for unloaded in cached.models if not unloaded.loaded), None)
            if model is None:
                return self._create_model(spec, cached)
            _load(spec, model)
            return model

    def _create_model(self, spec: ModelSpec, cached: _CachedProgram) -> PagedModel:
        """Create a model of the program, loaded and warmed up."""
        model = self._engine.create_model(spec, cached.program, cached.manifest.threads)
        try:
            _load(spec, model)
            model.warm()
            for batch_size in spec.batch_sizes:
                inputs = zeros(spec, spec.inputs, batch_size)
                with larger_batch(spec, batch_size):
                    check_outputs(spec, batch_size, model.run(batch_size, inputs))
                if any(array.any() for array in inputs.values()):
                    raise _stateful_error(spec, "inputs")
            if model.weights_changed():
                raise _stateful_error(spec, "weights")
        except BaseException:
            model.retire()
            model.close()
            raise
        cached.models.append(model)
        return model

    def _load_program(self, folder: Path) -> _CachedProgram:
        """Return the program; read it again if file or manifest have changed."""
        manifest, path = read_manifest(folder), folder / MODEL
        if not path.is_file():
            raise InvalidModel(f"{path}: got no such file, wanted a program saved by torch.export.save")
        files = [path, *filter(None, [manifest_path(folder)])]
        stamp = tuple(number for file in files for number in (file.stat().st_mtime_ns, file.stat().st_size))
        cached = self._programs.get(folder)
        if cached is not None and cached.stamp == stamp:
            return cached
        try:
            program = self._engine.load_program(path)
        except UnsupportedProgram as error:
            raise InvalidModel(f"{path}: {error}") from error
        except Exception as error:  # PyTorch may raise anything on a broken file
            raise InvalidModel(
                f"{path}: got {type(error).__name__}: {error}, wanted a program saved by torch.export.save"
            ) from error
        for model in cached.models if cached else ():
            model.retire()
        self._programs[folder] = _CachedProgram(stamp, manifest, program, [], Lock())
        return self._programs[folder]


def _stateful_error(spec: ModelSpec, changed: str) -> ModelFailed:
    return ModelFailed(
        f"model {spec.key}: state: got a program that changes its {changed}, wanted one without state between "
        "calls (model.eval(), no buffers that are written to)"
    )


def _load(spec: ModelSpec, model: PagedModel) -> None:
    try:
        model.load()
    except OutOfPages as error:
        raise ModelFailed(f"model {spec.key}: {error}; worker.pages_bytes may be more than the device has") from error


def _create_engine(device: DeviceConfig) -> Engine:
    pages = device.pages
    if device.cuda is None:
        from horologe_gpu_worker.runtimes.pytorch.host_engine import HostEngine

        return HostEngine(pages, PAGE_BYTES)
    if not torch.cuda.is_available():
        raise InvalidModel(f"worker.device: got {device.device!r}, wanted a CUDA device that PyTorch can use")
    from horologe_gpu_worker.runtimes.pytorch.cuda_engine import CudaEngine

    return CudaEngine(device.cuda, pages, PAGE_BYTES, device.io_bytes)


def _apply_names(
    path: Path, kind: str, tensors: tuple[ProgramTensor, ...], entries: Iterable[TensorEntry]
) -> tuple[TensorSpec, ...]:
    """Return the program's tensors, renamed and narrowed as in the manifest if it declares them."""
    exported, declared = tuple(TensorSpec(*tensor) for tensor in tensors), tensor_specs(entries)
    if declared and [spec.datatype for spec in declared] != [tensor.datatype for tensor in tensors]:
        raise InvalidModel(f"{path}: {kind}: got {declared} in model.toml, wanted {exported}, as in the program")
    for spec, tensor in zip(declared, exported, strict=False):
        check_narrower(f"{path}: {kind}: {spec.name}", spec.shape, tensor.shape)
    return declared or exported
