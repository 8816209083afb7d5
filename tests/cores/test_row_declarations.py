"""`model.toml` says what a row is: `batching`, dimensions of a tensor's own, and corrections of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from onnx import TensorProto, helper

from frontend.frontend_builders import CLIENT, a_frontend, send_predict
from gpu_worker.worker_builders import HOLDER, a_worker, an_infer, connect_controller, deliver, operations
from harness.builders import a_predict, a_profile, a_spec, a_state, sent
from harness.model_folders import SIGNATURE, a_folder, a_pytorch_model, onnx_bytes
from horologe_common.applications import Application
from horologe_common.models import ModelSpec, TensorSpec, check_request
from horologe_common.status import InvalidInput
from horologe_common.wire import Answer, ModelReport, Predict, Query, Ship, Shipped, Tensor
from horologe_controller.core.cluster.capable_shares import runnable_profile
from horologe_frontend.core.application_requests import DeclaredApplications
from horologe_frontend.oip.model_documents import model_config, repository_index
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.runtimes.onnx.onnx_runtime import OnnxRuntime
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_gpu_worker.core.lanes import LaneOperation

PYTHON = "class Model:\n    def predict_batch(self, inputs):\n        return {'y': inputs['x']}\n"


def entry(kind: str, name: str, shape: str, datatype: str = "FP32") -> str:
    return f'[[{kind}]]\nname = "{name}"\ndatatype = "{datatype}"\nshape = {shape}\n'


def inspect(folder: Path) -> ModelSpec:
    return (OnnxRuntime if (folder / "model.onnx").exists() else PythonRuntime)().inspect(folder)


def assert_named(folder: Path, words: list[str]) -> None:
    with pytest.raises(InvalidModel) as caught:
        inspect(folder)
    assert all(word in caught.value.reason for word in ["model.toml", *words]), caught.value.reason


def scan_graph(tmp_path: Path, manifest: str, graph: bytes) -> ModelReport:
    """Return the report of a repository with one ONNX model."""
    a_folder(tmp_path / "models", "m", manifest, model_onnx=graph)
    (report,) = ModelStore(tmp_path / "models", tmp_path / "cache").scan()
    return report


@pytest.mark.parametrize(
    ("manifest", "batched", "shape"),
    [
        (SIGNATURE, True, (-1, 4)),
        ('batching = "on"\n' + SIGNATURE, True, (-1, 4)),
        ('batching = "off"\n' + SIGNATURE, False, (-1, 4)),
        ('batching = "off"\nbatch_sizes = [1]\n' + SIGNATURE, False, (-1, 4)),
        (entry("inputs", "x", '["samples"]') + entry("outputs", "y", '["samples"]'), False, (-1,)),
        (entry("inputs", "x", "[-1, 4]") + entry("outputs", "y", '["boxes", 4]'), False, (-1, 4)),
        (entry("inputs", "x", "[-1, 4]") + entry("outputs", "y", '[-1, "boxes", 4]'), True, (-1, 4)),
        (entry("inputs", "x", "[3, 4]") + entry("outputs", "y", "[-1]"), False, (3, 4)),
    ],
)
def test_rows_are_what_is_declared(manifest: str, batched: bool, shape: tuple[int, ...], tmp_path: Path) -> None:
    spec = inspect(a_folder(tmp_path, "m", manifest, model_py=PYTHON))
    assert (spec.batched, spec.inputs[0].shape) == (batched, shape)
    assert spec.batch_sizes == ((1, 2, 4, 8, 16) if batched else (1,))


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ('batching = "maybe"\n' + SIGNATURE, ["batching", "'maybe'"]),
        ("batching = false\n" + SIGNATURE, ["batching"]),
        ('batching = "off"\nbatch_sizes = [1, 2]\n' + SIGNATURE, ["batch_sizes", "[1, 2]", "'off'"]),
        ('batching = "off"\npadded = true\n' + SIGNATURE, ["padded", "'off'"]),
        ('batching = "on"\n' + entry("inputs", "x", "[3]") + entry("outputs", "y", "[-1]"), ["batching", "'on'"]),
        ('batching = "on"\n' + entry("inputs", "x", "[-1]") + entry("outputs", "y", '["n"]'), ["'on'", "'y'", "'n'"]),
        (entry("inputs", "x", '["two words"]') + entry("outputs", "y", "[-1]"), ["x: shape", "'two words'"]),
        (entry("inputs", "x", '[""]') + entry("outputs", "y", "[-1]"), ["x: shape", "''"]),
        ("max_batch_size = 0\n" + SIGNATURE, ["max_batch_size", "batching"]),
    ],
)
def test_contradictions_are_named(manifest: str, words: list[str], tmp_path: Path) -> None:
    assert_named(a_folder(tmp_path, "m", manifest, model_py=PYTHON), words)


def wrong_output() -> bytes:
    """Return a graph that declares its output for one row, although it has the rows of its input."""
    return onnx_bytes(("rows", 4), (1, 4))


def test_a_declared_shape_corrects_that_of_the_graph(tmp_path: Path) -> None:
    assert not inspect(a_folder(tmp_path, "wrong", model_onnx=wrong_output())).batched
    report = scan_graph(tmp_path, entry("outputs", "y", "[-1, 4]"), wrong_output())
    assert report.profile is not None, report.reason
    assert (report.spec.batched, report.spec.max_batch, report.spec.notes) == (True, 16, ())


def test_entries_may_name_some_tensors_and_narrow_sizes(tmp_path: Path) -> None:
    graph = onnx_bytes(("rows", "width"))
    spec = inspect(a_folder(tmp_path, "m", entry("inputs", "x", "[-1, 4]"), model_onnx=graph))
    assert (spec.inputs[0].shape, spec.outputs[0].shape, spec.batched) == ((-1, 4), (-1, -1), True)
    spec = inspect(a_folder(tmp_path, "n", entry("inputs", "x", '["nodes", -1]'), model_onnx=graph))
    assert (spec.inputs[0].shape, spec.batched) == ((-1, -1), False)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (entry("inputs", "z", "[-1, 4]"), ["inputs", "'z'", "['x']"]),
        (entry("outputs", "x", "[-1, 4]"), ["outputs", "'x'", "['y']"]),
        (entry("inputs", "x", "[-1, 4]", "FP64"), ["inputs", "x: datatype", "FP64", "FP32"]),
        (entry("outputs", "y", "[-1, 4]", "INT64"), ["outputs", "y: datatype", "INT64", "FP32"]),
        (entry("inputs", "x", "[-1, 5]"), ["x: shape", "[-1, 5]", "[-1, 4]"]),
        (entry("inputs", "x", "[-1, -1]"), ["x: shape", "[-1, -1]", "[-1, 4]"]),
        (entry("inputs", "x", "[-1]"), ["x: shape", "[-1]", "[-1, 4]"]),
    ],
)
def test_corrections_that_cannot_be_true_are_named(manifest: str, words: list[str], tmp_path: Path) -> None:
    assert_named(a_folder(tmp_path, "m", manifest, model_onnx=onnx_bytes(("rows", 4))), words)


def test_a_wrong_correction_of_an_output_is_found_when_it_is_measured(tmp_path: Path) -> None:
    report = scan_graph(tmp_path, entry("outputs", "y", "[-1, 5]"), onnx_bytes(("rows", 4)))
    assert report.profile is None
    assert "output 'y': shape: got [1, 4], wanted [1, 5]" in report.reason


def test_a_program_may_be_narrowed_and_not_widened(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    from horologe_gpu_worker.runtimes.pytorch.pytorch_runtime import PytorchRuntime

    narrow = a_pytorch_model(tmp_path, "narrow", "batch_sizes = [1]\n" + entry("inputs", "x", "[1, 4]"))
    assert PytorchRuntime().inspect(narrow).inputs[0].shape == (1, 4)
    wide = a_pytorch_model(tmp_path, "wide", entry("inputs", "x", "[-1, -1]"))
    with pytest.raises(InvalidModel, match=r"inputs: x: shape: got \[-1, -1\], wanted \[-1, 4\]"):
        PytorchRuntime().inspect(wide)


UNBATCHED = msgspec.structs.replace(
    a_spec("wave", batched=False, cache=True, batch_sizes=(1,), notes=("not batched: a reason",)),
    inputs=(TensorSpec("x", "FP32", (-1,)),),
    outputs=(TensorSpec("y", "FP32", (-1,)),),
)


def test_requests_without_batches_have_any_length_and_never_share_one() -> None:
    frontend = a_frontend(UNBATCHED)
    for number, samples in enumerate((1, 21, 100_000, 0)):
        predict = Predict(number, "wave", "", 0, (Tensor("x", "FP32", (samples,), 4 * samples),))
        send_predict(frontend, predict, buffers=[bytes(4 * samples)])
    queries = sent(frontend, Query)
    assert [(query.rows, query.length) for query in queries] == [(1, 1), (1, 21), (1, 100_000), (1, 0)]
    assert not sent(frontend, Answer, CLIENT)


def ship_wave(spec: ModelSpec, samples: int) -> list[LaneOperation]:
    """Return the operations of a worker that gets as many samples for an INFER of this model."""
    worker = a_worker(specs=[spec])
    connect_controller(worker)
    deliver(worker, 0, "controller/0#1", an_infer(model="wave/1"))
    ship = Ship(1, HOLDER, (Shipped(100, (Tensor("x", "FP32", (samples,), 4 * samples),)),))
    return operations(deliver(worker, 1, HOLDER, ship, [bytes(4 * samples)]))


def test_a_request_without_batches_reaches_the_model_as_it_is() -> None:
    [operation] = ship_wave(UNBATCHED, 21)
    assert (operation.inputs[0][0].shape, operation.rows, operation.batch_size) == ((21,), 1, 1)


def test_a_fixed_first_dimension_without_batches_is_checked_at_the_worker() -> None:
    spec = msgspec.structs.replace(UNBATCHED, inputs=(TensorSpec("x", "FP32", (3,)),))
    assert not ship_wave(spec, 5)


def test_workers_that_found_different_rows_do_not_share_requests() -> None:
    batched = a_spec("wave")
    alone = msgspec.structs.replace(batched, batched=False, batch_sizes=(1,))
    profile = a_profile(sizes=(1, 2, 4, 8, 16))
    assert runnable_profile(ModelReport(batched, profile), alone, 100, reloading=False) is None
    assert runnable_profile(ModelReport(alone, profile), alone, 100, reloading=False) is profile


def test_an_application_of_both_kinds_takes_one_row() -> None:
    both = (a_spec("sum"), msgspec.structs.replace(a_spec("alone"), batched=False, batch_sizes=(1,)))
    frontend = a_frontend()
    frontend.catalogue.replace_models([a_state(spec) for spec in both])
    for names in (("sum", "alone"), ("alone", "sum")):
        spec = DeclaredApplications(frontend.catalogue).signature(Application("a", names, 100, task="regression"))
        assert check_request(spec, a_predict().inputs)[0] == 1
        with pytest.raises(InvalidInput, match="rows"):
            check_request(spec, a_predict(rows=2).inputs)


def test_notes_are_in_index_and_configuration() -> None:
    state = a_state(UNBATCHED)
    assert repository_index([state], False)[0].reason == "not batched: a reason"
    config = model_config(UNBATCHED)
    assert config.parameters["notes"].string_value == "not batched: a reason"
    assert (config.max_batch_size, config.input[0].dims) == (0, (-1,))


def test_a_graph_of_any_rank_takes_the_declared_shape(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "any", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    manifest = entry("inputs", "x", "[-1, 2]") + entry("outputs", "y", "[-1, 2]")
    report = scan_graph(tmp_path, manifest, bytes(model.SerializeToString()))
    assert report.profile is not None, report.reason
    assert (report.spec.batched, report.spec.inputs[0].shape) == (True, (-1, 2))
