"""Files of other servers in a model's folder are named in a note about the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model_folders import a_folder, an_emulated_model, onnx_bytes
from horologe_gpu_worker.repository.foreign_settings import foreign_notes, triton_fields
from horologe_gpu_worker.repository.modelstore import ModelStore

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
name: "m"  # the name: in a comment
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output { name: "y", data_type: TYPE_FP32, dims: [ 4 ] }
version_policy: { specific: { versions: [1, 3] } }
dynamic_batching { preferred_batch_size: [ 4, 8 ] priority_levels: 2 }
parameters: { key: "max_batch_size: 9" value: { string_value: "a\\"} b: 3" } }
instance_group <
  count: 2
>
"""


def test_fields_of_tritons_configuration() -> None:
    assert triton_fields(CONFIG) == {
        "name": "", "platform": "", "max_batch_size": "8", "input": "", "output": "", "version_policy": "",
        "dynamic_batching": "", "parameters": "", "instance_group": "",
    }  # fmt: skip


@given(st.text("{}[]<>:#\"'\\ \nab1", max_size=60))
def test_any_text_has_fields(text: str) -> None:
    triton_fields(text)


def test_a_configuration_of_triton_is_named_field_by_field(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path)
    (folder.parent / "config.pbtxt").write_text(CONFIG)
    (report,) = ModelStore(tmp_path, tmp_path / "cache").scan()[-1:]
    assert report.profile is not None
    (note,) = report.spec.notes
    for words in (
        "config.pbtxt of Triton is not used", "max_batch_size 8 (here: `batching` and `batch_sizes`)",
        "version_policy (here: every version is served)", "instance_group",
    ):  # fmt: skip
        assert words in note


@pytest.mark.parametrize(
    ("file", "server"),
    [
        ("model-settings.json", "MLServer"),
        ("1/model-settings.json", "MLServer"),
        ("1/MAR-INF/MANIFEST.json", "TorchServe"),
        ("model-config.yaml", "TorchServe"),
        ("1/config.pbtxt", "Triton"),
    ],
)
def test_files_of_other_servers_are_named(file: str, server: str, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "m", model_onnx=onnx_bytes())
    path = folder.parent / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    (note,) = foreign_notes(folder)
    assert f"{path.name if 'MAR' not in file else 'MAR-INF/MANIFEST.json'} of {server} is not used" in note


def test_files_that_are_damaged_or_long_do_not_stop_the_model(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path)
    path = folder.parent / "config.pbtxt"
    for content in (
        b"\xff\xfe" * 100,
        b"",
        b"{" * 100_000,
        b"a: 1 " * 1_000_000,
        b"".join(b"f%d: 1\n" % n for n in range(999)),
    ):
        path.write_bytes(content)
        (report,) = ModelStore(tmp_path, tmp_path / "cache").scan()[-1:]
        assert report.profile is not None
        (note,) = report.spec.notes
        assert len(note) < 1000


def test_a_model_that_cannot_be_served_has_its_notes_too(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "m", model_plan="TensorRT")
    (folder.parent / "config.pbtxt").write_text("backend: 'tensorrt'")
    (report,) = ModelStore(tmp_path, tmp_path / "cache").scan()
    assert report.profile is None
    assert "backend" in report.spec.notes[0]


def test_a_model_of_this_server_has_no_notes(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path)
    (folder.parent / "README.md").write_text("config.pbtxt")
    assert foreign_notes(folder) == ()
