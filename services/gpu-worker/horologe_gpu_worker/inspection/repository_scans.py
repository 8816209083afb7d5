"""Scans of models: every version is inspected in a process and then adopted by the worker's model store.

The worker core learns the state of each version as it changes, and the result of the whole scan at its end.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import monotonic_ns, s
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, ModelFailed, Status, describe_exception, encodable
from horologe_common.wire import ModelReport
from horologe_gpu_worker.core.lanes import Finished, LaneOperation, VersionScanned, finish
from horologe_gpu_worker.inspection.inspection_pool import QUANTUM_NS, SLOW_MAX, InspectionPool, InspectionRequest
from horologe_gpu_worker.inspection.inspector import READING, InspectionSetup, overdue_reason
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.modelstore import unreadable_report, waiting_report
from horologe_gpu_worker.repository.profile_cache import ON_DEVICE
from horologe_gpu_worker.repository.version_inspector import VersionReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from horologe_gpu_worker.inspection.inspector import Inspected, Timeout
    from horologe_gpu_worker.repository.modelstore import ModelStore
    from horologe_gpu_worker.settings import WorkerSettings

    Post = Callable[[Finished | VersionScanned], None]
    """Send a message to the worker core. May be called on any thread."""

ISOLATED = ("python",)
"""Runtimes whose models run in processes of their own."""
ADOPT_MIN_NS, STOP_S = s(1), 2.0
"""Shortest time for an adoption, and seconds in which a stopped one ends."""

log = logger("scan")


class _ModelScan:
    """A running scan of all versions of a model."""

    def __init__(self, operation: LaneOperation, versions: int) -> None:
        self.operation = operation
        self.name = operation.model.partition("/")[0]
        self.begin_ns = monotonic_ns()
        self.versions = versions
        self.reports: dict[str, ModelReport] = {}


class RepositoryScans:
    """All running scans. Models are inspected by `pool` and adopted by `store`.

    What a runtime does in this process is done for one model at a time. It cannot be stopped, only abandoned, so a
    process has shown before that the model can be read, and on the CPU that it runs.
    """

    def __init__(self, store: ModelStore, pool: InspectionPool) -> None:
        self._store = store
        self._pool = pool
        self._operations: SimpleQueue[LaneOperation | None] = SimpleQueue()
        self._lister = Thread(target=self._list_models, name="scan", daemon=True)
        self._lock = Lock()
        """Protects the reports of all scans. Progress is sent under it, so a result is the last message."""
        self._adopting: dict[str, Lock] = {}
        """Runtime -> lock of the model that it adopts."""

    def start(self, post: Post) -> None:
        """Accept operations from now on."""
        self._post = post
        self._pool.start()
        self._lister.start()

    def begin_scan(self, operation: LaneOperation) -> None:
        """Scan a model. Does not block. The core gets VersionScanned messages, and Finished at the end."""
        self._operations.put(operation)

    def stop(self) -> None:
        self._operations.put(None)
        self._pool.stop()
        self._store.close()

    def _list_models(self) -> None:
        while (operation := self._operations.get()) is not None:
            name, begin_ns = operation.model.partition("/")[0], monotonic_ns()
            try:
                self._begin(operation, self._store.version_folders(name))
            except InvalidModel as error:
                log.warning("model unavailable", model=name, reason=error.reason)
                report = unreadable_report(name, error.reason)
                self._store.finish_model(name, [report])
                self._post(finish(operation, Status.OK, begin_ns, monotonic_ns(), models=(report,)))
            except HorologeError as error:
                log.warning("model not listed", model=name, reason=error.reason)
                self._post(_failed(operation, begin_ns, error.reason))
            except Exception as error:
                log.exception("scan failed", model=name)
                self._post(_failed(operation, begin_ns, describe_exception(error)))

    def _begin(self, operation: LaneOperation, folders: list[Path]) -> None:
        scan = _ModelScan(operation, len(folders))
        if not folders:
            self._finish(scan)
        for folder in folders:
            self._pool.submit(self._request(scan, folder))

    def _request(self, scan: _ModelScan, folder: Path) -> InspectionRequest:
        waiting = waiting_report(scan.name, folder.name)

        def show(text: str) -> None:
            if text != READING:
                log.info(text)
            report = msgspec.structs.replace(waiting, loading=encodable(text))
            with self._lock:
                if folder.name not in scan.reports:  # else by an adoption that was given up, and still waits
                    self._post(VersionScanned(scan.operation.action_id, report))

        return InspectionRequest(
            folder,
            self._store.content_hash(folder),
            show,
            lambda inspected, timeout: self._adopt(folder, inspected, timeout, show),
            lambda: self._store.stop_measuring(folder),
            lambda result: self._finish_version(scan, folder, result),
        )

    def _finish_version(self, scan: _ModelScan, folder: Path, result: VersionReport | HorologeError) -> None:
        """Store and report the version, and finish the scan with its last one."""
        if isinstance(result, HorologeError):
            spec = waiting_report(scan.name, folder.name).spec
            result = VersionReport(ModelReport(spec, None, encodable(result.reason)))
        report = self._store.store_version(folder, result)
        with self._lock:
            scan.reports[folder.name] = report
            last = len(scan.reports) == scan.versions
        self._post(VersionScanned(scan.operation.action_id, report))
        if last:
            self._finish(scan)

    def _finish(self, scan: _ModelScan) -> None:
        reports = [scan.reports[version] for version in sorted(scan.reports)]
        self._store.finish_model(scan.name, reports)
        self._post(finish(scan.operation, Status.OK, scan.begin_ns, monotonic_ns(), models=tuple(reports)))

    def _adopt(
        self, folder: Path, inspected: Inspected, timeout: Timeout, on_progress: Callable[[str], None]
    ) -> VersionReport:
        """Adopt the version. Raises `ModelFailed` if that takes longer than the timeout."""
        runtime, adopted, doing = inspected.result.report.spec.runtime, list[VersionReport](), ["preparing it"]

        def show(text: str) -> None:
            doing.append(text)
            on_progress(text)

        def adopt() -> None:
            adopted.append(self._store.adopt_version(folder, inspected.result, inspected.files, show))

        with self._turn_of(runtime):
            thread = Thread(target=adopt, name="adopt", daemon=True)
            thread.start()
            thread.join(max(ADOPT_MIN_NS, timeout.end_ns - monotonic_ns()) / 1e9)
            if not thread.is_alive() and adopted:
                return adopted[0]
            self._store.stop_measuring(folder)
            thread.join(STOP_S)
        raise ModelFailed(overdue_reason(folder, timeout.timeout_ns, doing[-1]))

    def _turn_of(self, runtime: str) -> AbstractContextManager[Any]:
        """Return the lock for one model of this runtime at a time; none if its models have their own processes."""
        if runtime in ISOLATED:
            return nullcontext()
        with self._lock:
            return self._adopting.setdefault(runtime, Lock())


def create_scans(
    settings: WorkerSettings,
    store: ModelStore,
    inspections: int = 0,
    quantum_ns: int = QUANTUM_NS,
    slow_max: int = SLOW_MAX,
) -> RepositoryScans:
    """Return the scans of a worker. `inspections`, `quantum_ns`, `slow_max`: see `InspectionPool`.

    Its processes inspect and measure on the CPU. Models of a CUDA device are only read there, because a second process
    would need memory of the device for all their weights and graphs. So are models that have their own processes, which
    the worker can stop and keep.
    """
    own = msgspec.structs.replace(settings, repository="", cache="", host_bytes=0, emulated_device="")
    unmeasured: tuple[str, ...] = ISOLATED
    if settings.cuda is not None:
        own, unmeasured = msgspec.structs.replace(own, device="cpu", share_percent=100.0), (*ISOLATED, *ON_DEVICE)
    setup = InspectionSetup(os.fsencode(settings.repository), os.fsencode(settings.cache), own, unmeasured)
    pool = InspectionPool(setup, inspections, quantum_ns, slow_max)
    return RepositoryScans(store, pool)


def _failed(operation: LaneOperation, begin_ns: int, reason: str) -> Finished:
    return finish(operation, Status.FAILED, begin_ns, monotonic_ns(), reason=encodable(reason))
