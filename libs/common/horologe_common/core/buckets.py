"""Buckets of histograms: one set of counts serves Prometheus' classic and native histograms."""

from __future__ import annotations

import bisect
from functools import lru_cache

from horologe_common.clock import s

BUCKETS_NS = (
    *(round(step * 10**exponent) for exponent in range(4, 10) for step in (1, 1.5, 2, 3, 5, 7)),
    s(10),
)
"""10 us to 10 s, six buckets per decade."""
ERROR_BUCKETS_NS = (
    *(
        round(step * 10**exponent)
        for exponent in range(4, 8)
        for step in (1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8.5)
    ),
    *(round(step * 10**exponent) for exponent in (8, 9) for step in (1, 3)),
    s(10),
)
"""10 us to 100 ms, twelve buckets per decade, for errors of some hundred microseconds; two per decade to 10 s."""
SLACK_BUCKETS_NS = tuple(step * 10**exponent for exponent in range(5, 10) for step in (1, 2, 5))
"""100 us to 5 s, three buckets per decade: slack compares with deadlines of milliseconds, and exists for each model."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bucket bounds of histograms of rows."""
NATIVE_SCHEMA = 3
"""Native buckets grow by 2^(1/8): 9%. Classic ones grow by 20% to 50%."""
FIRST_NATIVE, LAST_NATIVE = -136, 48
"""Native buckets from 2^-17 s (7.6 us) to 2^6 s. Smaller values count as zero, larger ones in the next bucket."""
NATIVE_NS = tuple(int(2 ** (index / 2**NATIVE_SCHEMA) * s(1)) for index in range(FIRST_NATIVE, LAST_NATIVE + 1))
"""Upper bounds of the native buckets from `FIRST_NATIVE` to `LAST_NATIVE`, 2^(index/8) seconds."""


def classic_bounds(name: str) -> tuple[int, ...]:
    """Return the bounds of the classic buckets of a metric: nanoseconds, or rows if the name ends in `_rows`."""
    if name.endswith("_rows"):
        return ROWS
    if name.endswith("_slack_seconds"):
        return SLACK_BUCKETS_NS
    return ERROR_BUCKETS_NS if name.endswith("_error_seconds") else BUCKETS_NS


@lru_cache(64)
def bucket_bounds(name: str) -> tuple[int, ...]:
    """Return the bounds of all buckets of a metric, classic and native. One count serves both kinds."""
    classic = classic_bounds(name)
    return classic if classic is ROWS else tuple(sorted({*classic, *NATIVE_NS}))


@lru_cache(64)
def classic_positions(name: str) -> tuple[int, ...]:
    """Return the positions of the classic bounds of a metric among all of its bounds."""
    bounds = bucket_bounds(name)
    return tuple(bisect.bisect_left(bounds, bound) for bound in classic_bounds(name))


@lru_cache(64)
def native_positions(name: str) -> tuple[int, ...]:
    """Return the positions of the native bounds of a metric of durations among all of its bounds."""
    bounds = bucket_bounds(name)
    return tuple(bisect.bisect_left(bounds, bound) for bound in NATIVE_NS)
