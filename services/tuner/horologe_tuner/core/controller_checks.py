"""Ranges of what the controller reports: arrivals and latencies. Items out of range are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.core.message_checks import NUMBER_MAX, check_range
from horologe_common.latency_buckets import OUTERMOST

if TYPE_CHECKING:
    from horologe_common.wire import Events, ModelEvents

COUNT_MAX = 1 << 32
"""Requests of a bin, or of a bucket of latencies."""
AGE_MAX = 1 << 20
SPAN_MAX_NS = s(3600)


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


def _has_valid_counts(model: ModelEvents) -> bool:
    return (
        _are_valid_bins(model.arrivals)
        and 0 <= model.refused <= COUNT_MAX
        and all(abs(bucket) <= OUTERMOST and 0 <= count <= COUNT_MAX for bucket, count in model.latencies)
    )


def _are_valid_bins(arrivals: tuple[tuple[int, int], ...]) -> bool:
    return all(0 <= age <= AGE_MAX and 0 <= count <= COUNT_MAX for age, count in arrivals)
