"""Reads metrics as Prometheus would."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from horologe_common.clock import ms
from horologe_common.core.instruments import Stats
from horologe_common.metrics.exposition import TextPage, group_series
from horologe_common.metrics.metric_definitions import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.samples import Sample


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


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message: an independent reader for tests."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 1:
            yield tag >> 3, struct.unpack("<d", message[at : at + 8])[0]
            at += 8
        else:
            length = varint()
            yield tag >> 3, message[at : at + length]
            at += length
