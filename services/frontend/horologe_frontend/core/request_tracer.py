"""Traces of requests at the frontend: which requests are traced, and the span from arrival to answer."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.core.tracing import TRACER, Span, TraceContext, parse_traceparent
from horologe_common.status import STATUS_NAMES, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.wire import Answer, Predict
    from horologe_frontend.core.requests import ClientRequest


class RateLimit:
    """Permits `per_second` events, and as many at once."""

    def __init__(self, per_second: float) -> None:
        self._interval_ns = s(1 / per_second) if per_second > 0 else 0
        self._used_until_ns = 0
        """Time until which the events so far have used up the rate."""

    def permit(self, now_ns: int) -> bool:
        """Return whether another event is permitted now, and count it."""
        used_ns = max(now_ns, self._used_until_ns)
        if not self._interval_ns or used_ns + self._interval_ns > now_ns + max(s(1), self._interval_ns):
            return False
        self._used_until_ns = used_ns + self._interval_ns
        return True


class RequestTracer:
    """Traced open requests, by id. At most `per_second` requests are traced, and `own_per_second` without a context.

    Invariant: each traced request ends with one span.
    """

    def __init__(self, address: str, per_second: float, own_per_second: float, post: Callable[[Out], None]) -> None:
        self._address = address
        self._all, self._own = RateLimit(per_second), RateLimit(own_per_second)
        self._post = post
        self._open: dict[int, tuple[TraceContext, str]] = {}
        """Context of the request's span, and the id of its parent."""

    def start_request(self, now_ns: int, request: ClientRequest, message: Predict) -> None:
        """Trace the request if its sender does, or as one of the own samples."""
        parent = parse_traceparent(message.traceparent) if message.traceparent else None
        if not (self._all if parent else self._own).permit(now_ns) or (not parent and not self._all.permit(now_ns)):
            return
        own = derive_context(self._address, request.id)
        context = TraceContext(parent.trace_id, own.span_id) if parent else own
        self._open[request.id] = context, parent.span_id if parent else ""
        request.query = msgspec.structs.replace(request.query, traceparent=context.traceparent)

    def finish_request(self, now_ns: int, request: ClientRequest, answer: Answer) -> str:
        """Send the span of a request that has ended. Return its trace id; empty if it was not traced."""
        traced = self._open.pop(request.id, None)
        if traced is None:
            return ""
        context, parent_id = traced
        status = STATUS_NAMES[answer.status]
        attributes: dict[str, str | int | float | bool] = {
            "horologe.model": request.spec.key, "horologe.status": status,
            "horologe.budget_ms": (request.deadline_ns - request.arrival_ns) / 1e6,
            "horologe.slack_ms": (request.deadline_ns - now_ns) / 1e6, "horologe.cached": answer.cached,
            "horologe.batch_size": answer.batch_size, "horologe.selector": request.receiver,
            "horologe.worker": request.worker,
        }  # fmt: skip
        error = "" if answer.status == Status.OK else f"{status}: {answer.reason}"
        ids = context.trace_id, parent_id
        span = Span("predict", *ids, request.arrival_ns, now_ns, attributes, context.span_id, error)
        self._post(Out(TRACER, span))
        return context.trace_id

    def check(self, open_ids: set[int]) -> None:
        assert self._open.keys() <= open_ids


def derive_context(process: str, number: int) -> TraceContext:
    """Return a new trace and span: the hash of an address with its incarnation, and a number that is unique there."""
    digest = hashlib.blake2b(f"{process} {number}".encode(), digest_size=24).hexdigest()
    return TraceContext(digest[:32], digest[32:])
