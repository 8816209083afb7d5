"""The committed models are what the export script makes, and are as good as the demo says."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from harness.scripts import load_script
from horologe_cli.demo import digits
from horologe_common.clock import ms
from horologe_gpu_worker.repository.manifest import read_manifest
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.runtimes import RUNTIMES

ROOT = Path(__file__).resolve().parents[2]
DIGITS = {"digits-linear": 0.96, "digits-mlp": 0.97, "digits-cnn": 0.99, "novice": 0.6}
"""Model -> accuracy on held-out images that it has at least, on any machine."""


@cache
def export_script() -> Any:
    return load_script("models/export.py", "models_export")


def probabilities(path: Path) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(path))
    images, _ = digits.held_out()
    return np.asarray(session.run(["probabilities"], {"image": images})[0])


def accuracy(path: Path) -> float:
    return float((probabilities(path).argmax(1) == digits.held_out()[1]).mean())


def test_the_committed_data_set_is_that_of_scikit_learn(tmp_path: Path) -> None:
    export_script().export_digits(tmp_path / "digits.npz")
    with np.load(digits.DATA) as committed, np.load(tmp_path / "digits.npz") as rebuilt:
        for name in ("images", "digits"):
            np.testing.assert_array_equal(committed[name], rebuilt[name])


def test_the_split_is_fixed_and_shares_no_image() -> None:
    images, labels = digits.held_out()
    assert (images.shape, images.dtype, labels.shape) == ((450, 64), np.dtype(np.float32), (450,))
    assert [int(label) for label in labels[:8]] == [0, 4, 8, 2, 6, 0, 4, 8]
    assert digits.training()[0].shape == (1347, 64)


@pytest.mark.parametrize("name", DIGITS)
def test_committed_model_keeps_its_accuracy_and_a_rebuilt_one_matches(name: str, tmp_path: Path) -> None:
    committed = ROOT / "models" / name / "1" / "model.onnx"
    rebuilt = export_script().export(tmp_path, f"models/{name}/1")
    assert accuracy(committed) >= DIGITS[name]
    assert abs(accuracy(rebuilt) - accuracy(committed)) <= 0.01
    agree = (probabilities(rebuilt).argmax(1) == probabilities(committed).argmax(1)).mean()
    assert agree >= 0.99


def test_the_dearest_model_is_the_most_accurate() -> None:
    scores = {name: accuracy(ROOT / "models" / name / "1" / "model.onnx") for name in DIGITS}
    assert max(scores, key=scores.__getitem__) == "digits-cnn"


@pytest.mark.parametrize("folder", ["models/noop/1", "benchmarks/models/cnn-10ms/1", "benchmarks/models/image-600k/1"])
def test_models_without_data_are_rebuilt_as_committed(folder: str, tmp_path: Path) -> None:
    ours, again = (onnx.load(root / folder / "model.onnx").graph for root in (ROOT, tmp_path) if _made(root, folder))
    assert [node.op_type for node in again.node] == [node.op_type for node in ours.node]
    for mine, theirs in zip(ours.initializer, again.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(mine), numpy_helper.to_array(theirs))


def _made(root: Path, folder: str) -> bool:
    return root == ROOT or export_script().export(root, folder).exists()


def test_noop_sums() -> None:
    session = onnxruntime.InferenceSession(str(ROOT / "models/noop/1/model.onnx"))
    x = np.arange(32, dtype=np.float32).reshape(2, 16)
    assert session.run(["sum"], {"x": x})[0].tolist() == [[120.0], [376.0]]


def test_every_model_of_the_demo_can_be_served_and_has_an_slo(tmp_path: Path) -> None:
    reports = ModelStore(ROOT / "models", tmp_path, report=lambda line: None).scan()
    assert {report.spec.name for report in reports} == {*DIGITS, "decode-png", "noop"}
    assert all(report.profile is not None and report.spec.slo_ns > 0 for report in reports)


def test_every_model_of_the_benchmarks_has_a_signature_and_an_slo() -> None:
    folders = {path.parent for path in (ROOT / "benchmarks" / "models").glob("*/*/model.toml")}
    specs = {
        folder.parent.name: RUNTIMES[read_manifest(folder).runtime or "onnx"]().inspect(folder) for folder in folders
    }
    assert specs.pop("text-encoder").padded
    assert set(specs) == {"cnn-10ms", "image-600k", "emulated-resnet50"}
    assert all(spec.batched and spec.batch_sizes == (1, 2, 4, 8, 16) for spec in specs.values())
    assert all(spec.slo_ns == ms(100) for spec in specs.values())
