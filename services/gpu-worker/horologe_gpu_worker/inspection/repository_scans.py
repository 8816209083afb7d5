"""Scans of models: every version is inspected in a process and then adopted by the worker's model store.

The worker core learns the state of each version as it changes, and the result of the whole scan at its end.
"""

from __future__ import annotations

import os
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, ModelFailed, Status, describe_exception, encodable
from horologe_common.wire import ModelReport
from horologe_gpu_worker.core.lanes import Finished, Operation, VersionScanned
from horologe_gpu_worker.inspection.inspection_messages import READING, InspectionSetup
from horologe_gpu_worker.inspection.inspection_pool import InspectionPool, InspectionRequest
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.modelstore import waiting_report
from horologe_gpu_worker.repository.profiling import ON_DEVICE
from horologe_gpu_worker.settings import device_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_gpu_worker.inspection.inspection_messages import Inspected
    from horologe_gpu_worker.repository.modelstore import ModelStore
    from horologe_gpu_worker.settings import WorkerSettings

    Post = Callable[[Finished | VersionScanned], None]
    """Send a message to the worker core. May be called on any thread."""

log = logger("scan")


class Scans(Protocol):
    """Runs the operations `scan` of a worker."""

    def start(self, post: Post) -> None:
        """Accept operations from now on."""

    def begin_scan(self, operation: Operation) -> None:
        """Scan a model. Does not block. The core gets VersionScanned messages, and Finished at the end."""

    def stop(self) -> None:
        """Stop the running scans."""


class _ModelScan:
    """A running scan of all versions of a model."""

    def __init__(self, operation: Operation, folders: list[Path]) -> None:
        self.operation = operation
        self.name = operation.model.partition("/")[0]
        self.begin_ns = monotonic_ns()
        self.open = {folder.name: True for folder in folders}
        self.reports: dict[str, ModelReport] = {}


class RepositoryScans:
    """All running scans. Models are inspected by `pool` and adopted by `store`.

    What a runtime does in this process is done for one model at a time. It cannot be stopped, only abandoned, so a
    process has shown before that the model can be read, and on the CPU that it runs.
    """

    def __init__(self, store: ModelStore, pool: InspectionPool, load_timeout_ns: int) -> None:
        self._store = store
        self._pool = pool
        self._load_timeout_ns = load_timeout_ns
        self._operations: SimpleQueue[Operation | None] = SimpleQueue()
        self._lister = Thread(target=self._list_models, name="scan", daemon=True)
        self._lock = Lock()
        """Protects `open` and `reports` of all scans."""
        self._adopting: dict[str, Lock] = {}
        """Runtime -> lock of the model that it adopts."""

    def start(self, post: Post) -> None:
        self._post = post
        self._pool.start()
        self._lister.start()

    def begin_scan(self, operation: Operation) -> None:
        self._operations.put(operation)

    def stop(self) -> None:
        self._operations.put(None)
        self._pool.stop()

    def _list_models(self) -> None:
        while (operation := self._operations.get()) is not None:
            name, begin_ns = operation.model.partition("/")[0], monotonic_ns()
            try:
                self._begin(operation, self._store.version_folders(name))
            except InvalidModel as error:
                log.warning("model unavailable", model=name, reason=error.reason)
                report = ModelReport(waiting_report(name, "").spec, None, encodable(error.reason))
                self._store.finish_model(name, [report])
                self._post(_finished(operation, begin_ns, models=(report,)))
            except Exception as error:
                log.exception("scan failed", model=name)
                reason = encodable(describe_exception(error))
                self._post(_finished(operation, begin_ns, status=Status.FAILED, reason=reason))

    def _begin(self, operation: Operation, folders: list[Path]) -> None:
        """Queue the inspections of all versions."""
        scan = _ModelScan(operation, folders)
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
            self._post(VersionScanned(scan.operation.action_id, report))

        def finish(inspected: Inspected | HorologeError) -> None:
            self._finish_version(scan, folder, inspected)

        return InspectionRequest(folder, self._store.content_hash(folder), show, finish)

    def _finish_version(self, scan: _ModelScan, folder: Path, inspected: Inspected | HorologeError) -> None:
        """Adopt the version, and finish the scan with its last one."""
        try:
            report = self._adopt(folder, inspected)
        except HorologeError as error:
            log.warning("model unavailable", model=f"{scan.name}/{folder.name}", reason=error.reason)
            report = ModelReport(waiting_report(scan.name, folder.name).spec, None, encodable(error.reason))
        with self._lock:
            del scan.open[folder.name]
            scan.reports[folder.name] = report
            last = not scan.open
        self._post(VersionScanned(scan.operation.action_id, report))
        if last:
            self._finish(scan)

    def _finish(self, scan: _ModelScan) -> None:
        reports = [scan.reports[version] for version in sorted(scan.reports)]
        self._store.finish_model(scan.name, reports)
        self._post(_finished(scan.operation, scan.begin_ns, models=tuple(reports)))

    def _adopt(self, folder: Path, inspected: Inspected | HorologeError) -> ModelReport:
        """Adopt the version within the timeout. Raises `HorologeError`."""
        if isinstance(inspected, HorologeError):
            raise inspected
        with self._lock:
            adopting = self._adopting.setdefault(inspected.result.report.spec.runtime, Lock())
        adopted: list[ModelReport] = []

        def adopt() -> None:
            adopted.append(self._store.adopt_version(folder, inspected.result, inspected.files))

        with adopting:
            thread = Thread(target=adopt, name="adopt", daemon=True)
            thread.start()
            thread.join(self._load_timeout_ns / 1e9)
        if not adopted:
            raise ModelFailed(
                f"{folder}: got no result within {self._load_timeout_ns / 1e9:g} s, while the worker prepared it, "
                "wanted a model that is prepared by then (worker.load_timeout_ns)"
            )
        return adopted[0]


def create_scans(settings: WorkerSettings, store: ModelStore) -> RepositoryScans:
    """Return the scans of a worker.

    Its processes inspect and measure on the CPU. Models of a CUDA device are only read there, because a second process
    would need memory of the device for all their weights and graphs.
    """
    device = device_config(settings)
    unmeasured: tuple[str, ...] = ()
    if device.cuda is not None:
        device, unmeasured = device._replace(device="cpu", share_percent=100.0), ON_DEVICE
    device = device._replace(host_bytes=0, emulated_device="")
    setup = InspectionSetup(os.fsencode(settings.repository), os.fsencode(settings.cache), device, unmeasured)
    return RepositoryScans(store, InspectionPool(setup, settings.inspections), settings.load_timeout_ns)


def _finished(
    operation: Operation,
    begin_ns: int,
    *,
    status: Status = Status.OK,
    reason: str = "",
    models: tuple[ModelReport, ...] = (),
) -> Finished:
    now_ns = monotonic_ns()
    return Finished(
        operation.action_id, operation.lane, status, begin_ns, now_ns, now_ns - begin_ns, reason=reason, models=models
    )
