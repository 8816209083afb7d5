"""Models that fail on made-up inputs are served without a warm-up, by every runtime. Broken models are not served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpu_worker.repository_harness import (
    a_dividing_graph,
    a_dividing_program,
    a_module,
    a_program,
    a_store,
    an_input,
    an_output,
    only_report,
)
from harness.model_folders import a_folder, a_python_model
from horologe_common.models import ModelSpec
from horologe_common.status import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ZEROS = """
import os, time
class Model:
    past = None
    def predict_batch(self, inputs):
        x = inputs["x"]
        if not x.all():
            {failure}
        return {{"y": x}}
"""
FAILURES = {
    "raises": ("raise ValueError('no zeros')", "ValueError: no zeros"),
    "divides": ("1 // int(x[0, 0])", "ZeroDivisionError"),
    "indexes": ("[][int(x[0, 0])]", "IndexError"),
    "needs a state": ("self.past.shape", "AttributeError: 'NoneType'"),
    "exits": ("os._exit(3)", r"process ended (exit code 3)"),
    "segfaults": ("os.kill(os.getpid(), 11)", "process ended (SIGSEGV)"),
    "calls sys.exit": ("import sys; sys.exit(4)", "process ended (exit code 4)"),
    "returns None": ("return None", "predict_batch: got NoneType, wanted a dict"),
}
"""What a Python model does with zeros -> the text of the note."""


def floats(value: float) -> dict[str, Any]:
    return {"x": np.full((1, 4), value, np.float32)}


@pytest.mark.parametrize("kind", FAILURES)
def test_python_models_that_fail_on_zeros_answer_real_inputs(kind: str, tmp_path: Path) -> None:
    failure, text = FAILURES[kind]
    a_python_model(tmp_path / "models", ZEROS.format(failure=failure))
    store = a_store(tmp_path)
    (report,) = store.scan()
    assert report.profile is not None, report.reason
    assert (report.profile.measured, report.reason, set(report.profile.exec_ns)) == (False, "", {1, 2})
    assert report.note.startswith("not measured yet: failed on made-up inputs: model code/1: ")
    assert text in report.note
    assert report.profile.load_ns > 0
    model = store.open(report.spec)
    try:
        assert model.run(1, floats(2))["y"].tolist() == [[2, 2, 2, 2]]
        with pytest.raises(ModelFailed):
            model.run(1, floats(0))
    finally:
        model.close()


def test_a_model_that_hangs_on_zeros_is_not_waited_for(tmp_path: Path) -> None:
    a_python_model(tmp_path / "models", ZEROS.format(failure="time.sleep(3600)"), load_timeout='"1s"')
    store = a_store(tmp_path)
    (report,) = store.scan()
    assert "was not loaded within 1 s" in report.note
    model = store.open(report.spec)
    assert model.run(1, floats(2))["y"].tolist() == [[2, 2, 2, 2]]
    model.close()


def test_a_first_call_without_a_warm_up_may_take_long(tmp_path: Path) -> None:
    source = ZEROS.format(failure="raise ValueError").replace("return {", "time.sleep(1.5); return {")
    a_python_model(tmp_path / "models", source)
    store = a_store(tmp_path)
    (report,) = store.scan()
    model = store.open(report.spec)
    assert model.run(1, floats(2))["y"].tolist() == [[2, 2, 2, 2]]
    model.close()


def an_onnx_division(models: Path) -> None:
    manifest = an_input("x", "INT64", [-1, 2]) + an_output("INT64", [-1, 2])
    a_folder(models, "m", manifest, model_onnx=a_dividing_graph())


def a_pytorch_division(models: Path) -> None:
    a_dividing_program(models, an_input("x", "INT64", [-1, 2]))


@pytest.mark.parametrize("build", [an_onnx_division, a_pytorch_division])
def test_graphs_that_divide_answer_real_inputs(build: Callable[[Path], None], tmp_path: Path) -> None:
    build(tmp_path / "models")
    store, inputs = a_store(tmp_path), {"x": np.array([[3, 4]])}
    (report,) = store.scan()
    assert report.profile is not None
    assert not report.profile.measured
    for _ in range(2):  # the second time, from host memory
        model = store.open(report.spec)
        assert model.run(1, inputs)["y"].tolist() == [[4, 3]]
        with pytest.raises(ModelFailed):
            model.run(1, {"x": np.array([[0, 1]])})
        assert model.run(1, inputs)["y"].tolist() == [[4, 3]]
        model.close()
    (again,) = store.scan()
    assert again.profile is not None
    assert not again.profile.measured
    assert not list((tmp_path / "cache").rglob("*.json")), "an estimate is not kept as a profile"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise ImportError('no such library')", "no such library"),
        ("class Model:\n    def __init__(self): raise ValueError('no weights')", "no weights"),
        (
            "class Model:\n    def predict_batch(self, inputs): return {'y': inputs['x'].astype('f8')}",
            "got FP64",
        ),
        ("class Model:\n    def predict_batch(self, inputs): return {'y': inputs['x'][:, :2]}", r"got [1, 2], wanted"),
        ("class Model:\n    def predict_batch(self, inputs): return {'z': inputs['x']}", "got ['z'], wanted ['y']"),
        ("class Model:\n    def predict_batch(self, inputs): raise MemoryError('too much')", "too much"),
    ],
)
def test_a_model_that_no_input_could_help_is_unavailable(source: str, text: str, tmp_path: Path) -> None:
    a_python_model(tmp_path / "models", source)
    report = only_report(tmp_path)
    assert (report.profile, report.note) == (None, "")
    assert text in report.reason


@pytest.mark.parametrize("changes", ["weights", "inputs"])
def test_a_program_with_state_that_fails_on_zeros_is_unavailable(changes: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

    class Stateful(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            y = 12 // x
            (self.calls if changes == "weights" else x.view(-1)).add_(1)
            return {"y": y + self.calls}

    a_program(tmp_path / "models", Stateful(), (torch.ones(2, 2, dtype=torch.int64),))
    report = only_report(tmp_path)
    assert report.profile is None
    wanted = "calls" if changes == "weights" else "x"
    assert f"state: got a program that changes ['{wanted}'], wanted one without state" in report.reason


def test_a_program_that_changes_only_its_own_results_has_no_state(tmp_path: Path) -> None:
    module = a_module(lambda x: {"y": (12 // x).add_(1)})
    import torch

    a_program(tmp_path / "models", module, (torch.ones(2, 2, dtype=torch.int64),))
    report = only_report(tmp_path)
    assert report.profile is not None, report.reason
    assert "ZeroDivisionError" in report.note


def test_a_spec_without_shapes_decodes_as_before() -> None:
    """An older worker sends neither shapes nor notes."""
    fields = msgspec.to_builtins(ModelSpec("m", "1", "onnx", (), ()))[:-1]
    assert msgspec.convert(fields, ModelSpec).warmup_shapes == ()
