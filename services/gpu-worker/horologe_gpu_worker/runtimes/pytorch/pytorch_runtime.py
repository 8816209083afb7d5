"""PyTorch runtime: models are torch.export programs (`model.pt2`) with weights in pages, on the CPU or a CUDA device.

Slow work (reading the file, warm-up, graph capture) happens once, when the repository is scanned. LOAD maps pages into
the model's addresses and copies the weights; UNLOAD unmaps the pages.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import torch

from horologe_common.models import PAGE_BYTES, ModelSpec, TensorSpec
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel, manifest_path, model_path, read_manifest
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_gpu_worker.repository.model_spec import (
    BATCH_SIZES,
    build_spec,
    check_narrower,
    default_length,
    tensor_specs,
    warmup_inputs,
)
from horologe_gpu_worker.repository.warm_up import warm_up
from horologe_gpu_worker.runtime import OpenModel, Runtime, WarmUpFailed
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages
from horologe_gpu_worker.runtimes.pytorch.program import Program, ProgramTensor, UnsupportedProgram, check_stateless
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_gpu_worker.repository.manifest_fields import TensorEntry
    from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import PagedModel

MODEL = "model.pt2"


class Engine(Protocol):
    """The device-specific part: HostEngine for the CPU, CudaEngine for CUDA."""

    inline_io: bool

    def load_program(self, path: Path) -> Program:
        """Read a program, with its operators on this device. Raises `UnsupportedProgram` if it cannot run there."""

    def create_model(self, spec: ModelSpec, program: Program, threads: int) -> PagedModel:
        """Create a model with reserved addresses and no pages."""


class _CachedProgram(NamedTuple):
    """A program in host memory and its models: one for each share that loaded it at the same time."""

    content_hash: str
    manifest: Manifest
    program: Program
    models: list[PagedModel]
    lock: Lock
    """Protects `models`: one model may be prepared while another is loaded."""


class PytorchRuntime(Runtime):
    """Opens torch.export programs. Needs the package `torch` (the extra `torch`)."""

    def __init__(self, settings: WorkerSettings = DEFAULTS) -> None:
        self._engine = _create_engine(settings)
        self._on_gpu = settings.cuda is not None
        self.inline_io = self._engine.inline_io
        self._inspected: dict[Path, tuple[Manifest, Program]] = {}
        """Programs that `inspect` has read, until `prepare` names their content."""
        self._programs: dict[Path, _CachedProgram] = {}

    def inspect(self, folder: Path) -> ModelSpec:
        self._inspected.pop(folder, None)
        manifest, program = self._read_program(folder)
        path = model_path(folder, manifest, MODEL)
        inputs = _apply_names(path, "inputs", program.inputs, manifest.inputs)
        outputs = _apply_names(path, "outputs", program.outputs, manifest.outputs)
        shapes, names = program.shapes, [tensor.name for tensor in inputs]
        if shapes.has_rows and not manifest.batch_sizes:
            manifest = msgspec.structs.replace(manifest, batch_sizes=shapes.batch_sizes(BATCH_SIZES))
        examples = shapes.example_shapes(default_length(manifest), manifest.max_length)
        lengths = dict(zip(names, examples.values(), strict=True))
        signature = inputs, outputs
        spec = build_spec(
            folder, manifest, "pytorch", signature, program.layout.size, lengths, has_rows=shapes.has_rows
        )
        if spec.batched and not all(map(shapes.allows_rows, spec.batch_sizes)):
            raise InvalidModel(
                f"{manifest_path(folder) or path}: batch_sizes: got {list(spec.batch_sizes)}, wanted "
                f"{shapes.describe_rows()}, as the program was exported"
            )
        self._inspected[folder] = manifest, program
        return spec

    def place(self, spec: ModelSpec, folder: Path) -> ModelSpec:
        return msgspec.structs.replace(spec, on_gpu=self._on_gpu)

    def prepare(self, spec: ModelSpec, folder: Path) -> None:
        """Load, warm up and unload the model once, if that has not been done."""
        cached = self._program_of(spec, folder, self._inspected.pop(folder, None))
        with cached.lock:
            if not cached.models:
                try:
                    self._create_model(spec, folder, cached, warm=True).close()
                except WarmUpFailed as error:
                    _check_stateless(model_path(folder, cached.manifest, MODEL), error)
                    raise

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> OpenModel:
        """Load the weights into pages; warm up if `prepare` has not done it; see `Runtime.open`."""
        cached = self._program_of(spec, folder)
        with cached.lock:
            model = next((unloaded for unloaded in cached.models if not unloaded.loaded), None)
            if model is None:
                return self._create_model(spec, folder, cached, warm=warm)
            _load(spec, model)
            return model

    def _create_model(self, spec: ModelSpec, folder: Path, cached: _CachedProgram, *, warm: bool) -> PagedModel:
        """Create a model of the program, loaded and, with `warm`, warmed up."""
        model = self._engine.create_model(spec, cached.program, cached.manifest.threads)
        try:
            _load(spec, model)
            if warm:
                _warm_up(spec, folder, model)
        except BaseException:
            model.retire()
            model.close()
            raise
        cached.models.append(model)
        return model

    def _program_of(
        self, spec: ModelSpec, folder: Path, inspected: tuple[Manifest, Program] | None = None
    ) -> _CachedProgram:
        """Return the program of this content: the one that `inspect` has just read, or the one in memory, or read it.

        Without a content hash it is always read.
        """
        cached = self._programs.get(folder)
        if cached is not None and inspected is None and spec.content_hash and cached.content_hash == spec.content_hash:
            return cached
        manifest, program = inspected or self._read_program(folder)
        for model in cached.models if cached else ():
            model.retire()
        self._programs[folder] = _CachedProgram(spec.content_hash, manifest, program, [], Lock())
        return self._programs[folder]

    def _read_program(self, folder: Path) -> tuple[Manifest, Program]:
        manifest = read_manifest(folder)
        path = model_path(folder, manifest, MODEL)
        if not path.is_file():
            raise InvalidModel(f"{path}: got no such file, wanted a program saved by torch.export.save")
        try:
            return manifest, self._engine.load_program(path)
        except UnsupportedProgram as error:
            raise InvalidModel(f"{path}: {error}") from error
        except Exception as error:  # PyTorch may raise anything on a broken file
            raise InvalidModel(
                f"{path}: got {type(error).__name__}: {error}, wanted a program saved by torch.export.save"
            ) from error


def _warm_up(spec: ModelSpec, folder: Path, model: PagedModel) -> None:
    """Run every batch size once, and check that neither inputs nor weights change. See repository/warm_up.py."""
    model.warm(partial(warmup_inputs, spec, folder))
    inputs: dict[int, Mapping[str, NDArray[Any]]] = {}

    def run(batch_size: int, made_up: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        inputs[batch_size] = made_up
        return model.run(batch_size, made_up)

    warm_up(run, spec, folder)
    for batch_size, used in inputs.items():
        unused = warmup_inputs(spec, folder, batch_size)
        if any(array.tobytes() != unused[name].tobytes() for name, array in used.items()):
            raise _stateful_error(spec, "inputs")
    if model.weights_changed():
        raise _stateful_error(spec, "weights")


def _stateful_error(spec: ModelSpec, changed: str) -> ModelFailed:
    return ModelFailed(
        f"model {spec.key}: state: got a program that changes its {changed}, wanted one without state between "
        "calls (model.eval(), no buffers that are written to)"
    )


def _check_stateless(path: Path, failure: WarmUpFailed) -> None:
    """Raise `InvalidModel` if a program that fails on made-up inputs has state, which no run of it has shown."""
    try:
        check_stateless(path)
    except UnsupportedProgram as error:
        raise InvalidModel(f"{path}: {error}") from error
    except Exception as error:  # PyTorch may raise anything
        raise InvalidModel(
            f"{path}: failed on made-up inputs ({failure.reason}), and cannot be checked for state without a run "
            f"({type(error).__name__}: {error}), wanted `warmup` values in model.toml that it accepts"
        ) from error


def _load(spec: ModelSpec, model: PagedModel) -> None:
    try:
        model.load()
    except OutOfPages as error:
        raise ModelFailed(f"model {spec.key}: {error}; worker.pages_bytes may be more than the device has") from error


def _create_engine(settings: WorkerSettings) -> Engine:
    if settings.cuda is None:
        from horologe_gpu_worker.runtimes.pytorch.host_engine import HostEngine

        return HostEngine(settings.pages, PAGE_BYTES)
    if not torch.cuda.is_available():
        raise InvalidModel(f"worker.device: got {settings.device!r}, wanted a CUDA device that PyTorch can use")
    from horologe_gpu_worker.runtimes.pytorch.cuda_engine import CudaEngine

    return CudaEngine(settings.cuda, settings.pages, PAGE_BYTES, settings.io_cache_bytes)


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
