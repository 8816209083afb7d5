"""Inspections of a model repository by real processes, without a worker."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from harness.waiting import until
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import Finished, LaneOperation, VersionScanned
from horologe_gpu_worker.fetching.mirror import Mirror
from horologe_gpu_worker.inspection.inspection_pool import QUANTUM_NS, SLOW_MAX
from horologe_gpu_worker.inspection.repository_scans import create_scans
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.settings import WorkerSettings, resolve_device

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_common.wire import ModelReport


class RunningScans:
    """Scans of `<folder>/models` with the settings of a worker. `quantum_ns`, `slow_max`: of the `InspectionPool`."""

    def __init__(
        self,
        folder: Path,
        *,
        inspections: int = 0,
        quantum_ns: int = QUANTUM_NS,
        slow_max: int = SLOW_MAX,
        **settings: Any,
    ) -> None:
        repository = settings.pop("repository", str(folder / "models"))
        self.settings = WorkerSettings(repository=repository, cache=str(folder / "cache"), **settings)
        mirror = Mirror(repository, folder / "cache", self.settings.fetch_timeout_ns)
        self.store = ModelStore(mirror.root, folder / "cache", settings=resolve_device(self.settings), mirror=mirror)
        self.scans = create_scans(self.settings, self.store, inspections, quantum_ns, slow_max)
        self.finished: SimpleQueue[Finished] = SimpleQueue()
        self.reports: dict[str, ModelReport] = {}
        """Last report of each version."""
        self.progress: dict[str, list[str]] = {}
        self._lock = Lock()
        self._scans = 0
        self.scans.start(self._receive)

    def _receive(self, message: Finished | VersionScanned) -> None:
        if isinstance(message, Finished):
            self.finished.put(message)
            return
        with self._lock:
            key = message.report.spec.key
            self.reports[key] = message.report
            self.progress.setdefault(key, []).append(message.report.loading)

    def begin(self, *names: str) -> None:
        for name in names:
            self._scans += 1
            self.scans.begin_scan(LaneOperation(self._scans, 0, "scan", name))

    def scan(self, name: str) -> tuple[ModelReport, ...]:
        """Scan a model and return the reports of its versions."""
        self.begin(name)
        finished = self.finished.get(timeout=30)
        assert finished.status == Status.OK, finished.reason
        return tuple(finished.models)

    def begin_all(self) -> None:
        """Scan all models, as a worker does when it starts."""
        self.begin(*dict.fromkeys(report.spec.name for report in self.store.list_models()))

    def wait_served(self, *names: str) -> None:
        """Wait until version 1 of these models has a profile."""

        def served() -> bool:
            reports = [self.reports.get(f"{name}/1") for name in names]
            return all(report and report.profile for report in reports)

        until(served)

    def is_loading(self, name: str) -> bool:
        report = self.reports.get(f"{name}/1")
        return report is None or bool(report.loading)
