"""`warmup` and `warmup_shape` in `model.toml`: every runtime is warmed up and measured on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from gpu_worker.repository_harness import (
    OUTPUT,
    a_dividing_graph,
    a_dividing_program,
    an_input,
    an_output,
    only_report,
)
from harness.model_folders import a_folder, a_graph
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel, read_manifest
from horologe_gpu_worker.repository.model_spec import warmup_inputs
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime

if TYPE_CHECKING:
    from pathlib import Path

CHECKED = """
class Model:
    def predict_batch(self, inputs):
        {check}
        return {{"y": inputs["x"]}}
"""


def a_gathering_graph() -> bytes:
    """Return a graph that takes row `i` of a table `x`, so that `x` must not be empty where `i` points."""
    gather = helper.make_node("Gather", ["x", "i"], ["y"], axis=0)
    return a_graph(
        gather,
        inputs={"x": (TensorProto.FLOAT, [3, 2]), "i": (TensorProto.INT64, ["n"])},
        outputs={"y": (TensorProto.FLOAT, ["n", 2])},
    )


def a_past_graph(total: str = "total") -> bytes:
    """Return a graph that appends `x` to `past`, and adds a mask over both: its lengths differ."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
        helper.make_node("Add", ["all", "mask"], ["y"]),
    ]
    floats = TensorProto.FLOAT
    lengths = {"x": "tokens", "past": "before", "mask": total}
    inputs = {name: (floats, ["rows", length]) for name, length in lengths.items()}
    return a_graph(*nodes, inputs=inputs, outputs={"y": (floats, ["rows", "all"])})


