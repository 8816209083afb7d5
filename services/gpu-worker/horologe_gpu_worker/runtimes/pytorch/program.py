"""A torch.export program from disk: its inputs and outputs, its weights, and the function that runs it.

Imports nothing but PyTorch and paged_weights.py, so that benchmarks can use it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import WeightLayout, copy_weights, lay_out_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

INTEGERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DATATYPES = {
    **{getattr(torch, name): name.upper() for name in INTEGERS},
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
"""PyTorch's dtypes -> Open Inference Protocol datatypes."""
WEIGHTS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
STATE = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION}


class UnsupportedProgram(Exception):
    """The program cannot be served. The text names what was found and what is wanted."""


class ProgramTensor(NamedTuple):
    """An input or output. `shape` has -1 for a variable size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Program(NamedTuple):
    """A loaded program. `forward(*weights, *inputs)` returns a tuple of outputs.

    `rows` is the smallest and largest batch size that the program was exported for.
    """

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    rows: tuple[int, int | None]
    forward: Callable[..., Sequence[Any]]
    layout: WeightLayout
    """Layout of parameters, buffers and constants in the model's pages, in the argument order of `forward`."""
    memory: NDArray[np.uint8]
    """Memory of the weights, laid out as in the pages. It can be pinned."""
    blob: Any
    """`memory` as a tensor."""


def load_program(path: Path, cuda: int | None = None) -> Program:
    """Read `model.pt2`. With `cuda`, its operators run on that device; its weights stay on the host.

    The archive is trusted as code is: see docs/models.md. Raises `UnsupportedProgram`, and PyTorch's errors for an
    unreadable file.
    """
    return program_of(torch.export.load(path), cuda)


def program_of(exported: Any, cuda: int | None = None) -> Program:
    """Convert an exported program; see `load_program`."""
    inputs, weights = _inputs(exported)
    outputs = _outputs(exported)
    rows = _rows(exported)
    layout = lay_out_weights(weights)
    if cuda is not None:
        exported = move_to_device_pass(exported, f"cuda:{cuda}")
        exported.graph_module.recompile()
    # The lifted graph takes weights as arguments, so they may be at any address. The callable of `module()` checks
    # guards and packs trees: 139 us per run of a small network instead of 70 us.
    memory = copy_weights(layout)
    layout = layout._replace(storages=())
    return Program(inputs, outputs, rows, exported.graph_module.forward, layout, memory, torch.from_numpy(memory))


def _inputs(exported: Any) -> tuple[tuple[ProgramTensor, ...], list[Any]]:
    """Return user inputs and weights. In the graph, weights come first, which is the argument order of `forward`."""
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    inputs: list[ProgramTensor] = []
    weights: list[Any] = []
    for argument in exported.graph_signature.input_specs:
        if argument.kind in WEIGHTS and not inputs:
            tensors = exported.state_dict if argument.target in exported.state_dict else exported.constants
            weights.append(_weight(argument.target, tensors[argument.target]))
        elif argument.kind == InputKind.USER_INPUT and isinstance(argument.arg, TensorArgument):
            inputs.append(_program_tensor(f"input {argument.arg.name!r}", argument.arg.name, values[argument.arg.name]))
        else:
            raise UnsupportedProgram(f"input {argument.arg!r}: got {argument.kind.name.lower()}, wanted tensors")
    return tuple(inputs), weights


def _weight(name: str, tensor: Any) -> Any:
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise UnsupportedProgram(
            f"weight {name!r}: got {tensor.layout} on {tensor.device}, wanted a dense tensor on the CPU "
            "(export the model on the CPU)"
        )
    return tensor


def _outputs(exported: Any) -> tuple[ProgramTensor, ...]:
    signature = exported.graph_signature
    if state := [argument.target for argument in signature.output_specs if argument.kind in STATE]:
        raise UnsupportedProgram(f"state: got a program that changes {state}, wanted one without state (model.eval())")
    if any(not isinstance(argument.arg, TensorArgument) for argument in signature.output_specs):
        raise UnsupportedProgram(
            f"outputs: got {[argument.arg for argument in signature.output_specs]}, wanted tensors"
        )
    node = next(node for node in exported.graph.nodes if node.op == "output")
    values = [output.meta["val"] for output in node.args[0]]
    names = _output_names(exported.call_spec.out_spec, len(values))
    return tuple(_program_tensor(f"output {name!r}", name, value) for name, value in zip(names, values, strict=True))


def _output_names(tree: Any, count: int) -> list[str]:
    """Return the keys if `forward` returns a dict of tensors; else `output_0`, `output_1`, …"""
    tree_of_indices = pytree.tree_unflatten(list(range(count)), tree)
    if isinstance(tree_of_indices, dict) and all(isinstance(index, int) for index in tree_of_indices.values()):
        return [str(key) for key, _ in sorted(tree_of_indices.items(), key=lambda item: item[1])]
    return [f"output_{number}" for number in range(count)]


def _program_tensor(where: str, name: str, value: Any) -> ProgramTensor:
    datatype = DATATYPES.get(value.dtype)
    if datatype is None:
        raise UnsupportedProgram(f"{where}: dtype: got {value.dtype}, wanted one of {', '.join(map(str, DATATYPES))}")
    return ProgramTensor(name, datatype, tuple(dim if isinstance(dim, int) else -1 for dim in value.shape))


def _rows(exported: Any) -> tuple[int, int | None]:
    """Return the bounds of the first dimension; (0, None) without bounds."""
    low, high = 0, None
    names = {
        argument.arg.name for argument in exported.graph_signature.input_specs if argument.kind == InputKind.USER_INPUT
    }
    for node in exported.graph.nodes:
        if node.name not in names or not node.meta["val"].dim() or isinstance(node.meta["val"].shape[0], int):
            continue
        bounds = exported.range_constraints.get(node.meta["val"].shape[0].node.expr)
        if bounds is not None:
            low = max(low, int(bounds.lower))
            if bounds.upper.is_finite:
                high = min(int(bounds.upper), int(bounds.upper) if high is None else high)
    return low, high
