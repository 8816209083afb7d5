"""The pages of a process for Prometheus, in the format that the reader prefers, and its answers to probes."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import monotonic_ns, s
from horologe_common.metrics import protobuf_exposition
from horologe_common.metrics.exposition import (
    OPENMETRICS,
    OPENMETRICS_CONTENT_TYPE,
    TEXT,
    TEXT_CONTENT_TYPE,
    TRITON_PATH,
    ModelLimit,
    TextPage,
    group_series,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horologe_common.core.instruments import Stats
    from horologe_common.metrics.exposition import Groups

CONTENT_TYPES = {
    TEXT: TEXT_CONTENT_TYPE,
    OPENMETRICS: OPENMETRICS_CONTENT_TYPE,
    protobuf_exposition.MEDIA_TYPE: protobuf_exposition.CONTENT_TYPE,
}
QUALITY = re.compile(r";\s*q=([01](?:\.\d*)?)\s*(?:;|$)")
CLOCK_STEP_NS = s(0.1)


class MetricsRequest(NamedTuple):
    """The parts of a request that matter. `path` is without the query."""

    path: str
    accept: str


class MetricsAnswer(NamedTuple):
    """Status and body of an answer."""

    status: HTTPStatus
    content_type: str = "text/plain"
    body: bytes = b""


class MetricsPages:
    """Answers /metrics, /metrics/triton, /health and /ready. One page at a time is rendered."""

    def __init__(self, stats: Callable[[], Iterable[Stats]], ready: Callable[[], bool]) -> None:
        self._stats = stats
        self._ready = ready
        self._limit = ModelLimit()
        self._text = TextPage()
        self._wall_offset_ns = 0

    def probe(self, request: MetricsRequest) -> MetricsAnswer | None:
        """Answer a probe at once. Return None for other paths, which get the metrics."""
        if request.path not in ("/health", "/ready"):
            return None
        is_well = request.path == "/health" or self._ready()
        return MetricsAnswer(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE)

    def page_name(self, request: MetricsRequest) -> tuple[str, bool]:
        """Return the name of a page. Requests with equal names may share it."""
        return choose_format(request.accept), request.path == TRITON_PATH

    def render(self, media_type: str, triton: bool) -> MetricsAnswer:
        """Return the page of a name."""
        groups = group_series(self._stats(), triton=triton)
        self._limit.fold(groups)
        return MetricsAnswer(HTTPStatus.OK, CONTENT_TYPES[media_type], self._render(media_type, groups))

    def _render(self, media_type: str, groups: Groups) -> bytes:
        """Return the body.

        The clocks' offset is kept until the wall clock is set: Prometheus stores an exemplar again if its time differs.
        """
        if media_type == TEXT:
            return self._text.render(groups)
        offset_ns = time.time_ns() - monotonic_ns()
        if abs(offset_ns - self._wall_offset_ns) > CLOCK_STEP_NS:
            self._wall_offset_ns = offset_ns
        if media_type == OPENMETRICS:
            return self._text.render(groups, self._wall_offset_ns)
        return protobuf_exposition.render(groups, self._wall_offset_ns)


def choose_format(accept: str) -> str:
    """Return the media type that a header `Accept` prefers (RFC 9110, 12.5.1), and Prometheus' text by default."""
    best, highest = TEXT, 0.0
    for item in accept.split(","):
        media_type = item.partition(";")[0].strip().lower()
        match = QUALITY.search(item)
        quality = float(match[1]) if match else 1.0
        if media_type in CONTENT_TYPES and quality > highest:
            best, highest = media_type, quality
    return best
