"""What the worker core learns of a scan whose inspections are played by the test."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

from harness.model_folders import an_emulated_model
from horologe_common.status import ModelFailed
from horologe_gpu_worker.core.lanes import LaneOperation, VersionScanned
from horologe_gpu_worker.inspection.repository_scans import RepositoryScans
from horologe_gpu_worker.repository.modelstore import ModelStore

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_gpu_worker.core.lanes import Finished
    from horologe_gpu_worker.inspection.inspection_pool import InspectionRequest


class HeldPool:
    """Receives inspections and does not begin them."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[InspectionRequest] = SimpleQueue()
        self.submit = self.requests.put

    def start(self) -> None:
        pass

    stop = start


def test_a_version_with_a_result_is_never_loading_again(tmp_path: Path) -> None:
    """An adoption that was given up may still run: it waits for a model of the same content that hangs."""
    an_emulated_model(tmp_path / "models", name="late")
    pool = HeldPool()
    messages: list[Finished | VersionScanned] = []
    scans = RepositoryScans(ModelStore(tmp_path / "models", tmp_path / "cache"), pool)  # type: ignore[arg-type]
    scans.start(messages.append)
    scans.begin_scan(LaneOperation(1, 0, "scan", "late"))
    request = pool.requests.get(timeout=30)
    request.on_progress("loading late/1")
    request.on_result(ModelFailed("too slow"))
    request.on_progress("loading late/1")
    scans.stop()
    assert [message.report.loading for message in messages if isinstance(message, VersionScanned)] == [
        "loading late/1",
        "",
    ]
