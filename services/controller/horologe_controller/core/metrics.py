"""Metrics of actions, models and shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import instance
from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_common.core.instruments import Stats
    from horologe_common.wire import Result
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.requests.request import Request

STATUS_NAMES = {int(status): status.name for status in Status}


def error_side(error_ns: int) -> str:
    """Return `over` if the prediction was too long or exact, `under` if too short (Clockwork section 6.5)."""
    return "over" if error_ns <= 0 else "under"


class ModelTotals(msgspec.Struct):
    """Executed work of a model since the start."""

    batches: int = 0
    rows: int = 0
    exec_ns: int = 0


class ActionMetrics:
    """Counts of actions. Totals per model are plain numbers until `refresh` turns them into metrics."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._models: dict[tuple[str, str], ModelTotals] = {}

    def record_result(self, action: Action, result: Result, took_ns: int, end_ns: int) -> None:
        """Count an action that ended at `end_ns` in the controller's clock, and the errors of its predictions."""
        stats = self._stats
        stats.count("horologe_actions_total", action.kind, STATUS_NAMES[result.status])
        if result.status:
            return
        errors_ns = {
            "horologe_prediction_error_seconds": took_ns - action.expected_ns,
            "horologe_completion_error_seconds": end_ns - action.promised_ns,
        }
        for name, error_ns in errors_ns.items():
            if not result.rows:  # with missing rows, a smaller batch ran than the one predicted
                stats.observe(name, action.kind, error_side(error_ns), value=abs(error_ns))
        if action.requests:
            spec = action.requests[0].spec
            labels = spec.name, spec.version
            rows = sum(request.rows for request in action.requests)
            rows -= sum(action.requests[row.id].rows for row in result.rows)
            totals = self._models.get(labels)
            if totals is None:
                totals = self._models[labels] = ModelTotals()
            totals.batches += 1
            totals.rows += rows
            totals.exec_ns += took_ns
            stats.observe("horologe_batch_rows", *labels, value=rows)

    def refresh(self, now_ns: int, cluster: Cluster, requests: Iterable[Request]) -> None:
        """Update the metrics that are derived from totals, shares and open requests."""
        stats = self._stats
        for labels, totals in self._models.items():
            stats.set("nv_inference_exec_count", *labels, to=totals.batches)
            stats.set("nv_inference_count", *labels, to=totals.rows)
            stats.set("nv_inference_compute_infer_duration_us", *labels, to=totals.exec_ns // 1000)
        slowness = {(instance(share.worker), str(share.number)): share.slowness(now_ns) for share in cluster.shares()}
        self._replace_gauge("horologe_device_slowness", slowness)
        pending: dict[tuple[str, str], float] = {(spec.name, spec.version): 0 for spec in cluster.specs.values()}
        for request in requests:
            labels = request.spec.name, request.spec.version
            pending[labels] = pending.get(labels, 0) + 1
        self._replace_gauge("nv_inference_pending_request_count", pending)

    def _replace_gauge(self, name: str, current: Mapping[tuple[str, str], float]) -> None:
        """Set a gauge for all labels in `current`, and drop its other labels: their shares or models are gone."""
        values = self._stats.values
        for key in [key for key in list(values) if key[0] == name and key[1:] not in current]:
            del values[key]
        for labels, value in current.items():
            self._stats.set(name, *labels, to=value)
