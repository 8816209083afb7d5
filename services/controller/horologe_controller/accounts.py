"""What the controller counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.metrics import Stats
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Result
    from horologe_controller.queues import Request
    from horologe_controller.share import Action


def count_result(stats: Stats, action: Action, result: Result, took_ns: int) -> None:
    """An action has ended: how, and how well its duration was predicted."""
    stats.count("horologe_actions_total", action.kind, Status(result.status).name)
    if result.status != Status.OK:
        return
    error_ns = took_ns - action.expected_ns
    side = "over" if error_ns <= 0 else "under"
    stats.observe("horologe_prediction_error_seconds", action.kind, side, value=abs(error_ns))
    if action.kind == "infer":
        labels = action.requests[0].spec.name, action.requests[0].spec.version
        rows = sum(request.rows for request in action.requests)
        stats.count("nv_inference_exec_count", *labels)
        stats.count("nv_inference_count", *labels, by=rows)
        stats.count("nv_inference_compute_infer_duration_us", *labels, by=took_ns // 1000)
        stats.observe("horologe_batch_rows", *labels, value=rows)


def set_pending(stats: Stats, specs: Iterable[ModelSpec], requests: Iterable[Request]) -> None:
    """The gauge of open requests, for every model there is and every one that still has some."""
    waiting = {(spec.name, spec.version): 0 for spec in specs}
    for request in requests:
        labels = request.spec.name, request.spec.version
        waiting[labels] = waiting.get(labels, 0) + 1
    for labels, count in waiting.items():
        stats.set("nv_inference_pending_request_count", *labels, to=count)
