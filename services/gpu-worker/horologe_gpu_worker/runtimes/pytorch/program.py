"""A torch.export program from disk: what it takes and gives, its weights, and the function that runs it.

Imports nothing but PyTorch and what is needed to say what is wrong, so that benchmarks can use it alone.
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

DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
"""PyTorch's dtypes -> Open Inference Protocol datatypes."""
WEIGHTS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
STATE = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION}


class UnsupportedProgram(Exception):
    """A program that cannot be served; the text names what came and what was wanted."""


class ProgramTensor(NamedTuple):
    """An input or output: `shape` has -1 where the size is free."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Program(NamedTuple):
    """`forward(*weights, *inputs)` gives a tuple of outputs. `rows`: least and most batch size it was exported for."""

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    rows: tuple[int, int | None]
    forward: Callable[..., Sequence[Any]]
    layout: WeightLayout
    """Where parameters, buffers and constants lie among the model's pages, in the order of `forward`."""
    memory: NDArray[np.uint8]
    """The weights' memory, laid out as in the pages; what may be pinned."""
    blob: Any
    """The same as a tensor."""


def load_program(path: Path, cuda: int | None = None) -> Program:
    """Read `model.pt2`; with `cuda`, its operators run on that device (its weights stay on the host).

    The archive is trusted as code is: see docs/models.md. Raises `Unfit`, and whatever PyTorch raises for a file
    that it cannot read.
    """
    return program_of(torch.export.load(path), cuda)


def program_of(exported: Any, cuda: int | None = None) -> Program:
    """See `load_program`."""
    inputs, weights = _inputs(exported)
    outputs = _outputs(exported)
    rows = _rows(exported)
    layout = lay_out_weights(weights)
    if cuda is not None:
        exported = move_to_device_pass(exported, f"cuda:{cuda}")
        exported.graph_module.recompile()
    # The lifted graph takes weights as arguments, so they may lie anywhere. The call that `module()` offers checks
    # every guard and packs trees: 139 us a run of a small network instead of 70.
    memory = copy_weights(layout)
    layout = layout._replace(storages=())
    return Program(inputs, outputs, rows, exported.graph_module.forward, layout, memory, torch.from_numpy(memory))


def _inputs(exported: Any) -> tuple[tuple[ProgramTensor, ...], list[Any]]:
    """User inputs and weights. The order of the graph is weights first, which is how `forward` is called."""
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    ends: list[ProgramTensor] = []
    weights: list[Any] = []
    for one in exported.graph_signature.input_specs:
        if one.kind in WEIGHTS and not ends:
            known = exported.state_dict if one.target in exported.state_dict else exported.constants
            weights.append(_weight(one.target, known[one.target]))
        elif one.kind == InputKind.USER_INPUT and isinstance(one.arg, TensorArgument):
            ends.append(_program_tensor(f"input {one.arg.name!r}", one.arg.name, values[one.arg.name]))
        else:
            raise UnsupportedProgram(f"input {one.arg!r}: got {one.kind.name.lower()}, wanted tensors")
    return tuple(ends), weights


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
    if state := [one.target for one in signature.output_specs if one.kind in STATE]:
        raise UnsupportedProgram(
            f"state: got a program that changes {state}, wanted one that keeps nothing (model.eval())"
        )
    if any(not isinstance(one.arg, TensorArgument) for one in signature.output_specs):
        raise UnsupportedProgram(f"outputs: got {[one.arg for one in signature.output_specs]}, wanted tensors")
    node = next(node for node in exported.graph.nodes if node.op == "output")
    values = [each.meta["val"] for each in node.args[0]]
    names = _output_names(exported.call_spec.out_spec, len(values))
    return tuple(_program_tensor(f"output {name!r}", name, value) for name, value in zip(names, values, strict=True))


def _output_names(tree: Any, count: int) -> list[str]:
    """The keys, where `forward` returns a dict of tensors; else `output_0`, `output_1`, …"""
    answer = pytree.tree_unflatten(list(range(count)), tree)
    if isinstance(answer, dict) and all(isinstance(place, int) for place in answer.values()):
        return [str(key) for key, _ in sorted(answer.items(), key=lambda item: item[1])]
    return [f"output_{number}" for number in range(count)]


def _program_tensor(where: str, name: str, value: Any) -> ProgramTensor:
    datatype = DATATYPES.get(value.dtype)
    if datatype is None:
        raise UnsupportedProgram(f"{where}: dtype: got {value.dtype}, wanted one of {', '.join(map(str, DATATYPES))}")
    return ProgramTensor(name, datatype, tuple(dim if isinstance(dim, int) else -1 for dim in value.shape))


def _rows(exported: Any) -> tuple[int, int | None]:
    """The range of the first dimension, where it is free: (0, None) without bounds."""
    low, high = 0, None
    names = {one.arg.name for one in exported.graph_signature.input_specs if one.kind == InputKind.USER_INPUT}
    for node in exported.graph.nodes:
        if node.name not in names or not node.meta["val"].dim() or isinstance(node.meta["val"].shape[0], int):
            continue
        bounds = exported.range_constraints.get(node.meta["val"].shape[0].node.expr)
        if bounds is not None:
            low = max(low, int(bounds.lower))
            if bounds.upper.is_finite:
                high = min(int(bounds.upper), int(bounds.upper) if high is None else high)
    return low, high
