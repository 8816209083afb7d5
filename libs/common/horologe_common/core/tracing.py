"""Trace contexts of requests (W3C Trace Context) and spans. Pure.

Cores send a `Span` to `TRACER`. The process exports it, or drops it (service/trace_export.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

TRACER = "tracer"
"""Address of the exporter of spans in every process."""
TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1


class Span(msgspec.Struct, frozen=True):
    """A part of a traced request. Times are this process's monotonic clock. Never leaves the process."""

    name: str
    trace_id: str
    """32 hexadecimal digits."""
    parent_id: str
    """16 hexadecimal digits. Empty: the request has no parent."""
    begin_ns: int
    end_ns: int
    attributes: dict[str, str | int | float | bool]
    span_id: str = ""
    """Empty: the exporter chooses an id, because no other span refers to it."""
    error: str = ""
    """Why it failed. Empty: it did not."""


class TraceContext(NamedTuple):
    """Trace and span of the sender of a request."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        """Return the context as the header `traceparent` of a sampled request."""
        return f"00-{self.trace_id}-{self.span_id}-01"


def parse_traceparent(text: str) -> TraceContext | None:
    """Return the context of a sampled request; None if the text is invalid or the sender does not trace it."""
    match = TRACEPARENT.fullmatch(text)
    if match is None or not int(match[3], 16) & SAMPLED:
        return None
    return TraceContext(match[1], match[2])
