"""What the controller counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import instance
from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_common.core.counters import Stats
    from horologe_common.wire import Result
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.requests.request import Request

STATUS_NAMES = {int(status): status.name for status in Status}


def side_of(error_ns: int) -> str:
    """`over`: no longer, or no later, than predicted (Clockwork section 6.5)."""
    return "over" if error_ns <= 0 else "under"


class Account(msgspec.Struct):
    """What a model has been run for."""

    batches: int = 0
    rows: int = 0
    exec_ns: int = 0


class Accounts:
    """Counts what has ended; per model in plain numbers, which become metrics when somebody reads them."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._models: dict[tuple[str, str], Account] = {}

    def ended(self, action: Action, result: Result, took_ns: int, end_ns: int) -> None:
        """An action has ended, at `end_ns` of our clock: how, and how well its duration and its end were predicted."""
        stats = self._stats
        stats.count("horologe_actions_total", action.kind, STATUS_NAMES[result.status])
        if result.status:
            return
        errors_ns = {
            "horologe_prediction_error_seconds": took_ns - action.expected_ns,
            "horologe_completion_error_seconds": end_ns - action.promised_ns,
        }
        for name, error_ns in errors_ns.items():
            if not result.rows:  # else it was a smaller batch than the one predicted
                stats.observe(name, action.kind, side_of(error_ns), value=abs(error_ns))
        if action.requests:
            spec = action.requests[0].spec
            labels = spec.name, spec.version
            rows = sum(request.rows for request in action.requests)
            rows -= sum(action.requests[row.id].rows for row in result.rows)
            account = self._models.get(labels)
            if account is None:
                account = self._models[labels] = Account()
            account.batches += 1
            account.rows += rows
            account.exec_ns += took_ns
            stats.observe("horologe_batch_rows", *labels, value=rows)

    def refresh(self, now_ns: int, cluster: Cluster, requests: Iterable[Request]) -> None:
        """Bring up to date what follows from the counts and from the state of things: models, shares, open requests."""
        stats = self._stats
        for labels, account in self._models.items():
            stats.set("nv_inference_exec_count", *labels, to=account.batches)
            stats.set("nv_inference_count", *labels, to=account.rows)
            stats.set("nv_inference_compute_infer_duration_us", *labels, to=account.exec_ns // 1000)
        shares = {(instance(share.worker), str(share.number)): share.slowness(now_ns) for share in cluster.shares()}
        self._gauge("horologe_device_slowness", shares)
        waiting: dict[tuple[str, str], float] = {(spec.name, spec.version): 0 for spec in cluster.specs.values()}
        for request in requests:
            labels = request.spec.name, request.spec.version
            waiting[labels] = waiting.get(labels, 0) + 1
        self._gauge("nv_inference_pending_request_count", waiting)

    def _gauge(self, name: str, found: Mapping[tuple[str, str], float]) -> None:
        """A gauge as it is now; what it was of others, which are gone, is forgotten."""
        values = self._stats.values
        for key in [key for key in list(values) if key[0] == name and key[1:] not in found]:
            del values[key]
        for labels, value in found.items():
            self._stats.set(name, *labels, to=value)
