"""Models that the worker serves: scans of the repository, and the replacement of changed models. Pure.

A scan reads a model while its loaded copies serve. If the content has changed, every share that holds the model opens
the new content beside the old one and then closes the old one. The scan is answered when no share can run the old
content any more, and all actions that a lane held then have ended. A model that is not served yet is reported as its
versions change: a version that can be served does not wait for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms, us
from horologe_common.core.protocol import Out
from horologe_common.models import Profile
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import LaneOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.core.infer_lifecycle import InferLifecycle
    from horologe_gpu_worker.core.lanes import Finished, VersionScanned
    from horologe_gpu_worker.core.residency import Requester, Residency

REQUESTERS_MAX = 1024
"""Limit of Scans of a model that wait for its next scan. Further ones are dropped."""
FIRST_ID = 1 << 63
"""Ids of scans and replacements start here. Ids of actions have 63 bits, 32 of them the controller's incarnation."""
ANNOUNCE_NS, ANNOUNCE_MODEL_NS = ms(50), us(250)
"""Minimum interval between announcements of changes that no controller has requested, and what each model adds. A
Register of 4,000 models keeps its receivers busy for a tenth of a second.
"""
RETIRED = "not in the repository any more, or left out by `versions`: serves the requests that it has"
FIRST_RUNS = 5
"""Runs of one batch size after which a model is measured: as many as it takes at least on made-up inputs. The first is
slow, because the model has had no warm-up. The median does not count it."""


class _Scan:
    def __init__(self, name: str, requesters: list[Requester]) -> None:
        self.name = name
        self.requesters = requesters
        """Empty for the scan with which the worker starts."""
        self.scanned: dict[str, ModelReport | None] | None = None
        """Result by key, once it has arrived; None for a model that is not in the repository any more."""
        self.replacements: dict[tuple[int, str], int] = {}
        """Share and model whose copy is replaced -> id of the operation; 0: it has not begun."""
        self.old_actions: dict[int, bool] | None = None
        """Actions in lanes when the last replacement ended, which may have run on the old content."""


