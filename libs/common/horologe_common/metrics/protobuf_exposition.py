"""Metrics of a process in Prometheus' protobuf format (io.prometheus.client.MetricFamily, each after its length).

Only this format carries native histograms to Prometheus 2 and 3. prometheus-client does not write it. Field numbers:
prometheus/client_model, io/prometheus/client/metrics.proto.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.buckets import (
    FIRST_NATIVE,
    NATIVE_SCHEMA,
    classic_bounds,
    classic_positions,
    native_positions,
)
from horologe_common.core.instruments import Histogram
from horologe_common.core.varint import encode_varint
from horologe_common.metrics.exposition import bucket_scale, latest_exemplars
from horologe_common.metrics.metric_definitions import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.instruments import Exemplar
    from horologe_common.metrics.exposition import Groups

MEDIA_TYPE = "application/vnd.google.protobuf"
CONTENT_TYPE = f"{MEDIA_TYPE}; proto=io.prometheus.client.MetricFamily; encoding=delimited"
TYPES = {"counter": (0, 3), "gauge": (1, 2), "untyped": (3, 5), "histogram": (4, 7)}
"""Kind -> (number of the type, field of Metric with the value)."""
ZERO_THRESHOLD = 2.0 ** (FIRST_NATIVE / 2**NATIVE_SCHEMA)


def render(groups: Groups, wall_offset_ns: int) -> bytes:
    """Return the page. Histograms of durations have native buckets beside the classic ones.

    `wall_offset_ns`: Unix time minus the monotonic clock, for the times of exemplars.
    """
    page = bytearray()
    for name, series in groups.items():
        metric = METRICS[name]
        kind, field = TYPES[metric.kind]
        family = bytearray(_text(1, name) + _text(2, metric.help) + _number(3, kind))
        for labels, value in series.items():
            pairs = [_text(1, key) + _text(2, label) for key, label in zip(metric.labels, labels, strict=True)]
            content = _histogram(name, value, wall_offset_ns) if isinstance(value, Histogram) else _double(1, value)
            family += _bytes(4, b"".join([_bytes(1, pair) for pair in pairs]) + _bytes(field, content))
        page += encode_varint(len(family)) + family
    return bytes(page)


def _histogram(name: str, histogram: Histogram, wall_offset_ns: int) -> bytes:
    """Return a Histogram. With native buckets, its total must be their sum, or Prometheus drops it.

    Only a histogram with exemplars has a bucket +Inf, which can have one.
    """
    scale = bucket_scale(name)
    counts = histogram.cumulative_counts(classic_positions(name))
    total = counts[-1]
    exemplars = latest_exemplars(name, histogram)
    bounds = [*classic_bounds(name), *([math.inf] if exemplars else [])]
    parts = [_double(2, histogram.sum / scale)]
    for at, (bound, count) in enumerate(zip(bounds, counts, strict=False)):
        bucket = _number(1, count) + _double(2, bound / scale)
        if at in exemplars:
            bucket += _bytes(3, _exemplar(exemplars[at], scale, wall_offset_ns))
        parts.append(_bytes(3, bucket))
    if scale > 1:
        cumulative = [0, *histogram.cumulative_counts(native_positions(name))]
        total = cumulative[-1]
        parts.append(_native_buckets([after - before for before, after in pairwise(cumulative)]))
    return b"".join([_number(1, total), *parts])


def _exemplar(exemplar: Exemplar, scale: float, wall_offset_ns: int) -> bytes:
    """Return an Exemplar: its label, its value, and its time as google.protobuf.Timestamp."""
    seconds, ns = divmod(exemplar.at_ns + wall_offset_ns, s(1))
    label = _text(1, "trace_id") + _text(2, exemplar.trace_id)
    return _bytes(1, label) + _double(2, exemplar.value / scale) + _bytes(3, _number(1, seconds) + _number(2, ns))


def _native_buckets(counts: Sequence[int]) -> bytes:
    """Return schema, zero bucket, and the other buckets as spans without gaps and differences of their counts."""
    zero, *counts = counts
    used = [at for at, count in enumerate(counts) if count]
    parts = [_number(5, _zigzag(NATIVE_SCHEMA)), _double(6, ZERO_THRESHOLD), _number(7, zero)]
    at = 0
    differences: list[int] = []
    before = 0
    for start, end in _runs(used):
        offset = start + (FIRST_NATIVE + 1 if not at else -at)
        parts.append(_bytes(12, _number(1, _zigzag(offset)) + _number(2, end - start)))
        for count in counts[start:end]:
            differences.append(count - before)
            before = count
        at = end
    parts.append(_bytes(13, b"".join([encode_varint(_zigzag(difference)) for difference in differences])))
    return b"".join(parts)


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive positions."""
    if not positions:
        return []
    breaks = [at for at, (left, right) in enumerate(pairwise(positions), 1) if right != left + 1]
    return [(positions[start], positions[end - 1] + 1) for start, end in pairwise([0, *breaks, len(positions)])]


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _number(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)


def _double(field: int, value: float) -> bytes:
    return encode_varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return encode_varint(field << 3 | 2) + encode_varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
