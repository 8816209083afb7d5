"""What a row is: models whose rows depend on each other, or whose first dimension is no rows, are not batched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from gpu_worker.repository_harness import a_module, a_program, only_report
from harness.builders import a_profile, a_spec
from harness.model_folders import a_folder, a_graph
from horologe_common.clock import s
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import ModelFailed
from horologe_common.wire import ModelReport
from horologe_gpu_worker.repository.row_check import check_rows, measure_unbatched_if_needed
from horologe_gpu_worker.runtime import ProcessFailed, RowsFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def scan(repository: Path, **files: Any) -> ModelReport:
    """Write a model with these files and return its report."""
    manifest = files.pop("manifest", "")
    a_folder(repository, "m", manifest, **files)
    return only_report(repository.parent)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


ROWS = {"x": (FLOAT, ["rows", 3])}
THREE = FLOAT, ["rows", 3]


def of_node(
    kind: str,
    *names: str,
    inputs: Mapping[str, tuple[int, list[Any]]] = ROWS,
    output: tuple[int, list[Any]] = THREE,
    constants: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> bytes:
    """Return a graph of one node, whose arguments are the inputs and then the constants unless `names` has others."""
    arrays = {name: np.array(value) for name, value in (constants or {}).items()}
    node = helper.make_node(kind, names or [*inputs, *arrays], ["y"], **attributes)
    return a_graph(node, inputs=inputs, outputs={"y": output}, constants=list(arrays.items()))


VECTOR = {"x": (FLOAT, ["samples"])}
DEPENDENT = {
    "the mean of all samples": a_graph(
        helper.make_node("ReduceMean", ["x"], ["m"], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
        inputs=VECTOR,
        outputs={"y": (FLOAT, ["samples"])},
    ),
    "a sum over time": of_node("CumSum", inputs=VECTOR, output=(FLOAT, ["samples"]), constants={"axis": 0}),
    "a softmax over nodes": of_node("Softmax", axis=0),
    "reversed time": of_node("Slice", constants={"begin": [-1], "end": [-(2**62)], "axis": [0], "step": [-1]}),
    "boxes that were found": a_graph(
        helper.make_node("NonZero", ["x"], ["found"]),
        helper.make_node("Transpose", ["found"], ["y"]),
        inputs=ROWS,
        outputs={"y": (INT, ["boxes", 2])},
    ),
    "edges that name nodes": of_node(
        "Gather", inputs={**ROWS, "edges": (INT, ["edges"])}, output=(FLOAT, ["edges", 3]), axis=0
    ),
    "one row only": of_node("Reshape", output=(FLOAT, [1, 3]), constants={"shape": [1, 3]}),
}


@pytest.mark.parametrize("kind", [kind for kind in DEPENDENT if kind != "one row only"])
def test_a_model_without_independent_rows_is_not_batched(kind: str, repository: Path) -> None:
    report = scan(repository, model_onnx=DEPENDENT[kind])
    spec = report.spec
    assert report.profile is not None, report.reason
    assert (spec.batched, spec.batch_sizes) == (False, (1,))
    (note,) = spec.notes
    assert note.startswith("not batched: ")
    assert "batching" in note
    assert only_report(repository.parent) == report  # from the cache, with the note


def test_a_model_for_one_row_declared_as_rows_gets_one_row(repository: Path) -> None:
    manifest = '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = [-1, 3]\n'
    report = scan(repository, model_onnx=DEPENDENT["one row only"], manifest=manifest)
    assert report.profile is not None, report.reason
    assert (report.spec.batched, report.spec.batch_sizes) == (True, (1,))
    assert "in a batch of 2" in report.spec.notes[0]


@pytest.mark.parametrize("kind", ["boxes that were found", "the mean of all samples"])
def test_on_is_not_compared(kind: str, repository: Path) -> None:
    report = scan(repository, model_onnx=DEPENDENT[kind], manifest='batching = "on"\n')
    assert report.spec.notes == ()
    assert (report.profile is None) is (kind == "boxes that were found")  # outputs without rows stay an error
    assert report.spec.batched


def test_off_and_a_name_keep_the_shape_of_the_request(repository: Path) -> None:
    own = '[[outputs]]\nname = "y"\ndatatype = "INT64"\nshape = ["boxes", 2]\n'
    for number, manifest in enumerate(('batching = "off"\n', own)):
        models = repository / str(number) / "models"
        report = scan(models, model_onnx=DEPENDENT["boxes that were found"], manifest=manifest)
        assert report.profile is not None, report.reason
        assert (report.spec.batched, report.spec.notes) == (False, ())
        assert report.spec.outputs[0].shape == (-1, 2)


INDEPENDENT = {
    "a product": of_node(
        "MatMul", output=(FLOAT, ["rows", 5]), constants={"w": np.random.default_rng(2).random((3, 5), np.float32)}
    ),
    "random numbers": of_node("RandomNormalLike"),
    "values that cancel out": of_node("Sub", "x", "x"),
    "no numbers": a_graph(
        helper.make_node("Sub", ["x", "x"], ["zero"]),
        helper.make_node("Div", ["zero", "zero"], ["y"]),
        inputs=ROWS,
        outputs={"y": THREE},
    ),
    "an index into a table": of_node(
        "Gather", "w", "x", inputs={"x": (INT, ["rows", "words"])}, output=(FLOAT, ["rows", "words", 3]), axis=0,
        constants={"w": np.eye(2, 3, dtype=np.float32)},
    ),
    "an index into a table of one": of_node(
        "Gather", "w", "x", inputs={"x": (INT, ["rows"])}, axis=0, constants={"w": np.eye(1, 3, dtype=np.float32)}
    ),
    "strings": of_node("Identity", inputs={"x": (TensorProto.STRING, ["rows"])}, output=(TensorProto.STRING, ["rows"])),
}  # fmt: skip


@pytest.mark.parametrize("kind", INDEPENDENT)
def test_a_model_with_independent_rows_is_batched(kind: str, repository: Path) -> None:
    report = scan(repository, model_onnx=INDEPENDENT[kind])
    assert report.profile is not None, report.reason
    assert (report.spec.batched, report.spec.max_batch, report.spec.notes) == (True, 16, ())
    assert only_report(repository.parent) == report


PYTHON = """
batch_sizes = [1, 4]
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 2] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 2] }]
"""
BODIES = {
    "rows": ("y = x * 2", True),
    "mean": ("y = x - x.mean(axis=0)", False),
    "dropout": ("y = x * (np.random.random(x.shape) > 0.5)", True),
    "rare noise": ("y = x + (np.random.random(x.shape) > 0.99)", True),
    "counter": ("self.n = getattr(self, 'n', 0) + 1; y = x + self.n", True),
    "noise from one seed": ("y = x + np.random.default_rng(0).random(x.shape, np.float32)", False),
    "found rows": ("y = x[x[:, 0] > 0.5]", False),
    "shape": ("y = x / len(x)", False),
    "rejects random inputs": ("assert not x.any(); y = x", True),
    "two rows or more": ("assert len(x) < 4; y = x", None),
}


@pytest.mark.parametrize("kind", BODIES)
def test_python_models_are_compared(kind: str, repository: Path) -> None:
    body, batched = BODIES[kind]
    source = "import numpy as np\nclass Model:\n    def predict_batch(self, inputs):\n        x = inputs['x']\n"
    source += f"        {body}\n        return {{'y': y.astype('f4')}}\n"
    report = scan(repository, model_py=source, manifest=PYTHON)
    assert report.profile is not None, report.reason
    if batched is None:
        assert report.spec.batch_sizes == (1,)
    else:
        assert report.spec.batched is batched, report.spec.notes
    assert bool(report.spec.notes) is not batched


def test_a_model_that_rejects_random_inputs_logs_no_exception(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = "if inputs['x'].any(): raise ValueError('only zeros')"
    source = (
        f"class Model:\n    def predict_batch(self, inputs):\n        {body}\n        return {{'y': inputs['x']}}\n"
    )
    assert scan(repository, model_py=source, manifest=PYTHON).spec.batched
    assert "Traceback" not in capfd.readouterr().err


def test_pytorch_models_are_compared(repository: Path) -> None:
    module = a_module(lambda x: {"y": x - x.mean(0, keepdim=True)})
    import torch

    a_program(repository, module, (torch.zeros(2, 4),), ({0: torch.export.Dim("rows", min=1, max=16)},))
    report = only_report(repository.parent)
    assert report.profile is not None, report.reason
    assert (report.spec.batched, report.spec.inputs[0].shape) == (False, (-1, 4))
    assert "row 15 of 16 random rows has another output 'y' alone" in report.spec.notes[0]


def run_rows(function: Callable[[Arrays], Arrays], spec: ModelSpec) -> list[int]:
    """Compare the rows of a function. Return the batch sizes that ran."""
    sizes = []

    def run(batch_size: int, inputs: Arrays) -> Arrays:
        sizes.append(batch_size)
        assert {len(array) for array in inputs.values()} == {batch_size}
        return function(inputs)

    check_rows(run, spec, Path("/nowhere"))
    return sizes


ECHO_SPEC = msgspec.structs.replace(a_spec(), outputs=(TensorSpec("y", "FP32", (-1, 4)),))


def test_a_batch_beyond_the_rows_that_are_compared() -> None:
    spec = msgspec.structs.replace(ECHO_SPEC, batch_sizes=(1, 16, 4096))
    assert set(run_rows(lambda inputs: {"y": inputs["x"]}, spec)) == {1, 16}
    spec = msgspec.structs.replace(ECHO_SPEC, batch_sizes=(64, 4096))
    assert set(run_rows(lambda inputs: {"y": inputs["x"]}, spec)) == {64}


def test_rounding_is_no_difference_and_a_hundredth_of_the_neighbours_is_none_either() -> None:
    def rounded(inputs: Arrays) -> Arrays:
        x = inputs["x"]
        return {"y": x * np.float32(1 + 1e-4 * len(x) / 16)}

    run_rows(rounded, ECHO_SPEC)
    with pytest.raises(RowsFailed, match="row 15 of 16"):
        run_rows(lambda inputs: {"y": inputs["x"] + inputs["x"].mean() / 4}, ECHO_SPEC)


def test_a_dependence_on_distant_rows_is_found() -> None:
    def delayed(inputs: Arrays) -> Arrays:
        x = inputs["x"]
        return {"y": x + np.concatenate([np.zeros((7, 4), "f4"), x])[: len(x)]}

    with pytest.raises(RowsFailed, match="has another output 'y' alone"):
        run_rows(delayed, ECHO_SPEC)


def test_rows_of_a_slow_model_are_compared_for_a_limited_time() -> None:
    now_ns, sizes = 0, []

    def slow(batch_size: int, inputs: Arrays) -> Arrays:
        nonlocal now_ns
        now_ns += s(4)
        sizes.append(batch_size)
        return {"y": inputs["x"]}

    check_rows(slow, ECHO_SPEC, Path("/nowhere"), lambda: now_ns)
    assert sizes == [16, 16, 1]


def test_a_process_that_ends_on_random_inputs_is_not_compared() -> None:
    def crash(inputs: Arrays) -> Arrays:
        raise ProcessFailed("ended", "crash")

    assert run_rows(crash, ECHO_SPEC) == [16]


def test_a_failure_that_repeats_alone_is_a_dependence() -> None:
    def picky(inputs: Arrays) -> Arrays:
        if len(inputs["x"]) == 1 and inputs["x"].any():
            raise ModelFailed("one row")
        return {"y": inputs["x"]}

    with pytest.raises(RowsFailed, match="row 15 of 16 random rows fails alone: one row"):
        run_rows(picky, ECHO_SPEC)


def test_the_error_of_a_model_that_runs_in_no_way_is_the_first_one() -> None:
    tried: list[tuple[bool, tuple[int, ...]]] = []

    def measure(spec: ModelSpec, row_fault: str) -> Any:
        tried.append((spec.batched, spec.batch_sizes))
        raise RowsFailed("first") if len(tried) == 1 else ModelFailed("other")

    with pytest.raises(RowsFailed, match="first"):
        measure_unbatched_if_needed(a_spec(), 16, measure)
    assert tried == [(True, (1, 2, 4, 8, 16)), (False, (1,)), (True, (1,))]


def test_a_model_that_needs_the_dimension_of_rows_gets_one_row() -> None:
    def measure(spec: ModelSpec, row_fault: str) -> Any:
        if not row_fault:
            raise RowsFailed("model sum/1: rows")
        if not spec.batched:
            raise ModelFailed("fixed shapes")
        return a_profile(sizes=spec.batch_sizes)

    spec, _ = measure_unbatched_if_needed(a_spec(), 16, measure)
    assert (spec.batched, spec.batch_sizes, spec.notes) == (
        True, (1,), ("not batched: rows (`batching` in model.toml)",)
    )  # fmt: skip


def test_indices_are_not_varied_where_they_may_end_a_device() -> None:
    spec = msgspec.structs.replace(ECHO_SPEC, inputs=(*ECHO_SPEC.inputs, TensorSpec("ids", "INT64", (-1,))))

    def gather(inputs: Arrays) -> Arrays:
        assert not inputs["ids"].any()
        return {"y": inputs["x"]}

    check_rows(lambda size, inputs: gather(inputs), spec, Path("/nowhere"), kinds=("f",))