class ServedModels:
    """Reports of all models, by key. One scan of each model runs at a time; further Scans wait for its next scan.

    A Scan never joins a scan that runs already, because that may have read the files before they changed. Models of
    which the given report says that they have not been read are scanned at the first tick.
    """

    def __init__(
        self, reports: Sequence[ModelReport], shares: Sequence[Residency], infers: InferLifecycle, lanes: str
    ) -> None:
        self.reports = {report.spec.key: report for report in reports}
        self.out: list[Out] = []
        self._first_runs = _FirstRuns()
        self._shares = shares
        self._infers = infers
        self._lanes = lanes
        self._last_id = FIRST_ID
        self.waiting: dict[str, list[Requester]] = {
            report.spec.name: [] for report in reports if report.loading and not report.profile
        }
        """Name of a model -> requesters of its next scan."""
        self.running: dict[str, _Scan] = {}
        """Running scans by the name of the model."""
        self._scan_ids: dict[int, str] = {}
        """Id of a scan operation -> the name of the model."""
        self.retired: dict[str, bool] = {}
        """Versions that the repository has no more, and that a share holds."""
        self.changed = False
        """Reports have changed that no controller requested. They are announced at `announce_ns` or later."""
        self.announce_ns = 0

    def find_for_load(self, key: str) -> ModelReport | None:
        """Return the report of the content that a LOAD would open now."""
        scan = self.running.get(key.partition("/")[0])
        scanned = (scan.scanned if scan else None) or {}
        return scanned[key] if key in scanned else self.reports.get(key)

    def observe_exec(self, spec: ModelSpec, batch_size: int, took_ns: int) -> None:
        """Measure a model that has a first estimate only. Its profile replaces the estimate after enough EXECs."""
        report = self.reports.get(spec.key)
        profile = report.profile if report and report.spec.content_hash == spec.content_hash else None
        if report is None or profile is None or profile.measured:
            return
        if exec_ns := self._first_runs.observe(spec, batch_size, took_ns):
            self.reports[spec.key] = msgspec.structs.replace(report, profile=Profile(exec_ns, profile.load_ns), note="")
            self.changed = True

    def request_scan(self, sender: str, name: str, scan_id: int) -> None:
        """Scan a model for a controller, after the running scan of this model."""
        requesters = self.waiting.setdefault(name, [])
        if len(requesters) < REQUESTERS_MAX:
            requesters.append((sender, scan_id))

    def scan_changed(self, names: Iterable[str]) -> None:
        """Scan models whose files have changed, for nobody in particular."""
        for name in names:
            self.waiting.setdefault(name, [])

    def update_version(self, message: VersionScanned) -> None:
        """Store the state of a version while its model is scanned, unless an earlier content is served meanwhile."""
        report = message.report
        known = self.reports.get(report.spec.key)
        if message.scan_id not in self._scan_ids or (known is not None and known.profile is not None):
            return
        if report.loading and known is not None:
            report = msgspec.structs.replace(report, spec=known.spec)
        self.changed |= report != known
        self.reports[report.spec.key] = report

    def finish_scan(self, finished: Finished) -> None:
        """Store the result of a scan, and mark the copies to replace."""
        name = self._scan_ids.pop(finished.action_id, None)
        if name is None:
            return
        scan = self.running[name]
        keys = [key for key in self.reports if not name or key.partition("/")[0] == name]
        if finished.status == Status.OK:
            scanned: dict[str, ModelReport | None] = dict.fromkeys(keys)
            scanned |= {report.spec.key: report for report in finished.models}
        else:
            failed = {"reason": finished.reason, "loading": ""}
            scanned = {key: msgspec.structs.replace(self.reports[key], **failed) for key in keys}
        scan.scanned = scanned
        for key, report in scanned.items():
            old = self.reports.get(key)
            if old is None or old.profile is None:
                continue
            holders = [share for share in self._shares if key in share.pages]
            if report is None:
                if holders:
                    scanned[key] = msgspec.structs.replace(old, reason=RETIRED, retired=True)
            elif report.profile is None and holders:
                scanned[key] = msgspec.structs.replace(old, reason=report.reason)
            elif report.profile is not None and report.spec.content_hash != old.spec.content_hash:
                scan.replacements |= dict.fromkeys([(share.share, key) for share in holders], 0)

    def finish_replacement(self, finished: Finished) -> None:
        """End the replacement. If the new content could not be opened, unload the model from the share."""
        for scan in self.running.values():
            for (share, model), operation_id in list(scan.replacements.items()):
                if operation_id == finished.action_id:
                    del scan.replacements[share, model]
                    report = self.find_for_load(model)
                    pages = report.spec.pages if report and finished.status == Status.OK else 0
                    self._shares[share].resize_model(model, pages, operation_id)

    def tick(self, now_ns: int) -> list[Requester] | None:
        """Start scans and replacements. Return the requesters of scans that have been completed.

        Every controller must then get the reports. None: it must not. Changes that no controller has requested are
        announced together, because a Register contains all models.
        """
        completed: list[Requester] = []
        self._drop_retired()
        for scan in list(self.running.values()):
            if scan.scanned is not None and self._is_complete(scan):
                self._complete_scan(scan)
                completed += scan.requesters
        for name in [name for name in self.waiting if name not in self.running]:
            self.running[name] = _Scan(name, self.waiting.pop(name))
            self._scan_ids[self._post("scan", 0, name)] = name
        if not completed and not (self.changed and now_ns >= self.announce_ns):
            return None
        self.changed = False
        self.announce_ns = now_ns + ANNOUNCE_NS + len(self.reports) * ANNOUNCE_MODEL_NS
        return completed

    def check(self) -> None:
        for name, scan in self.running.items():
            assert name == scan.name
            assert scan.scanned is not None or not scan.replacements
        assert all(name in self.running for name in self._scan_ids.values())

    def _is_complete(self, scan: _Scan) -> bool:
        """Start the replacements, and return whether no share can run the old content any more."""
        for (share, model), operation_id in list(scan.replacements.items()):
            if not operation_id:
                self._start_replacement(scan, self._shares[share], model)
        if scan.replacements:
            return False
        if scan.old_actions is None:
            scanned = scan.scanned or {}
            changed = [key for key, report in scanned.items() if report is not self.reports.get(key)]
            scan.old_actions = {key: True for model in changed for key in self._infers.ids_in_lanes(model)}
        scan.old_actions = {key: True for key in scan.old_actions if key in self._infers}
        return not scan.old_actions

    def _start_replacement(self, scan: _Scan, share: Residency, model: str) -> None:
        """Open the new content beside the old copy, unless that was unloaded or the new content needs more pages.

        The controller plans a LOAD that needs more pages. A copy that is being loaded is replaced after its LOAD.
        """
        if share.is_loading(model):
            return
        report = self.find_for_load(model)
        if report is None or report.spec.pages > share.pages.held.get(model, 0):
            del scan.replacements[share.share, model]
            share.resize_model(model, 0, self._next_id())
        else:
            scan.replacements[share.share, model] = self._post("replace", share.share, model)

    def _complete_scan(self, scan: _Scan) -> None:
        for key, report in (scan.scanned or {}).items():
            old = self.reports.pop(key, None)
            if report is not None:
                self.reports[key] = report = old if old and _is_measured_twin(old, report) else report
                if report.retired:
                    self.retired[key] = True
            self.changed |= report != old
            if old and old is not report:
                self._first_runs.discard(old.spec)
        del self.running[scan.name]

    def _drop_retired(self) -> None:
        """Remove the versions that the repository has no more, once no share holds them."""
        for key in [key for key in self.retired if not any(key in share.pages for share in self._shares)]:
            del self.retired[key]
            if (report := self.reports.get(key)) is not None and report.retired:
                del self.reports[key]
                self._first_runs.discard(report.spec)
                self.changed = True

    def _post(self, lane: str, share: int, model: str) -> int:
        operation_id = self._next_id()
        self.out.append(Out(self._lanes, LaneOperation(operation_id, share, lane, model)))
        return operation_id

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _is_measured_twin(report: ModelReport, scanned: ModelReport) -> bool:
    """Return True if `report` has measured, by its first runs, the content that the scan has a first estimate of."""
    unmeasured = scanned.profile is not None and not scanned.profile.measured
    measured = report.profile is not None and report.profile.measured
    return unmeasured and measured and report.spec.content_hash == scanned.spec.content_hash


