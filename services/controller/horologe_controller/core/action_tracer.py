"""Spans of the actions that traced requests went through: queue, LOAD, INPUT, EXEC and OUTPUT, with the predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.core.tracing import TRACER, Span, TraceContext, parse_traceparent
from horologe_common.status import STATUS_NAMES, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.wire import Result
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.requests.request import Request

    Attributes = dict[str, str | int | float | bool]

LOADS_MAX = 1024
"""Last LOADs that are kept, one for each model and share."""


class ActionTracer:
    """Sends the spans of a traced request when the Result of its action arrives."""

    def __init__(self, post: Callable[[Out], None]) -> None:
        self._post = post
        self._loads: dict[tuple[str, int, str], tuple[int, int, Attributes]] = {}
        """(worker, share, model) -> begin, end and attributes of its last LOAD."""

    def record_action(self, now_ns: int, action: Action, result: Result, end_ns: int) -> None:
        """Send the spans of the traced requests of an action, which ended at `end_ns` of the controller's clock."""
        begin_ns = end_ns - (result.end_ns - result.begin_ns)
        attributes = _action_attributes(action, result, end_ns)
        key = action.share.worker, action.share.number, action.model
        if action.kind == "load":
            self._loads.pop(key, None)
            if len(self._loads) >= LOADS_MAX:
                del self._loads[next(iter(self._loads))]
            self._loads[key] = begin_ns, end_ns, attributes
            return
        for request in action.requests:
            if request.traceparent and (context := parse_traceparent(request.traceparent)):
                self._send(context, "queue", request.arrival_ns, action.sent_ns, _queue_attributes(request))
                load = self._loads.get(key)
                if load is not None and load[1] > request.arrival_ns:
                    self._send(context, "LOAD", *load)
                self._send_batch(now_ns, context, action, result, begin_ns, end_ns, attributes)

    def _send_batch(
        self,
        now_ns: int,
        context: TraceContext,
        action: Action,
        result: Result,
        begin_ns: int,
        end_ns: int,
        attributes: Attributes,
    ) -> None:
        """Send INPUT, EXEC and OUTPUT.

        INPUT begins when the controller sends the batch. Models without a lane for INPUT or OUTPUT have these parts in
        EXEC: then INPUT ends when the last input has arrived, and OUTPUT when the Result is here.
        """
        offset_ns = result.end_ns - end_ns
        input_end_ns, output_end_ns = result.lanes_end_ns or (result.ready_ns, now_ns + offset_ns)
        if result.ready_ns:
            self._send(context, "INPUT", action.sent_ns, max(action.sent_ns, input_end_ns - offset_ns), {})
        error = "" if result.status == Status.OK else f"{STATUS_NAMES[result.status]}: {result.reason}"
        self._send(context, "EXEC", begin_ns, end_ns, attributes, error)
        if not error:
            self._send(context, "OUTPUT", end_ns, max(end_ns, output_end_ns - offset_ns), {})

    def _send(
        self, context: TraceContext, name: str, begin_ns: int, end_ns: int, attributes: Attributes, error: str = ""
    ) -> None:
        span = Span(name, context.trace_id, context.span_id, begin_ns, end_ns, attributes, error=error)
        self._post(Out(TRACER, span))


def _action_attributes(action: Action, result: Result, end_ns: int) -> Attributes:
    """Return what was predicted, and by how much the action ended later than planned."""
    return {
        "horologe.worker": action.share.worker,
        "horologe.share": action.share.number,
        "horologe.model": action.model,
        "horologe.action_id": action.id,
        "horologe.batch_size": action.batch_size,
        "horologe.predicted_ms": action.expected_ns / 1e6,
        "horologe.device_ms": result.device_ns / 1e6,
        "horologe.planned_end_error_ms": (end_ns - action.promised_ns) / 1e6,
    }


def _queue_attributes(request: Request) -> Attributes:
    budget_ms = (request.deadline_ns - request.arrival_ns) / 1e6
    return {"horologe.attempts": request.attempts + 1, "horologe.budget_ms": budget_ms}
