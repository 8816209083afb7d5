"""Traffic of models, applications and pipelines between two readings of the frontend's statistics."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.buckets import BUCKETS_NS, classic_positions
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_frontend.core.stats import APPLICATION_PREFIX, FAILED_STATUSES, FAILURE, LATENCY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.core.instruments import Histogram
    from horologe_frontend.core.frontend import Frontend

REQUESTS, SECONDS = f"{APPLICATION_PREFIX}requests_total", f"{APPLICATION_PREFIX}request_seconds"
BOUNDS_MS = tuple(bound / 1e6 for bound in BUCKETS_NS)
"""Upper bounds of the buckets in milliseconds. The last bucket has none."""
NO_LATENCIES = (0,) * (len(BUCKETS_NS) + 1)
ROWS_MAX = 300
"""Most rows in a reading. With more, those with the most requests are returned."""


class Totals(msgspec.Struct, frozen=True):
    """Requests to a model, an application or a pipeline since the start of the process."""

    kind: str
    """`model`, `application` or `pipeline`."""
    name: str
    in_time: int
    failed: dict[str, int]
    """By the name of the status."""
    latency: Sequence[int]
    """Requests by bucket of `BUCKETS_NS`."""


class TrafficRow(msgspec.Struct, frozen=True):
    """Requests since the reading before."""

    kind: str
    name: str
    in_time: int
    failed: dict[str, int]
    latency: list[tuple[int, int]]
    """(index of the bucket, requests)."""


class TrafficMeter:
    """Computes the differences between readings."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Totals] = {}

    def read(self, totals: Iterable[Totals]) -> list[TrafficRow]:
        """Return what has changed since the last call, at most `ROWS_MAX` rows. New names count from 0."""
        rows = []
        for current in totals:
            key = current.kind, current.name
            last = self._last.get(key) or Totals(*key, 0, {}, (0,) * len(current.latency))
            if row := _subtract(current, last):
                rows.append(row)
            self._last[key] = current
        if len(rows) > ROWS_MAX:
            rows = sorted(rows, key=lambda row: -row.in_time - sum(row.failed.values()))[:ROWS_MAX]
        return rows


def _subtract(current: Totals, last: Totals) -> TrafficRow | None:
    in_time = current.in_time - last.in_time
    failed = dict(Counter(current.failed) - Counter(last.failed))
    if not in_time and not failed:
        return None
    counts = enumerate(zip(current.latency, last.latency, strict=True))
    latency = [(bucket, count - before) for bucket, (count, before) in counts if count != before]
    return TrafficRow(current.kind, current.name, in_time, failed, latency)


def read_totals(core: Frontend, since_ns: int) -> list[Totals]:
    """Return the totals of all applications, and of the models and pipelines with an answer at `since_ns` or later."""
    values, histograms = core.stats.values, core.stats.histograms
    totals = []
    for key, model in core.stats_by_model.items():
        if model.last_ns < since_ns:
            continue
        name, _, version = key.partition("/")
        counts = {status: values.get((FAILURE, name, version, status), 0) for status in FAILED_STATUSES}
        spec = core.catalogue.find_in_any_state(key)
        kind = "pipeline" if spec is not None and spec.runtime == PIPELINE_RUNTIME else "model"
        totals.append(Totals(kind, key, model.success.count, _positive(counts), _counts(model.latency)))
    for name in core.declared:
        counts = {status: values.get((REQUESTS, name, status), 0) for status in (*FAILED_STATUSES, "OK")}
        histogram = histograms.get((SECONDS, name))
        latency = _counts(histogram) if histogram else NO_LATENCIES
        in_time = int(counts.pop("OK"))
        totals.append(Totals("application", name, in_time, _positive(counts), latency))
    return totals


def _counts(latency: Histogram) -> tuple[int, ...]:
    cumulative = latency.cumulative_counts(classic_positions(LATENCY))
    return tuple(after - before for before, after in pairwise([0, *cumulative]))


def _positive(counts: dict[str, float]) -> dict[str, int]:
    return {status: int(count) for status, count in counts.items() if count}