def scans_of(controller: str, requesters: Iterable[Requester]) -> tuple[int, ...]:
    """Return the ids of the controller's own Scans."""
    return tuple(scan_id for sender, scan_id in requesters if sender == controller)


class _FirstRuns:
    """EXEC times by model content and batch size, until there are enough of one size for a profile."""

    def __init__(self) -> None:
        self._times_ns: dict[tuple[str, str], dict[int, list[int]]] = {}

    def observe(self, spec: ModelSpec, batch_size: int, took_ns: int) -> dict[int, int] | None:
        """Add a successful EXEC. Return the times in ns by batch size if there are enough, None before."""
        content = spec.key, spec.content_hash
        times_ns = self._times_ns.setdefault(content, {})
        times_ns.setdefault(batch_size, []).append(took_ns)
        if len(times_ns[batch_size]) < FIRST_RUNS:
            return None
        del self._times_ns[content]
        return _times_of_sizes(spec, {size: sorted(times)[len(times) // 2] for size, times in times_ns.items()})

    def discard(self, spec: ModelSpec) -> None:
        """Discard the times of a content that is not served any more."""
        self._times_ns.pop((spec.key, spec.content_hash), None)


def _times_of_sizes(spec: ModelSpec, measured_ns: dict[int, int]) -> dict[int, int]:
    """Return a time for every batch size. One that has not run takes as long per row as the next smaller one that has,
    or as long as the next larger one: no batch is taken to be faster than a larger one.
    """
    exec_ns: dict[int, int] = {}
    for size in spec.batch_sizes:
        smaller = max((known for known in measured_ns if known <= size), default=0)
        larger = min((known for known in measured_ns if known >= size), default=0)
        exec_ns[size] = measured_ns[smaller] * size // smaller if smaller else measured_ns[larger]
    return exec_ns
