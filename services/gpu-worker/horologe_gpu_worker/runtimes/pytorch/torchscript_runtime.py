"""TorchScript modules (`model.pt`) on the CPU. Inputs and outputs are declared, as for Triton's PyTorch backend."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.content import content_bytes
from horologe_gpu_worker.repository.manifest import InvalidModel, model_path, read_manifest
from horologe_gpu_worker.repository.model_spec import build_spec, declared_signature
from horologe_gpu_worker.repository.reshaping import read_reshapes
from horologe_gpu_worker.repository.warm_up import warm_up
from horologe_gpu_worker.runtime import OpenModel, Runtime
from horologe_gpu_worker.runtimes.pytorch.host_engine import writable
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.repository.reshaping import Reshapes

MODEL = "model.pt"
_INDEXED = re.compile(r".*?__(\d+)", re.DOTALL)


class TorchScriptModel(OpenModel):
    """A module in host memory."""

    def __init__(self, spec: ModelSpec, module: Any, threads: int, reshapes: Reshapes) -> None:
        self._spec = spec
        self._module = module
        self._threads = threads
        self._reshapes = reshapes
        names = [tensor.name for tensor in spec.inputs]
        self._positions = input_positions(names, argument_names(module))
        self._takes_dict = takes_dict(module)
        self._indices = output_indices([tensor.name for tensor in spec.outputs])

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # a setting of the calling thread, and each lane is a thread
        tensors = {
            name: torch.from_numpy(writable(array)) for name, array in self._reshapes.inputs.apply(inputs).items()
        }
        try:
            with torch.no_grad():
                if self._takes_dict:
                    outputs = self._module(tensors)
                else:
                    outputs = self._module(*sorted_by_position(tensors, self._positions))
        except Exception as error:  # a model may raise anything
            raise ModelFailed(f"model {self._spec.key}: {error}") from error
        return self._reshapes.outputs.apply(self._named_outputs(outputs))

    def _named_outputs(self, outputs: Any) -> dict[str, NDArray[Any]]:
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        arrays = {}
        for name, index in self._indices.items():
            tensor = found[index] if index < len(found) else None
            if not isinstance(tensor, torch.Tensor):
                got = f"{len(found)} outputs" if tensor is None else type(tensor).__name__
                raise ModelFailed(f"model {self._spec.key}: output {name!r}: got {got}, wanted a tensor at {index}")
            arrays[name] = tensor.detach().clone().numpy()
        return arrays

    def close(self) -> None:
        self._module = None


class TorchScriptRuntime(Runtime):
    """Opens TorchScript modules on the CPU. Needs the package `torch` (the extra `torch`)."""

    def __init__(self, settings: WorkerSettings = DEFAULTS) -> None:
        if settings.cuda is not None:
            raise InvalidModel(
                f"TorchScript runs on the CPU: worker.device: got {settings.device!r}, wanted 'cpu', or a model.pt2 "
                "made by torch.export"
            )

    def inspect(self, folder: Path) -> ModelSpec:
        """Read the spec from `model.toml` or `config.pbtxt`, and compare it with the module.

        Raises `InvalidModel` naming file, field, got and wanted.
        """
        manifest = read_manifest(folder)
        path = model_path(folder, manifest, MODEL)
        signature = declared_signature(manifest, folder)
        for tensor in (*signature[0], *signature[1]):
            if tensor.datatype == "BYTES":
                raise InvalidModel(f"{path}: {tensor.name}: datatype: got BYTES, wanted numbers for TorchScript")
        module, names = load_module(path), [tensor.name for tensor in signature[0]]
        arguments = argument_names(module)
        if not takes_dict(module) and len(arguments) != len(names):
            raise InvalidModel(f"{path}: inputs: got {names}, wanted one for each of {arguments}")
        input_positions(names, arguments)
        spec = build_spec(folder, manifest, "torchscript", signature, content_bytes(folder))
        return msgspec.structs.replace(spec, shares_pages=True)

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> OpenModel:
        manifest = read_manifest(folder)
        module = load_module(model_path(folder, manifest, MODEL))
        model = TorchScriptModel(spec, module, manifest.threads, read_reshapes(manifest))
        if warm:
            warm_up(model.run, spec, folder)
        return model


def load_module(path: Path) -> Any:
    """Return the module of a file. Raises `InvalidModel` for one that PyTorch cannot read."""
    if not path.is_file():
        raise InvalidModel(f"{path}: got no such file, wanted a module saved by torch.jit.save")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch, for all of TorchScript
            return torch.jit.load(str(path), map_location="cpu")
    except Exception as error:  # PyTorch may raise anything on a broken file
        text = str(error).partition("\n")[0]
        raise InvalidModel(
            f"{path}: got {type(error).__name__}: {text}, wanted a module saved by torch.jit.save"
        ) from error


def argument_names(module: Any) -> list[str]:
    """Return the names of the arguments of `forward`."""
    return [argument.name for argument in module.forward.schema.arguments[1:]]


def takes_dict(module: Any) -> bool:
    """Return whether the only argument is a dict of all inputs."""
    arguments = module.forward.schema.arguments[1:]
    return len(arguments) == 1 and arguments[0].type.kind() == "DictType"


def input_positions(names: Sequence[str], arguments: Sequence[str]) -> dict[str, int]:
    """Return the position of each input among the arguments: by its name, else by its index (`NAME__0`), else by its
    place in the declaration.
    """
    if all(name in arguments for name in names):
        return {name: list(arguments).index(name) for name in names}
    return output_indices(names)


def output_indices(names: Sequence[str]) -> dict[str, int]:
    """Return the index of each output: `NAME__1` is 1 if all names end like this, else its place."""
    matches = [_INDEXED.fullmatch(name) for name in names]
    if all(matches):
        return {match[0]: int(match[1]) for match in matches if match}
    return {name: place for place, name in enumerate(names)}


def sorted_by_position(tensors: Mapping[str, Any], positions: Mapping[str, int]) -> list[Any]:
    """Return the tensors in the order of their positions."""
    return [tensors[name] for name in sorted(positions, key=lambda name: positions[name])]
