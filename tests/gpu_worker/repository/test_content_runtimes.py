"""What is hashed is what is read: each runtime computes with the files of the content that its answers name."""

from __future__ import annotations

import importlib.util
import os
import py_compile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpu_worker.repository_harness import a_program, a_store
from harness.model_folders import SIGNATURE, a_folder
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.runtimes.onnx.onnx_runtime import OnnxRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.wire import ModelReport

FIXED_NS = 1_577_836_800_000_000_000
MANIFEST = "batch_sizes = [1]\n"
MODEL = "class Model:\n    def predict_batch(self, inputs):\n        return {'y': inputs['x'] * FACTOR}\n"
IMPORTING = "from factors import FACTOR\n" + MODEL


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return a_store(tmp_path)


def fix_time(path: Path) -> Path:
    os.utime(path, ns=(FIXED_NS, FIXED_NS))
    return path


def scan(store: ModelStore) -> ModelReport:
    (report,) = store.scan()
    return report


def answer(store: ModelStore, report: ModelReport) -> float:
    """Return what the model answers to 1."""
    assert report.profile is not None, report.reason
    model = store.open(report.spec)
    try:
        return round(float(model.run(1, {"x": np.ones((1, 4), np.float32)})["y"][0, 0]), 3)
    finally:
        model.close()


def reading(place: str) -> str:
    return f"from pathlib import Path\nFACTOR = float((Path(__file__).parent / '{place}').read_text())\n" + MODEL


def on_path(place: str) -> str:
    """Return lines that add a folder, relative to the version's, to the path of imports."""
    return f"import sys\nfrom pathlib import Path\nsys.path.append(str(Path(__file__).parent / '{place}'))\n"


LAYOUTS = {
    "a module": ("factors.py", IMPORTING),
    "the model": ("model.py", ""),
    "a package": ("package/factors.py", "from package.factors import FACTOR\n" + MODEL),
    "a module beside": ("../factors.py", on_path("..") + IMPORTING),
    "a shared module": ("../__shared/factors.py", on_path("../__shared") + IMPORTING),
    "a module behind a link": ("linked/factors.py", "from linked.factors import FACTOR\n" + MODEL),
    "a hidden file": (".factor", reading(".factor")),
    "a file beside": ("../factor", reading("../factor")),
}
"""File that has the factor, and the source of the model."""


def write_layout(layout: str, folder: Path, factor: int) -> None:
    """Write the model, and a compiled file beside its first module as an import would."""
    place, source = LAYOUTS[layout]
    path = folder / place
    if layout == "a module behind a link" and factor == 1:
        (folder.parents[2] / "common").mkdir()
        (folder / "linked").symlink_to(folder.parents[2] / "common")
    path.parent.mkdir(exist_ok=True)
    (folder / "model.py").write_text(source)
    a_factor(path, factor, MODEL if layout == "the model" else "")


def a_factor(path: Path, factor: int, rest: str = "") -> None:
    path.write_text(f"FACTOR = {factor}\n{rest}" if path.suffix else str(factor))
    fix_time(path)
    if path.suffix and factor == 1:
        py_compile.compile(str(path), importlib.util.cache_from_source(str(path)))


def check_both_factors(store: ModelStore, write: Callable[[int], None]) -> None:
    write(1)
    first = scan(store)
    assert answer(store, first) == 1
    write(2)
    second = scan(store)
    assert second.spec.content_hash != first.spec.content_hash
    assert answer(store, second) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_python_model_runs_the_files_that_were_hashed(store: ModelStore, tmp_path: Path, layout: str) -> None:
    folder = a_folder(tmp_path / "models", "m", MANIFEST + SIGNATURE)
    check_both_factors(store, lambda factor: write_layout(layout, folder, factor))


def test_a_version_that_is_a_link_may_be_switched_to_another_folder(store: ModelStore, tmp_path: Path) -> None:
    version = tmp_path / "models" / "m" / "1"
    version.parent.mkdir(parents=True)

    def switch(factor: int) -> None:
        release = a_folder(tmp_path, f"release{factor}", MANIFEST + SIGNATURE, model_py=reading("factor"))
        a_factor(release / "factor", factor)
        version.unlink(missing_ok=True)
        version.symlink_to(release)

    check_both_factors(store, switch)


