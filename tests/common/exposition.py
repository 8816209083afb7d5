"""Reads metrics as Prometheus would."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from horologe_common.clock import ms, s, us
from horologe_common.core.instruments import Exemplar, Stats
from horologe_common.metrics.exposition import TextPage, group_series
from horologe_common.metrics.metric_definitions import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.samples import Sample

LATENCY = "horologe_request_seconds"
TRACES = (us(9), ms(3), ms(3) + 1, s(100))
"""Latencies of traced requests, one after the other."""
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""The header `Accept` of Prometheus 2.42."""


def traced_stats() -> Stats:
    """Return latencies with an exemplar for each of `TRACES`, and one without."""
    stats = Stats()
    stats.observe(LATENCY, "m", "1", value=ms(40))
    for number, value in enumerate(TRACES):
        stats.observe(LATENCY, "m", "1", value=value)
        stats.histograms[LATENCY, "m", "1"].add_exemplar(Exemplar(f"{number:032x}", value, s(number)))
    return stats


def render_text(stats: Iterable[Stats]) -> str:
    """Return the page of these metrics in the text format."""
    return TextPage().render(group_series(stats)).decode()


def read_samples(stats: Iterable[Stats]) -> list[Sample]:
    """Return the samples of the page that these metrics give."""
    return [sample for family in text_string_to_metric_families(render_text(stats)) for sample in family.samples]


def all_metrics() -> Stats:
    """Return a series of every metric."""
    stats = Stats()
    for name, metric in METRICS.items():
        if metric.kind == "histogram":
            stats.observe(name, *metric.labels, value=ms(3) if name.endswith("_seconds") else 3)
        else:
            stats.set(name, *metric.labels, to=1)
    return stats


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of a protobuf message, and where the next field begins."""
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if message[at - 1] < 0x80:
            return value, at


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message: an independent reader for tests."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        if tag & 7 == 1:
            yield tag >> 3, struct.unpack("<d", message[at : at + 8])[0]
            at += 8
            continue
        number, at = read_varint(message, at)
        if tag & 7 == 0:
            yield tag >> 3, number
        else:
            yield tag >> 3, message[at : at + number]
            at += number
