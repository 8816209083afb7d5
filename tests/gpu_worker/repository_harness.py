"""Model repositories of tests: their store, entries of manifests, ONNX graphs and exported programs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from onnx import TensorProto, helper

from harness.model_folders import a_folder, a_graph
from horologe_gpu_worker.repository.modelstore import ModelStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.runtime import Runtime

OUTPUT = '[[outputs]]\nname = "y"\ndatatype = "{}"\nshape = {}\n'


def a_store(folder: Path, **options: Any) -> ModelStore:
    """Return the store of `<folder>/models` with the cache `<folder>/cache`."""
    return ModelStore(folder / "models", folder / "cache", report=lambda line: None, **options)


def only_report(folder: Path) -> ModelReport:
    """Scan `<folder>/models` and return the report of its only model."""
    (report,) = a_store(folder).scan()
    return report


def an_input(name: str, datatype: str, shape: Sequence[int], **keys: Any) -> str:
    lines = [f"{key} = {value}\n" for key, value in keys.items()]
    return f'[[inputs]]\nname = "{name}"\ndatatype = "{datatype}"\nshape = {list(shape)}\n' + "".join(lines)


def an_output(datatype: str, shape: Sequence[int]) -> str:
    return OUTPUT.format(datatype, list(shape))


def a_dividing_graph() -> bytes:
    """Return a graph that fails if an element of `x` is 0: `y = 12 / x`."""
    twelve = helper.make_node(
        "Constant", [], ["twelve"], value=helper.make_tensor("twelve", TensorProto.INT64, [1, 1], [12])
    )
    divide = helper.make_node("Div", ["twelve", "x"], ["y"])
    end = TensorProto.INT64, ["rows", 2]
    return a_graph(twelve, divide, inputs={"x": end}, outputs={"y": end})


def a_program(
    repository: Path, module: Any, arguments: tuple[Any, ...], shapes: Any = None, manifest: str = "", name: str = "m"
) -> Path:
    """Export a module to a model folder. `shapes`: dynamic shapes of the arguments."""
    import torch

    folder = a_folder(repository, name, manifest)
    program = torch.export.export(module.eval(), arguments, dynamic_shapes=shapes)
    torch.export.save(program, folder / "model.pt2")
    return folder


def a_module(function: Callable[[Any], Any]) -> Any:
    """Return a module of one input that calls a function. Skips the test if PyTorch is not installed."""
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

    class Function(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return function(x)

    return Function()


def a_dividing_program(repository: Path, manifest: str = "", name: str = "m") -> Path:
    """Export a program that fails if an element of `x` is 0: `y = 12 // x`."""
    module = a_module(lambda x: {"y": 12 // x})
    import torch

    rows = {0: torch.export.Dim("rows")}
    return a_program(repository, module, (torch.ones(2, 2, dtype=torch.int64),), (rows,), manifest, name)


@contextmanager
def open_model(runtime: Runtime, folder: Path) -> Iterator[Any]:
    """Inspect and open a model, and close it afterwards."""
    model = runtime.open(runtime.inspect(folder), folder)
    try:
        yield model
    finally:
        model.close()
