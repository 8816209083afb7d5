"""Builders of models that need more than zeros: entries of a manifest, and ONNX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUT = '[[outputs]]\nname = "y"\ndatatype = "{}"\nshape = {}\n'


def an_input(name: str, datatype: str, shape: Sequence[int], **keys: Any) -> str:
    lines = [f"{key} = {value}\n" for key, value in keys.items()]
    return f'[[inputs]]\nname = "{name}"\ndatatype = "{datatype}"\nshape = {list(shape)}\n' + "".join(lines)


def an_output(datatype: str, shape: Sequence[int]) -> str:
    return OUTPUT.format(datatype, list(shape))


def a_graph(
    nodes: Sequence[Any], inputs: dict[str, tuple[int, Sequence[Any]]], output: tuple[int, Sequence[Any]]
) -> bytes:
    values = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    graph = helper.make_graph(nodes, "test", values, [helper.make_tensor_value_info("y", *output)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def a_dividing_graph() -> bytes:
    """Return a graph that fails if an element of `x` is 0: `y = 12 / x`."""
    twelve = helper.make_node(
        "Constant", [], ["twelve"], value=helper.make_tensor("twelve", TensorProto.INT64, [1, 1], [12])
    )
    divide = helper.make_node("Div", ["twelve", "x"], ["y"])
    ends: tuple[int, Sequence[Any]] = (TensorProto.INT64, ["rows", 2])
    return a_graph([twelve, divide], {"x": ends}, ends)
