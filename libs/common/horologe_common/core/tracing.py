"""Trace contexts of requests (W3C Trace Context), the bound of traced requests, and spans. Pure.

Cores send a `Span` to `TRACER`. The process exports it, or drops it (service/trace_export.py).
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from horologe_common.clock import s

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


def derive_context(process: str, number: int) -> TraceContext:
    """Return a new trace and span: the hash of an address with its incarnation, and a number that is unique there."""
    digest = hashlib.blake2b(f"{process} {number}".encode(), digest_size=24).hexdigest()
    return TraceContext(digest[:32], digest[32:])


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
