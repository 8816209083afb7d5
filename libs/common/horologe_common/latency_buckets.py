"""Histogram of latencies relative to an SLO: bucket 0 ends at the SLO, so that violations are counted exactly."""

from __future__ import annotations

from math import ceil, log2

PER_DOUBLING = 8
"""Buckets from a latency to twice the latency: a percentile is at most 9% too high."""
OUTERMOST = 10 * PER_DOUBLING
"""Number of the last bucket on either side, from 1/1000 to 1000 times the SLO."""


def latency_bucket(latency_ns: int, slo_ns: int) -> int:
    """Return the bucket of a latency. Buckets above 0 are beyond the SLO."""
    if latency_ns <= 0:
        return -OUTERMOST
    return max(-OUTERMOST, min(OUTERMOST, ceil(PER_DOUBLING * log2(latency_ns / slo_ns))))


def bucket_bound_ns(bucket: int, slo_ns: int) -> int:
    """Return the highest latency of a bucket."""
    return round(slo_ns * 2 ** (bucket / PER_DOUBLING))
