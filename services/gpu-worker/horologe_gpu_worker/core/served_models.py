"""Models that the worker serves: scans of the repository, and the replacement of changed models. Pure.

A scan reads a model while its loaded copies serve. If the content has changed, every share that holds the model opens
the new content beside the old one and then closes the old one. The scan is answered when no share can run the old
content any more, and all actions that a lane held then have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.models import Profile
from horologe_common.status import Status
from horologe_gpu_worker.core.first_runs import FirstRuns
from horologe_gpu_worker.core.lanes import Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.core.infer_lifecycle import InferLifecycle
    from horologe_gpu_worker.core.lanes import Finished
    from horologe_gpu_worker.core.residency import Residency

Requester = tuple[str, int]
"""Address of the controller that sent a Scan, and the id of the Scan."""
REQUESTERS_MAX = 1024
"""Limit of Scans of a model that wait for its next scan. Further ones are dropped."""
FIRST_ID = 1 << 63
"""Ids of scans and replacements start here. Ids of actions have 63 bits, 32 of them the controller's incarnation."""


class _Replacement(NamedTuple):
    """A share that replaces its copy of a model."""

    share: int
    model: str


class ServedModels:
    """Reports of all models, by key. One scan runs at a time; Scans that arrive meanwhile wait for the next.

    A Scan never joins a scan that runs already, because that may have read the files before they changed.
    """

    def __init__(
        self, reports: Sequence[ModelReport], shares: Sequence[Residency], infers: InferLifecycle, lanes: str
    ) -> None:
        self.reports = {report.spec.key: report for report in reports}
        self.out: list[Out] = []
        self.is_busy = False
        """True if a scan runs or waits, so that `tick` must be called in each turn."""
        self.profiles_changed = False
        """True if a report has a profile that no controller has yet."""
        self._first_runs = FirstRuns()
        self._shares = shares
        self._infers = infers
        self._lanes = lanes
        self._last_id = FIRST_ID
        self._waiting: dict[str, list[Requester]] = {}
        """Name of a model -> requesters of its next scan."""
        self._running: tuple[str, list[Requester]] | None = None
        """Name of the model that is scanned, and the requesters. None: no scan runs."""
        self._scanned: dict[str, ModelReport | None] | None = None
        """Result of the running scan by key; None for a model that is not in the repository any more."""
        self._replacements: dict[_Replacement, int] = {}
        """Replacements that have not ended, with the id of their operation; 0: not begun."""
        self._old_actions: dict[int, bool] | None = None
        """Actions in lanes when the last replacement ended, which may have run on the old content."""

    def find_for_load(self, key: str) -> ModelReport | None:
        """Return the report of the content that a LOAD would open now."""
        scanned = self._scanned or {}
        return scanned[key] if key in scanned else self.reports.get(key)

    def observe_exec(self, spec: ModelSpec, batch_size: int, took_ns: int) -> None:
        """Measure a model that has a first estimate only. Its profile replaces the estimate after enough EXECs."""
        report = self.reports.get(spec.key)
        profile = report.profile if report and report.spec.content_hash == spec.content_hash else None
        if report is None or profile is None or profile.measured:
            return
        if exec_ns := self._first_runs.observe(spec, batch_size, took_ns):
            self.reports[spec.key] = msgspec.structs.replace(report, profile=Profile(exec_ns, profile.load_ns), note="")
            self.profiles_changed = True

    def request_scan(self, sender: str, name: str, scan_id: int) -> None:
        """Scan a model for a controller, after the running scan."""
        self.is_busy = True
        requesters = self._waiting.setdefault(name, [])
        if len(requesters) < REQUESTERS_MAX:
            requesters.append((sender, scan_id))

    def finish_scan(self, finished: Finished) -> None:
        """Store the result of the running scan, and mark the copies to replace."""
        if self._running is None or self._scanned is not None:
            return
        name = self._running[0]
        keys = [key for key in self.reports if not name or key.partition("/")[0] == name]
        scanned: dict[str, ModelReport | None]
        if finished.status == Status.OK:
            scanned = dict.fromkeys(keys) | {report.spec.key: report for report in finished.models}
        else:
            scanned = {key: msgspec.structs.replace(self.reports[key], reason=finished.reason) for key in keys}
        self._scanned = scanned
        for key, report in scanned.items():
            old = self.reports.get(key)
            if report is None or old is None or old.profile is None:
                continue
            holders = [share for share in self._shares if key in share.pages]
            if report.profile is None and holders:
                scanned[key] = msgspec.structs.replace(old, reason=report.reason)
            elif report.profile is not None and report.spec.content_hash != old.spec.content_hash:
                self._replacements |= dict.fromkeys([_Replacement(share.share, key) for share in holders], 0)

    def finish_replacement(self, finished: Finished) -> None:
        """End the replacement. If the new content could not be opened, unload the model from the share."""
        for replacement, operation_id in list(self._replacements.items()):
            if operation_id == finished.action_id:
                del self._replacements[replacement]
                share, report = self._shares[replacement.share], self.find_for_load(replacement.model)
                pages = report.spec.pages if report and finished.status == Status.OK else 0
                share.resize_model(replacement.model, pages, operation_id)

    def tick(self) -> list[Requester] | None:
        """Start scans and replacements. Return the requesters of a scan that has been completed, None if none has.

        Then `reports` are those of the scan, and every controller must get them.
        """
        if self._running is None:
            self._start_scan()
            return None
        if self._scanned is None:
            return None
        for replacement, operation_id in list(self._replacements.items()):
            if not operation_id:
                self._start_replacement(replacement)
        if self._replacements:
            return None
        if self._old_actions is None:
            changed = [key for key, report in self._scanned.items() if report is not self.reports.get(key)]
            self._old_actions = {key: True for model in changed for key in self._infers.ids_in_lanes(model)}
        self._old_actions = {key: True for key in self._old_actions if key in self._infers}
        return None if self._old_actions else self._complete_scan()

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._scanned is not None or not self._replacements
        assert self._running is not None or self._scanned is None
        assert self.is_busy or not (self._waiting or self._running)

    def _start_scan(self) -> None:
        if self._waiting:
            name = next(iter(self._waiting))
            self._running = name, self._waiting.pop(name)
            self._post("scan", 0, name)

    def _start_replacement(self, replacement: _Replacement) -> None:
        """Open the new content beside the old copy, unless that was unloaded or the new content needs more pages.

        The controller plans a LOAD that needs more pages. A copy that is being loaded is replaced after its LOAD.
        """
        share, report = self._shares[replacement.share], self.find_for_load(replacement.model)
        if share.is_loading(replacement.model):
            return
        held = share.pages.held.get(replacement.model, 0)
        if report is None or report.spec.pages > held:
            del self._replacements[replacement]
            share.resize_model(replacement.model, 0, self._next_id())
        else:
            self._replacements[replacement] = self._post("replace", replacement.share, replacement.model)

    def _complete_scan(self) -> list[Requester]:
        for key, report in (self._scanned or {}).items():
            old = self.reports.pop(key, None)
            if report is not None:
                self.reports[key] = old if old and _is_measured_twin(old, report) else report
            if old and old is not self.reports.get(key):
                self._first_runs.discard(old.spec)
        requesters = self._running[1] if self._running else []
        self._running = self._scanned = self._old_actions = None
        self._start_scan()
        self.is_busy = self._running is not None
        return requesters

    def _post(self, lane: str, share: int, model: str) -> int:
        operation_id = self._next_id()
        self.out.append(Out(self._lanes, Operation(operation_id, share, lane, model)))
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
