"""PyTorch: models as torch.export programs (`model.pt2`), weights in pages, on the CPU or on a CUDA device.

What takes long (reading the file, warming, capturing) happens once, when the repository is read. A LOAD maps pages
into the model's addresses and copies the weights; an UNLOAD takes the pages out again.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from horologe_common.models import PAGE_BYTES, ModelSpec, TensorSpec
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import (
    InvalidModel,
    Manifest,
    build_spec,
    manifest_path,
    read_manifest,
)
from horologe_gpu_worker.repository.model_signature import check_outputs, zeros
from horologe_gpu_worker.runtime import HOST_DEVICE, DeviceConfig, OpenModel
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages
from horologe_gpu_worker.runtimes.pytorch.program import Program, ProgramTensor, UnsupportedProgram

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MODEL = "model.pt2"


class PagedModel(OpenModel, Protocol):
    """A model whose weights are in pages between `load` and `close`, as often as one likes."""

    @property
    def loaded(self) -> bool:
        """Whether they are now."""

    def load(self) -> None:
        """Map pages and copy the weights. Raises `OutOfPages`."""

    def warm(self) -> None:
        """After the first `load`: run every batch size, so that nothing is done for the first time later."""

    def weights_changed(self) -> bool:
        """Whether running it has changed its weights."""

    def retire(self) -> None:
        """Give up the addresses, if loaded then at `close`: the file has changed."""


class Engine(Protocol):
    """What the CPU (pytorch_host.py) and CUDA (pytorch_cuda.py) do differently."""

    inline_io: bool

    def load_program(self, path: Path) -> Program:
        """Read a program whose operators run here."""

    def unsupported_reason(self, spec: ModelSpec) -> str:
        """Why models with this signature cannot run here; empty if they can."""

    def create_model(self, spec: ModelSpec, program: Program, threads: int) -> PagedModel:
        """A model with addresses and no pages yet."""


class _CachedProgram(NamedTuple):
    """A program in host memory and its models: one for each share that had it loaded at the same time."""

    stamp: tuple[int, ...]
    manifest: Manifest
    program: Program
    models: list[PagedModel]
    lock: Lock
    """Around `models`: a model may be prepared while another one is loaded."""


class PytorchRuntime:
    """Needs the package `torch` (the extra `torch`)."""

    def __init__(self, device: DeviceConfig = HOST_DEVICE) -> None:
        self._engine = _create_engine(device)
        self.inline_io = self._engine.inline_io
        self._programs: dict[Path, _CachedProgram] = {}

    def inspect(self, folder: Path) -> ModelSpec:
        """The signature of the program. Raises `InvalidModel` naming file, field, got and wanted."""
        known = self._load_program(folder)
        path, program, manifest = folder / MODEL, known.program, known.manifest
        signature = tuple(
            _apply_names(path, kind, ends, given)
            for kind, ends, given in (
                ("inputs", program.inputs, manifest.inputs),
                ("outputs", program.outputs, manifest.outputs),
            )
        )
        spec = build_spec(folder, manifest, "pytorch", (signature[0], signature[1]), program.layout.size)
        low, high = program.rows
        if spec.batched and (spec.batch_sizes[0] < low or (high is not None and spec.max_batch > high)):
            raise InvalidModel(
                f"{manifest_path(folder) or path}: batch_sizes: got {list(spec.batch_sizes)}, wanted {low} to {high}, "
                "as the program was exported"
            )
        if reason := self._engine.unsupported_reason(spec):
            raise InvalidModel(f"{path}: {reason}")
        return spec

    def prepare(self, spec: ModelSpec, folder: Path) -> None:
        """Load, warm and unload once, if that has not been done."""
        known = self._load_program(folder)
        with known.lock:
            if not known.models:
                self._create_model(spec, known).close()

    def open(self, spec: ModelSpec, folder: Path) -> OpenModel:
        """Weights into pages; warmed if `prepare` has not done it. Raises `InvalidModel` or `ModelFailed`."""
        known = self._load_program(folder)
        with known.lock:
            model = next((one for one in known.models if not one.loaded), None)
            if model is None:
                return self._create_model(spec, known)
            _load(spec, model)
            return model

    def _create_model(self, spec: ModelSpec, known: _CachedProgram) -> PagedModel:
        """Another model of the program, loaded and warm."""
        model = self._engine.create_model(spec, known.program, known.manifest.threads)
        try:
            _load(spec, model)
            model.warm()
            for batch_size in spec.batch_sizes:
                inputs = zeros(spec, spec.inputs, batch_size)
                check_outputs(spec, batch_size, model.run(batch_size, inputs))
                if any(array.any() for array in inputs.values()):
                    raise _stateful(spec, "inputs")
            if model.weights_changed():
                raise _stateful(spec, "weights")
        except BaseException:
            model.retire()
            model.close()
            raise
        known.models.append(model)
        return model

    def _load_program(self, folder: Path) -> _CachedProgram:
        """The program, read again where file or manifest have changed."""
        manifest, path = read_manifest(folder), folder / MODEL
        if not path.is_file():
            raise InvalidModel(f"{path}: got no such file, wanted a program saved by torch.export.save")
        files = [path, *filter(None, [manifest_path(folder)])]
        stamp = tuple(number for file in files for number in (file.stat().st_mtime_ns, file.stat().st_size))
        known = self._programs.get(folder)
        if known is not None and known.stamp == stamp:
            return known
        try:
            program = self._engine.load_program(path)
        except UnsupportedProgram as error:
            raise InvalidModel(f"{path}: {error}") from error
        except Exception as error:  # whatever a file makes PyTorch raise
            raise InvalidModel(
                f"{path}: got {type(error).__name__}: {error}, wanted a program saved by torch.export.save"
            ) from error
        for model in known.models if known else ():
            model.retire()
        self._programs[folder] = _CachedProgram(stamp, manifest, program, [], Lock())
        return self._programs[folder]


def _stateful(spec: ModelSpec, what: str) -> ModelFailed:
    return ModelFailed(
        f"model {spec.key}: state: got a program that changes its {what}, wanted one that keeps nothing from call to "
        "call (model.eval(), no buffers that are written to)"
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
    path: Path, kind: str, ends: tuple[ProgramTensor, ...], given: Iterable[Any]
) -> tuple[TensorSpec, ...]:
    """The program's ends, with the names that the manifest gives them, if any, in its order."""
    found = tuple(TensorSpec(end.name, end.datatype, end.shape) for end in ends)
    entries = tuple(TensorSpec(entry.name, entry.datatype, entry.shape) for entry in given)
    if not entries:
        return found
    if [(one.datatype, one.shape) for one in entries] != [(one.datatype, one.shape) for one in found]:
        raise InvalidModel(f"{path}: {kind}: got {entries} in model.toml, wanted {found}, as in the program")
    return entries
