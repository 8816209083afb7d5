"""Repositories in S3, Google Cloud Storage, Azure and Hugging Face's hub, against local servers of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpu_worker.inspection_harness import RunningScans
from gpu_worker.store_servers import store_server
from harness.model_folders import a_python_model, an_onnx_model
from horologe_common.status import ModelFailed
from horologe_gpu_worker.fetching import downloads
from horologe_gpu_worker.fetching.downloads import Downloads

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "hf"])
@pytest.mark.filterwarnings("default")  # those of the stores' packages
def test_models_of_a_store_are_served_and_verified(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    an_onnx_model(remote)
    a_python_model(remote)
    with store_server(kind, remote, monkeypatch) as url:
        running = RunningScans(tmp_path, repository=url)
        try:
            assert [report.spec.key for report in running.store.list_models()] == ["code/1", "graph/1"]
            (report,) = running.scan("graph")
            assert report.reason == ""
            model = running.store.open(report.spec)
            row = np.ones((1, 4), np.float32)
            np.testing.assert_array_equal(model.run(1, {"x": row})["y"], row)
            model.close()
        finally:
            running.scans.stop()
        check_resumed_files(url, remote / "graph" / "1" / "model.onnx", tmp_path / "files", monkeypatch)


def check_resumed_files(url: str, original: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch a file whose first part is there, and then one whose part is wrong."""
    monkeypatch.setattr(downloads, "CHUNK_BYTES", 32)
    folder.mkdir()
    fetcher = Downloads(folder, lambda text: None)
    (file,) = [file for file in fetcher.store(url).list_files(url) if file.name == "graph/1/model.onnx"]
    for part in (original.read_bytes()[:40], bytes(40)):
        path = fetcher.fetch(file)
        assert path.read_bytes() == original.read_bytes()
        path.unlink()
        path.with_suffix(".partial").write_bytes(part)
    with pytest.raises(ModelFailed, match=r"graph/1/model\.onnx: got a file of "):
        fetcher.fetch(file)
