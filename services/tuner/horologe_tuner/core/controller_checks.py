"""Ranges of what the controller reports: arrivals, latencies and requests. Items out of range are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.core.message_checks import NUMBER_MAX, check_range
from horologe_common.latency_buckets import OUTERMOST

if TYPE_CHECKING:
    from horologe_common.wire import Events, ModelEvents, RequestTrace, TracedRequest

COUNT_MAX = 1 << 32
"""Requests of a bin, or of a bucket of latencies."""
AGE_MAX = 1 << 20
SPAN_MAX_NS = s(3600)
TIME_MAX_NS = 1 << 62


def valid_events(events: Events) -> Events:
    """Return the events without the models and pipelines whose counts are out of range.

    Raise `InvalidInput` if a number of the message itself is.
    """
    check_range("number", events.number, 1, NUMBER_MAX)
    check_range("span_ns", events.span_ns, 0, SPAN_MAX_NS)
    check_range("bin_ns", events.bin_ns, 1, SPAN_MAX_NS)
    models = tuple([model for model in events.models if _has_valid_counts(model)])
    pipelines = tuple([pipeline for pipeline in events.pipelines if _are_valid_bins(pipeline.arrivals)])
    if len(models) == len(events.models) and len(pipelines) == len(events.pipelines):
        return events
    return msgspec.structs.replace(events, models=models, pipelines=pipelines)


def valid_requests(trace: RequestTrace) -> RequestTrace:
    """Return the trace without the requests of no model, or with numbers out of range."""
    count = len(trace.models)
    requests = tuple([request for request in trace.requests if _is_valid_request(request, count)])
    return trace if len(requests) == len(trace.requests) else msgspec.structs.replace(trace, requests=requests)


def _has_valid_counts(model: ModelEvents) -> bool:
    totals = (model.in_time, model.refused, model.late)
    return (
        _are_valid_bins(model.arrivals)
        and all(0 <= total <= COUNT_MAX for total in totals)
        and all(abs(bucket) <= OUTERMOST and 0 <= count <= COUNT_MAX for bucket, count in model.latencies)
    )


def _are_valid_bins(arrivals: tuple[tuple[int, int], ...]) -> bool:
    return all(0 <= age <= AGE_MAX and 0 <= count <= COUNT_MAX for age, count in arrivals)


def _is_valid_request(request: TracedRequest, models: int) -> bool:
    return (
        0 <= request.model < models
        and 0 <= request.arrival_ns <= TIME_MAX_NS
        and 0 <= request.budget_ns <= TIME_MAX_NS
        and 1 <= request.rows <= COUNT_MAX
        and 0 <= request.length <= NUMBER_MAX
    )
