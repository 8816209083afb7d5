"""The ledger of experiments: requests by interval with histograms of their latencies, and the actions that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, us
from horologe_sim.engine.ledger import LATE, LOST, OK, REFUSED, Ledger, RequestCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

FINE_NS, COARSE_NS, LONGEST_NS = us(10), us(100), ms(1000)
SIGNS = ("over", "under")


class DurationCounts:
    """A histogram of durations with equal buckets up to a second. Longer ones are in the last bucket."""

    __slots__ = ("counts", "last", "max_ns", "total", "width_ns")

    def __init__(self, width_ns: int = FINE_NS) -> None:
        self.width_ns = width_ns
        self.last = LONGEST_NS // width_ns
        self.counts: dict[int, int] = {}
        """Durations by number of the bucket, without empty buckets."""
        self.total = 0
        self.max_ns = 0

    def add(self, took_ns: int) -> None:
        """Add a duration."""
        at = took_ns // self.width_ns
        if at > self.last:
            at = self.last
        counts = self.counts
        counts[at] = counts.get(at, 0) + 1
        self.total += 1
        if took_ns > self.max_ns:
            self.max_ns = took_ns

    def quantile_ms(self, q: float) -> float:
        """Return the upper bound of the bucket of the quantile, at most the maximum; 0 if there are no durations."""
        rank, seen = q * self.total, 0
        for at in sorted(self.counts):
            seen += self.counts[at]
            if seen >= rank:
                return round(min((at + 1) * self.width_ns, self.max_ns) / 1e6, 3)
        return round(self.max_ns / 1e6, 3)


class TimedCounts(RequestCounts):
    """Requests with the latencies of their answers."""

    __slots__ = ("times",)

    def __init__(self, width_ns: int = FINE_NS) -> None:
        super().__init__()
        self.times = DurationCounts(width_ns)

    def add_end(self, status: str, took_ns: int) -> None:
        """Count the end of a request."""
        self.statuses[status] += 1
        if status != REFUSED:
            self.times.add(took_ns)

    @property
    def ok(self) -> int:
        return self.statuses[OK]

    @property
    def late(self) -> int:
        return self.statuses[LATE]

    @property
    def lost(self) -> int:
        return self.statuses[LOST]

    @property
    def refused(self) -> int:
        return self.statuses[REFUSED]

    @property
    def answered(self) -> int:
        """Return the requests that were answered, or given up by their clients."""
        return self.times.total

    @property
    def satisfaction(self) -> float:
        """Return the share of requests answered in time."""
        return self.ok / self.sent if self.sent else 1.0


class IntervalCounts:
    """Counts of an interval: requests by the time they were sent, actions by the time they ended."""

    def __init__(self, groups: int, models: int) -> None:
        self.lines = [TimedCounts(COARSE_NS) for _ in range(groups)]
        self.cold_models = bytearray(models)
        self.batches = self.rows = 0
        self.exec_ns = self.load_ns = 0


class IntervalLedger(Ledger):
    """Counts of named groups from `from_ns` on, and of every interval. Only an `ExperimentWorld` reports actions."""

    def __init__(self, groups: Sequence[str], models: int, interval_ns: int, from_ns: int = 0) -> None:
        super().__init__(0, from_ns)
        self.groups = list(groups)
        self.interval_ns = interval_ns
        self.lines: list[TimedCounts] = [TimedCounts() for _ in groups]
        self.panels: list[IntervalCounts] = []
        self.errors = {(kind, sign): DurationCounts() for kind in ("infer", "load", "completion") for sign in SIGNS}
        self.batch_rows = [0] * 1025
        self.loads = self.too_late = 0
        self._models = models

    def line(self, group: str) -> TimedCounts:
        """Return the counts of a group."""
        return self.lines[self.groups.index(group)]

    def panel(self, at_ns: int) -> IntervalCounts:
        """Return the counts of the interval of a time."""
        at = at_ns // self.interval_ns
        while len(self.panels) <= at:
            self.panels.append(IntervalCounts(len(self.groups), self._models))
        return self.panels[at]

    def sent(self, sent_ns: int, group: int, model: int, cold: bool) -> None:
        """Count a request that was sent. `cold`: no device held its model."""
        super().sent(sent_ns, group, model, cold)
        panel = self.panel(sent_ns)
        panel.lines[group].sent += 1
        if cold:
            panel.lines[group].cold += 1
            panel.cold_models[model] = 1

    def ended(self, sent_ns: int, group: int, status: str, took_ns: int) -> None:
        """Count the end of a request. `took_ns`: its latency; 0 if it was refused."""
        self.panels[sent_ns // self.interval_ns].lines[group].add_end(status, took_ns)
        if sent_ns >= self.from_ns:
            self.lines[group].add_end(status, took_ns)

    def ran(self, end_ns: int, rows: int, took_ns: int, expected_ns: int, promised_ns: int) -> None:
        """Count a finished INFER. `promised_ns`: its end as predicted when it was sent."""
        panel = self.panel(end_ns)
        panel.batches += 1
        panel.rows += rows
        panel.exec_ns += took_ns
        if end_ns >= self.from_ns:
            self.batch_rows[min(rows, 1024)] += 1
            self._add_error("infer", took_ns - expected_ns)
            self._add_error("completion", end_ns - promised_ns)

    def loaded(self, end_ns: int, took_ns: int, expected_ns: int) -> None:
        """Count a finished LOAD."""
        self.panel(end_ns).load_ns += took_ns
        if end_ns >= self.from_ns:
            self.loads += 1
            self._add_error("load", took_ns - expected_ns)

    def _add_error(self, kind: str, error_ns: int) -> None:
        self.errors[kind, "under" if error_ns > 0 else "over"].add(abs(error_ns))
