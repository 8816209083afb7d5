"""A torch.export program from disk: its inputs and outputs, its weights, and the function that runs it."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from horologe_gpu_worker.runtimes.pytorch.dynamic_shapes import DynamicShapes, dimensions_of
from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import WeightLayout, copy_weights, lay_out_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from horologe_gpu_worker.runtimes.pytorch.dynamic_shapes import Dimensions

INTEGERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DATATYPES = {
    **{getattr(torch, name): name.upper() for name in INTEGERS},
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
"""PyTorch's dtypes -> Open Inference Protocol datatypes."""
WEIGHTS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
NUMBERS = {SymIntArgument: "INT64", SymFloatArgument: "FP64", SymBoolArgument: "BOOL"}
"""Kinds of arguments that are numbers of a request -> their datatypes."""
NUMBER_TYPES = (
    ((bool, torch.SymBool), "BOOL"),
    ((int, torch.SymInt), "INT64"),
    ((float, torch.SymFloat), "FP64"),
)
"""Types of outputs that are numbers -> their datatypes. `bool` first, because it is an `int` as well."""
STATE = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION}


class UnsupportedProgram(Exception):
    """The program cannot be served. The text names what was found and what is wanted."""


class ProgramTensor(NamedTuple):
    """An input or output. `shape` has -1 for a variable size. A number is a tensor without dimensions."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Program(NamedTuple):
    """A loaded program. `forward(*weights, *inputs)` returns the outputs, which are tensors or numbers."""

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    shapes: DynamicShapes
    numbers: tuple[str, ...]
    """Names of the inputs that the program takes as numbers, and not as tensors."""
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
    return program_of(_load(path), cuda)


class _LoggedErrors(logging.Handler):
    """Keeps the last exception that is logged."""

    last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.last = record.exc_info[1]


def _load(path: Path) -> Any:
    """Load an exported program. PyTorch logs why it cannot load one, and raises an error that does not say so."""
    errors, log = _LoggedErrors(), logging.getLogger("torch.export")
    log.addHandler(errors)
    try:
        return torch.export.load(path)
    except RuntimeError as error:
        raise errors.last or error from error
    finally:
        log.removeHandler(errors)


def check_stateless(path: Path) -> None:
    """Raise `UnsupportedProgram` if the program changes weights, buffers or inputs, and the errors of PyTorch.

    Only a decomposed program says so, and to decompose a large one takes seconds. It is not what runs, because its
    operators may round differently.
    """
    exported = _load(path)
    if _changes_tensors(exported.graph_module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own use of pytree
            _check_state(exported.run_decompositions({}))


def _changes_tensors(module: Any) -> bool:
    """Return True if an operator of the module, or of a branch in it, writes to one of its arguments."""
    graphs = (part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule))
    schemas = (getattr(node.target, "_schema", None) for graph in graphs for node in graph.nodes)
    return any(schema is not None and schema.is_mutable for schema in schemas)


def program_of(exported: Any, cuda: int | None = None) -> Program:
    """Convert an exported program; see `load_program`."""
    arguments, weights = _arguments(exported)
    _check_state(exported)
    _check_example_inputs(exported)
    outputs = _outputs(exported)
    inputs = [argument for argument in arguments if argument.tensor is not None]
    dimensions = {argument.tensor.name: argument.dimensions for argument in inputs if argument.tensor}
    shapes = DynamicShapes(dimensions, [output.dimensions for output in outputs], exported.range_constraints)
    layout = lay_out_weights(weights)
    if cuda is not None:
        exported = move_to_device_pass(exported, f"cuda:{cuda}")
        exported.graph_module.recompile()
    # The lifted graph takes weights as arguments, so they may be at any address. The callable of `module()` checks
    # guards and packs trees: 139 us per run of a small network instead of 70 us.
    kept, count = [output.at for output in outputs], len(exported.graph_signature.output_specs)
    forward = _adapt(exported.graph_module.forward, len(weights), arguments, kept, count)
    memory = copy_weights(layout)
    layout = layout._replace(storages=())
    return Program(
        tuple(argument.tensor for argument in inputs if argument.tensor),
        tuple(output.tensor for output in outputs),
        shapes,
        tuple(argument.tensor.name for argument in inputs if argument.tensor and argument.is_number),
        forward,
        layout,
        memory,
        torch.from_numpy(memory),
    )


class _Argument(NamedTuple):
    """An argument of the graph behind the weights. `tensor` is None for a constant of the export, such as `None`."""

    tensor: ProgramTensor | None
    dimensions: Dimensions = ()
    is_number: bool = False
    constant: Any = None


class _Output(NamedTuple):
    """An output that is served, at position `at` of the graph's outputs."""

    tensor: ProgramTensor
    dimensions: Dimensions
    at: int


def _adapt(
    forward: Callable[..., Sequence[Any]], weights: int, arguments: Sequence[_Argument], kept: Sequence[int], count: int
) -> Callable[..., Sequence[Any]]:
    """Return a function of weights and tensors that inserts constants and numbers, and returns the kept outputs of
    `count`.
    """
    plain = all(argument.tensor is not None and not argument.is_number for argument in arguments)
    if plain and len(kept) == count:
        return forward

    def run(*given: Any) -> Sequence[Any]:
        tensors = iter(given[weights:])
        values = []
        for argument in arguments:
            value = argument.constant if argument.tensor is None else next(tensors)
            values.append(value.item() if argument.is_number else value)
        results = forward(*given[:weights], *values)
        return [results[index] for index in kept]

    return run


