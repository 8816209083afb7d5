"""What the controller counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.metrics import Stats
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Result
    from horologe_controller.queues import Request
    from horologe_controller.share import Action

STATUS_NAMES = {int(status): status.name for status in Status}


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

    def ended(self, action: Action, result: Result, took_ns: int) -> None:
        """An action has ended: how, and how well its duration was predicted."""
        stats = self._stats
        stats.count("horologe_actions_total", action.kind, STATUS_NAMES[result.status])
        if result.status:
            return
        error_ns = took_ns - action.expected_ns
        side = "over" if error_ns <= 0 else "under"
        stats.observe("horologe_prediction_error_seconds", action.kind, side, value=abs(error_ns))
        if action.requests:
            spec = action.requests[0].spec
            labels = spec.name, spec.version
            rows = sum(request.rows for request in action.requests)
            account = self._models.get(labels)
            if account is None:
                account = self._models[labels] = Account()
            account.batches += 1
            account.rows += rows
            account.exec_ns += took_ns
            stats.observe("horologe_batch_rows", *labels, value=rows)

    def refresh(self) -> None:
        """Bring the metrics of the models up to date."""
        stats = self._stats
        for labels, account in self._models.items():
            stats.set("nv_inference_exec_count", *labels, to=account.batches)
            stats.set("nv_inference_count", *labels, to=account.rows)
            stats.set("nv_inference_compute_infer_duration_us", *labels, to=account.exec_ns // 1000)


def set_pending(stats: Stats, specs: Iterable[ModelSpec], requests: Iterable[Request]) -> None:
    """The gauge of open requests, for every model there is and every one that still has some."""
    waiting = {(spec.name, spec.version): 0 for spec in specs}
    for request in requests:
        labels = request.spec.name, request.spec.version
        waiting[labels] = waiting.get(labels, 0) + 1
    for labels, count in waiting.items():
        stats.set("nv_inference_pending_request_count", *labels, to=count)
