"""Builders of model folders for tests."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from onnx import TensorProto, helper, numpy_helper

from harness.scripts import load_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Ends = Mapping[str, tuple[int, Sequence[Any]]]
    """Inputs or outputs of a graph: name -> type and shape."""

SIGNATURE = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]

[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 4]
"""
ECHO = """
class Model:
    def predict_batch(self, inputs):
        return {"y": inputs["x"]}
"""


def a_folder(repository: Path, name: str, manifest: str = "", version: str = "1", **files: str | bytes) -> Path:
    """Create `<repository>/<name>/<version>` with `model.toml` and files. `model_py="..."` becomes `model.py`."""
    folder = repository / name / version
    folder.mkdir(parents=True)
    if manifest:
        (folder / "model.toml").write_text(manifest)
    for file, content in files.items():
        path = folder / file.replace("_", ".", 1)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def an_emulated_model(repository: Path, name: str = "pretend", **keys: Any) -> Path:
    """Create an emulated model: `x` [-1, 4] -> `y`; batches of 1 and 2 take 1 and 1.5 ms. `keys` precede the tables."""
    times = "[emulated]\nexec_ms = { 1 = 1.0, 2 = 1.5 }\nload_ms = 3\n"
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return a_folder(repository, name, lines + SIGNATURE + times)


def a_python_model(repository: Path, source: str = ECHO, name: str = "code", **keys: Any) -> Path:
    """Create a Python model: `x` [-1, 4] -> `y` [-1, 4], batch sizes 1 and 2."""
    lines = "".join(f"{key} = {value}\n" for key, value in ({"batch_sizes": [1, 2]} | keys).items())
    return a_folder(repository, name, lines + SIGNATURE, model_py=source)


def an_onnx_model(repository: Path, name: str = "graph", manifest: str = "batch_sizes = [1, 2]\n", **kind: Any) -> Path:
    """Create an ONNX model with `y = x`; `kind` is passed to `onnx_bytes`."""
    return a_folder(repository, name, manifest, model_onnx=onnx_bytes(**kind))


def a_pytorch_model(repository: Path, name: str = "program", manifest: str = "batch_sizes = [1, 2]\n") -> Path:
    """Create a PyTorch model: `y` = `x` [-1, 4]. Skips the test if PyTorch is not installed."""
    return a_pytorch_export(repository, "echo", name, manifest)


def a_pytorch_export(repository: Path, kind: str, name: str = "program", manifest: str = "") -> Path:
    """Create one of the models of models/export_pytorch.py."""
    path = _exported(kind)
    return a_folder(repository, name, manifest, model_pt2=path.read_bytes())


def a_torchscript_model(repository: Path, name: str = "script") -> Path:
    """Create a TorchScript model: `y` = `x` [-1, 4]. Skips the test if PyTorch is not installed."""
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    folder = a_folder(repository, name, "batch_sizes = [1, 2]\n" + SIGNATURE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch, for all of TorchScript
        torch.jit.save(torch.jit.trace(torch.nn.Identity(), torch.zeros(2, 4)), folder / "model.pt")
    return folder


@cache
def _exported(kind: str) -> Path:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    import tempfile

    path: Path = pytorch_exports().export(Path(tempfile.mkdtemp()), kind)
    return path / "model.pt2"


@cache
def pytorch_exports() -> Any:
    """Return the module models/export_pytorch.py."""
    return load_script("models/export_pytorch.py", "export_pytorch")


def a_graph(*nodes: Any, inputs: Ends, outputs: Ends, constants: Sequence[tuple[str, Any]] = ()) -> bytes:
    """Return an ONNX graph. `constants`: names and arrays."""
    sides = [
        [helper.make_tensor_value_info(name, kind, list(dims)) for name, (kind, dims) in side.items()]
        for side in (inputs, outputs)
    ]
    arrays = [numpy_helper.from_array(array, name) for name, array in constants]
    graph = helper.make_graph(list(nodes), "test", sides[0], sides[1], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def onnx_bytes(
    shape: Sequence[int | str | None] = ("rows", 4),
    output: Sequence[int | str | None] = (),
    doubled: bool = False,
    datatype: int = TensorProto.FLOAT,
) -> bytes:
    """Return an ONNX graph with `y = x`; if `doubled`, `y` has twice as many rows as `x`."""
    identity = helper.make_node("Identity", ["x"], ["y"])
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0) if doubled else identity
    return a_graph(node, inputs={"x": (datatype, shape)}, outputs={"y": (datatype, output or shape)})