def test_a_module_that_is_no_part_of_the_model_is_named(store: ModelStore, tmp_path: Path) -> None:
    a_folder(
        tmp_path / "models", "m", MANIFEST + SIGNATURE,
        model_py=on_path("../..") + IMPORTING,
    )  # fmt: skip
    a_factor(tmp_path / "models" / "factors.py", 1)
    assert f"imports {tmp_path}/models/factors.py, wanted only modules that are part of the model" in scan(store).reason


def test_a_program_of_the_same_size_and_time_is_read_again(store: ModelStore, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

    class Scale(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.full((4,), factor))

        def forward(self, x: Any) -> Any:
            return {"y": x * self.factor}

    folder = a_folder(tmp_path / "models", "m", MANIFEST)
    contents, sizes = [], set()
    for number, factor in enumerate((1.0, 2.0, 1.0)):
        exported = a_program(tmp_path / str(number), Scale(factor), (torch.zeros(1, 4),))
        (folder / "model.pt2").write_bytes((exported / "model.pt2").read_bytes())
        sizes.add(fix_time(folder / "model.pt2").stat().st_size)
        report = scan(store)
        contents.append(report.spec.content_hash)
        assert answer(store, report) == factor
        assert answer(store, report) == factor, "loaded again"
    assert len(sizes) == 1
    assert len(set(contents)) >= 2


def a_graph(folder: Path, location: str, factor: float) -> Path:
    """Write a graph `y` = `x` * mean of weights, which are in a file of their own. Return that file."""
    weights = np.full(1 << 18, factor, np.float32)
    tensor = numpy_helper.from_array(weights, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    nodes = [helper.make_node("ReduceMean", ["w"], ["mean"], keepdims=0), helper.make_node("Mul", ["x", "mean"], ["y"])]
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, 4]) for end in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], [tensor]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    path = folder / location
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weights.tobytes())
    return fix_time(path)


@pytest.mark.parametrize(
    "location", ["w.bin", "./w.bin", "data/w.bin", ".w.bin", "data/../w.bin", "../w.bin", "w" * 200]
)
def test_weights_in_a_separate_file_are_those_that_were_hashed(
    store: ModelStore, tmp_path: Path, location: str
) -> None:
    folder = a_folder(tmp_path / "models", "m", MANIFEST)
    (folder / "data").mkdir()
    a_graph(folder, location, 1.0)
    first = scan(store)
    loaded = store.open(first.spec)
    path = a_graph(folder, location, 2.0)  # written in place: the file stays the same inode
    x = {"x": np.ones((1, 4), np.float32)}
    assert round(float(loaded.run(1, x)["y"][0, 0])) == 1, "a loaded copy serves the content that it was loaded with"
    second = scan(store)
    assert second.spec.content_hash != first.spec.content_hash
    assert answer(store, second) == 2
    os.truncate(path, 1)
    assert round(float(loaded.run(1, x)["y"][0, 0])) == 1, "a file that became shorter must not end the process"
    loaded.close()


def test_linked_weights_are_read_through_the_link(store: ModelStore, tmp_path: Path) -> None:
    """As in a cache of a model hub: the files are links to blobs."""
    folder, blobs = a_folder(tmp_path / "models", "m", MANIFEST), tmp_path / "blobs"
    path = a_graph(folder, "w.bin", 3.0)
    blobs.mkdir()
    for file in (path, folder / "model.onnx"):
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)
    report = scan(store)
    assert answer(store, report) == 3
    assert report.spec.weights_bytes > 1 << 20


@pytest.mark.parametrize("location", ["gone.bin", "/etc/hostname", "../../secret", "*/_ORT_MEM_ADDR_/*"])
def test_weights_that_are_no_part_of_the_model_are_named(store: ModelStore, tmp_path: Path, location: str) -> None:
    folder = a_folder(tmp_path / "models", "m", MANIFEST)
    a_graph(folder, "w.bin", 1.0)
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    graph.graph.initializer[0].external_data[0].value = location
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    (tmp_path / "secret").write_bytes(bytes(4 << 18))
    assert f"external data: got the file {location!r}, wanted one of model.onnx, w.bin" in scan(store).reason
    with pytest.raises(Exception, match="external data"):
        OnnxRuntime().inspect(folder)