CASES: dict[str, tuple[bytes, str, str]] = {
    "a divisor": (a_dividing_graph(), an_input("x", "INT64", [-1, 2]), "warmup = 3\n"),
    "a divisor in each column": (a_dividing_graph(), an_input("x", "INT64", [-1, 2]), "warmup = [1, 2]\n"),
    "an index": (
        a_gathering_graph(), an_input("x", "FP32", [3, 2]) + an_input("i", "INT64", [-1]), "warmup = [2]\n",
    ),
    "lengths that belong together": (
        a_past_graph(),
        an_input("x", "FP32", [-1, -1], warmup_shape=[-1, 1]) + an_input("past", "FP32", [-1, -1], warmup_shape=[-1, 4])
        + an_input("mask", "FP32", [-1, -1]),
        "warmup_shape = [-1, 5]\n",
    ),
    "an empty past": (
        a_past_graph(),
        an_input("x", "FP32", [-1, -1]) + an_input("past", "FP32", [-1, -1], warmup_shape=[-1, 0])
        + an_input("mask", "FP32", [-1, -1]),
        "warmup_shape = [-1, 16]\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_onnx_is_warmed_up_and_measured_on_the_given_values_and_shapes(case: str, tmp_path: Path) -> None:
    graph, inputs, keys = CASES[case]
    datatype, shape = ("INT64", [-1, 2]) if "divisor" in case else ("FP32", [-1, 2] if case == "an index" else [-1, -1])
    manifest = inputs + keys + an_output(datatype, shape)
    a_folder(tmp_path / "models", "m", manifest, model_onnx=graph)
    report = only_report(tmp_path)
    assert report.profile is not None, report.reason
    assert (report.profile.measured, report.note) == (True, "")


def test_onnx_with_too_large_an_index_is_not_measured(tmp_path: Path) -> None:
    """The same graph without a value that fits."""
    manifest = an_input("x", "FP32", [3, 2]) + an_input("i", "INT64", [-1], warmup=7) + an_output("FP32", [-1, 2])
    a_folder(tmp_path / "models", "m", manifest, model_onnx=a_gathering_graph())
    report = only_report(tmp_path)
    assert report.profile is not None
    assert not report.profile.measured
    assert "indices element out of data bounds" in report.note


@pytest.mark.parametrize(
    ("total", "manifest", "wanted"),
    [
        ("before + tokens", "", ((-1, -1), (-1, -1), (-1, 32))),
        ("before + tokens", "max_length = 9", ((-1, 4), (-1, 4), (-1, 8))),
        ("tokens+before", "profile_length = 3", ((-1, -1), (-1, -1), (-1, 6))),
        ("before + 16", "", ((-1, -1), (-1, -1), (-1, 32))),
    ],
)
def test_onnx_dimensions_that_are_named_as_sums_fit_together(
    total: str, manifest: str, wanted: Any, tmp_path: Path
) -> None:
    """Exported language models name the size of their mask as a sum."""
    a_folder(tmp_path / "models", "m", manifest, model_onnx=a_past_graph(total))
    report = only_report(tmp_path)
    assert report.spec.warmup_shapes == wanted
    assert report.profile is not None
    assert report.profile.measured, report.note


@pytest.mark.parametrize(
    ("inputs", "check"),
    [
        (an_input("x", "FP32", [-1, 2], warmup=0.5), "assert (inputs['x'] == 0.5).all()"),
        (an_input("x", "FP32", [-1, 2], warmup=[1, 2]), "assert (inputs['x'] == [1, 2]).all()"),
        (an_input("x", "FP32", [-1, 2], warmup=[[1, 2]]), "assert (inputs['x'] == [1, 2]).all()"),
        (an_input("x", "BYTES", [-1, 2], warmup='"1"'), "assert (inputs['x'] == b'1').all()"),
        (an_input("x", "BYTES", [-1, 2], warmup='["a", "b"]'), "assert (inputs['x'] == [b'a', b'b']).all()"),
        (an_input("x", "BOOL", [-1, 2], warmup="true"), "assert inputs['x'].all()"),
        (an_input("x", "FP32", [-1, -1], warmup_shape=[-1, 3]), "assert inputs['x'].shape[1:] == (3,)"),
        (an_input("x", "FP32", [-1, -1, 2], warmup_shape=[-1, 0, 2]), "assert inputs['x'].shape[1:] == (0, 2)"),
        (
            an_input("x", "FP32", [-1, -1]) + an_input("z", "FP32", [-1, -1], warmup_shape=[-1, 3], warmup=[1, 2, 3]),
            "assert inputs['x'].shape[1:] == (16,); assert (inputs['z'] == [1, 2, 3]).all()",
        ),
    ],
)  # fmt: skip
def test_python_is_warmed_up_on_the_given_values_and_shapes(inputs: str, check: str, tmp_path: Path) -> None:
    datatype = inputs.partition('datatype = "')[2].partition('"')[0]
    shape = inputs.partition("shape = ")[2].partition("\n")[0]
    manifest = "batch_sizes = [1, 2]\n" + inputs + OUTPUT.format(datatype, shape)
    folder = a_folder(tmp_path, "m", manifest, model_py=CHECKED.format(check=check))
    runtime = PythonRuntime()
    runtime.open(runtime.inspect(folder), folder).close()


def test_pytorch_is_warmed_up_on_the_given_values(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [{}, {"warmup": 4}, {"warmup": [3, 4]}]
    for number, keys in enumerate(cases):
        folder = a_dividing_program(tmp_path, an_input("x", "INT64", [-1, 2], **keys), f"m{number}")
        runtime = RUNTIMES["pytorch"]()
        spec = runtime.inspect(folder)
        if keys:
            model = runtime.open(spec, folder)
            assert model.run(1, {"x": np.array([[2, 3]])})["y"].tolist() == [[6, 4]]
            model.close()
        else:
            with pytest.raises(ModelFailed, match="ZeroDivisionError"):
                runtime.open(spec, folder)


def test_an_emulated_model_takes_the_keys_as_well(tmp_path: Path) -> None:
    manifest = an_input("x", "FP32", [-1, -1], warmup=2, warmup_shape=[-1, 3]) + an_output("FP32", [-1])
    folder = a_folder(tmp_path, "m", manifest + "[emulated]\nexec_ms = {1 = 1, 2 = 1}\n")
    spec = RUNTIMES["emulated"]().inspect(folder)
    assert warmup_inputs(spec, folder, 2)["x"].tolist() == [[2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"warmup": "true"}, ""),
        ({"warmup": 256}, "warmup: got 256, wanted an element of the UINT8 tensor"),
        ({"warmup": -1}, "warmup: got -1, wanted an element of the UINT8 tensor"),
        ({"warmup": 0.5}, "warmup: got 0.5, wanted an element of the UINT8 tensor"),
        ({"warmup": "nan"}, "warmup: got nan, wanted an element of the UINT8 tensor"),
        ({"warmup": '"a"'}, "warmup: got 'a', wanted an element of the UINT8 tensor"),
        ({"warmup": '[1, "a"]'}, r"warmup: got \[1, 'a'\], wanted an element of the UINT8 tensor"),
        ({"warmup": [[1, 2], [3]]}, r"warmup: got \[\[1, 2\], \[3\]\], wanted .* in lists of equal lengths"),
        ({"warmup": [1, 2, 3]}, r"warmup: got lists of shape \[3\], wanted a shape .* broadcast to \[1, 16, 2\]"),
        ({"warmup": [[[1, 2]], [[1, 2]]]}, r"warmup: got lists of shape \[2, 1, 2\], wanted .* \[1, 16, 2\]"),
        ({"warmup_shape": [-1, 3]}, r"warmup_shape: got \[-1, 3\] for \[-1, -1, 2\], wanted"),
        ({"warmup_shape": [-1, 3, 4]}, r"warmup_shape: got \[-1, 3, 4\] for \[-1, -1, 2\], wanted"),
        ({"warmup_shape": [-1, -2, 2]}, r"warmup_shape: got \[-1, -2, 2\] for"),
        ({"warmup_shape": [4, 3, 2]}, r"warmup_shape: got \[4, 3, 2\], wanted -1 for the rows"),
        ({"warmup_shape": [-1, 40, 2]}, r"warmup_shape: got \[-1, 40, 2\], wanted at most 32 \(max_length\)"),
    ],
)  # fmt: skip
def test_values_and_shapes_that_do_not_fit_are_named(keys: dict[str, Any], text: str, tmp_path: Path) -> None:
    manifest = "max_length = 32\n" + an_input("x", "UINT8", [-1, -1, 2], **keys) + an_output("UINT8", [-1])
    folder = a_folder(tmp_path, "m", manifest, model_py="")
    if not text:
        PythonRuntime().inspect(folder)
    else:
        with pytest.raises(InvalidModel, match=f"x: {text}"):
            PythonRuntime().inspect(folder)


@pytest.mark.parametrize("key", ["warmup = 1\n", "warmup_shape = [-1, 2]\n"])
def test_outputs_have_neither(key: str, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "m", an_input("x", "FP32", [-1, 2]) + an_output("FP32", [-1, 2]) + key)
    with pytest.raises(InvalidModel, match="outputs: y: got warmup, warmup_shape or optional, wanted them in"):
        read_manifest(folder)