def _arguments(exported: Any) -> tuple[list[_Argument], list[Any]]:
    """Return the arguments behind the weights, and the weights. In the graph, weights come first, which is the argument
    order of `forward`.
    """
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    arguments: list[_Argument] = []
    weights: list[Any] = []
    for argument in exported.graph_signature.input_specs:
        name = argument.arg.name
        if argument.kind in WEIGHTS and not arguments:
            tensors = exported.state_dict if argument.target in exported.state_dict else exported.constants
            weights.append(_weight(argument.target, tensors[argument.target]))
        elif argument.kind != InputKind.USER_INPUT:
            raise UnsupportedProgram(f"input {name!r}: got {argument.kind.name.lower()}, wanted tensors and numbers")
        elif isinstance(argument.arg, ConstantArgument):
            arguments.append(_Argument(None, constant=argument.arg.value))
        elif isinstance(argument.arg, TensorArgument):
            tensor = _program_tensor(f"input {name!r}", name, values[name])
            arguments.append(_Argument(tensor, dimensions_of(values[name])))
        elif datatype := NUMBERS.get(type(argument.arg)):
            arguments.append(_Argument(ProgramTensor(name, datatype, ()), is_number=True))
        else:
            raise UnsupportedProgram(f"input {name!r}: got {argument.arg}, wanted a tensor or a number")
    return arguments, weights


def _weight(name: str, tensor: Any) -> Any:
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise UnsupportedProgram(
            f"weight {name!r}: got {tensor.layout} on {tensor.device}, wanted a dense tensor on the CPU "
            "(export the model on the CPU)"
        )
    return tensor


def _check_state(exported: Any) -> None:
    if state := [output.target for output in exported.graph_signature.output_specs if output.kind in STATE]:
        raise UnsupportedProgram(f"state: got a program that changes {state}, wanted one without state (model.eval())")


def _check_example_inputs(exported: Any) -> None:
    """Raise `UnsupportedProgram` if the export got one tensor for two inputs: then the graph reads only one of them."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    specs = exported.graph_signature.input_specs
    names = [spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT]
    examples = pytree.tree_leaves(exported.example_inputs)
    if len(examples) != len(names):
        return
    for unread, example in zip(names, examples, strict=True):
        same = (
            name for name, other in zip(names, examples, strict=True) if name != unread and _is_same(example, other)
        )
        if not nodes[unread].users and (other := next(same, None)):
            raise UnsupportedProgram(
                f"input {unread!r}: got a program that was exported with one tensor for {unread!r} and {other!r} and "
                f"never reads {unread!r}, wanted an export with two tensors"
            )


def _is_same(first: Any, second: Any) -> bool:
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and first.numel()):
        return False
    return (first.data_ptr(), first.shape, first.stride()) == (second.data_ptr(), second.shape, second.stride())


def _outputs(exported: Any) -> list[_Output]:
    """Return the outputs except those that are None."""
    node = next(node for node in exported.graph.nodes if node.op == "output")
    results = node.args[0]
    specs = exported.graph_signature.output_specs
    names = _output_names(exported.call_spec.out_spec, len(specs))
    outputs = []
    for at, (name, result) in enumerate(zip(names, results, strict=True)):
        where = f"output {name!r}"
        value = result.meta["val"] if isinstance(result, torch.fx.Node) else result
        if isinstance(value, torch.Tensor):
            outputs.append(_Output(_program_tensor(where, name, value), dimensions_of(value), at))
        elif datatype := next((datatype for kind, datatype in NUMBER_TYPES if isinstance(value, kind)), ""):
            outputs.append(_Output(ProgramTensor(name, datatype, ()), (), at))
        elif value is not None:
            raise UnsupportedProgram(f"{where}: got {value!r}, wanted a tensor, a number or None")
    if not outputs:
        raise UnsupportedProgram(f"outputs: got {[str(result) for result in results]}, wanted a tensor or a number")
    return outputs


def _output_names(tree: Any, count: int) -> list[str]:
    """Return names by the keys and attributes that lead to each output: `y`, `y_0`, `output_1_mask`.

    Outputs without a key or attribute are `output_0`, `output_1`, … in their order, as are all if names are not unique.
    """
    numbered = [f"output_{number}" for number in range(count)]
    paths = [path for path, _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), tree))[0]]
    names = [_path_name(path) or number for path, number in zip(paths, numbered, strict=True)]
    return names if len(set(names)) == len(names) else numbered


def _path_name(path: Sequence[Any]) -> str:
    """Return the name of a path; empty if it consists of positions only."""
    parts = [str(getattr(step, "key", getattr(step, "name", getattr(step, "idx", step)))) for step in path]
    if all(isinstance(step, pytree.SequenceKey) for step in path):
        return ""
    return "_".join(["output", *parts] if isinstance(path[0], pytree.SequenceKey) else parts)


def _program_tensor(where: str, name: str, value: Any) -> ProgramTensor:
    datatype = DATATYPES.get(value.dtype)
    if datatype is None:
        raise UnsupportedProgram(f"{where}: dtype: got {value.dtype}, wanted one of {', '.join(map(str, DATATYPES))}")
    return ProgramTensor(name, datatype, tuple(dim if isinstance(dim, int) else -1 for dim in value.shape))
