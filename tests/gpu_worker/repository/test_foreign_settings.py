"""Files of other servers in a model's folder are named in a note about the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.model_folders import a_folder, an_emulated_model, onnx_bytes
from horologe_gpu_worker.repository.foreign_settings import foreign_notes
from horologe_gpu_worker.repository.modelstore import ModelStore

if TYPE_CHECKING:
    from pathlib import Path


def test_a_configuration_of_triton_beside_a_model_toml_is_not_used(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path)
    (folder.parent / "config.pbtxt").write_text("max_batch_size: 8")
    (report,) = ModelStore(tmp_path, tmp_path / "cache").scan()[-1:]
    assert report.profile is not None
    assert report.spec.notes == ("config.pbtxt of Triton is not used, because there is a model.toml",)


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


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe" * 100, b"{" * 100_000, b"max_batch_size: 1 " * 100_000, b"input { name: " * 10_000, b"f: 1\n" * 999],
)
def test_a_damaged_configuration_is_the_reason_and_has_no_note(content: bytes, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "m", model_onnx=onnx_bytes())
    (folder.parent / "config.pbtxt").write_bytes(content)
    (report,) = ModelStore(tmp_path, tmp_path / "cache").scan()
    assert report.profile is None
    assert "config.pbtxt: " in report.reason
    assert len(report.reason) < 1000
    assert report.spec.notes == ()


def test_a_model_of_this_server_has_no_notes(tmp_path: Path) -> None:
    folder = an_emulated_model(tmp_path)
    (folder.parent / "README.md").write_text("config.pbtxt")
    assert foreign_notes(folder) == ()
