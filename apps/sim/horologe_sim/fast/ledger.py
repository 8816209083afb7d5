"""The ledger of the fast world: counts of requests and actions, in memory that does not grow with their number."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.clock import ms, us

if TYPE_CHECKING:
    from collections.abc import Sequence

FINE_NS, COARSE_NS, LONGEST_NS = us(10), us(100), ms(1000)
SIGNS = ("over", "under")


class DurationCounts:
    """A histogram of durations with equal buckets up to a second. Longer ones are in the last bucket."""

    def __init__(self, width_ns: int = FINE_NS) -> None:
        self.width_ns = width_ns
        self.counts = [0] * (LONGEST_NS // width_ns + 1)
        self.total = 0
        self.max_ns = 0

    def add(self, took_ns: int) -> None:
        """Add a duration."""
        at = took_ns // self.width_ns
        self.counts[at if at < len(self.counts) else -1] += 1
        self.total += 1
        if took_ns > self.max_ns:
            self.max_ns = took_ns

    def quantile_ms(self, q: float) -> float:
        """Return the upper bound of the bucket of the quantile, at most the maximum; 0 if there are no durations."""
        rank = q * self.total
        for at, seen in enumerate(accumulate(self.counts)):
            if seen and seen >= rank:
                return round(min((at + 1) * self.width_ns, self.max_ns) / 1e6, 3)
        return round(self.max_ns / 1e6, 3)


class GroupCounts:
    """Requests of a group by status. `late`: outputs after the SLO. `timed_out`: no outputs by SLO and grace.

    `unserved`: refused.
    """

    __slots__ = ("cold", "late", "ok", "sent", "timed_out", "times", "unserved")

    def __init__(self, width_ns: int = FINE_NS) -> None:
        self.sent = self.ok = self.late = self.timed_out = self.unserved = self.cold = 0
        self.times = DurationCounts(width_ns)

    @property
    def satisfaction(self) -> float:
        """Return the share of requests answered in time."""
        return self.ok / self.sent if self.sent else 1.0


class IntervalCounts:
    """Counts of an interval: requests by the time they were sent, actions by the time they ended."""

    def __init__(self, groups: int, models: int) -> None:
        self.lines = [GroupCounts(COARSE_NS) for _ in range(groups)]
        self.cold_models = bytearray(models)
        self.batches = self.rows = 0
        self.exec_ns = self.load_ns = 0


class Ledger:
    """Counts of all groups from `from_ns` on, and of every interval. Times are relative to the start of the load."""

    def __init__(self, groups: Sequence[str], models: int, interval_ns: int, from_ns: int = 0) -> None:
        self.groups = list(groups)
        self.from_ns = from_ns
        self.interval_ns = interval_ns
        self.lines = [GroupCounts() for _ in groups]
        self.panels: list[IntervalCounts] = []
        self.errors = {(kind, sign): DurationCounts() for kind in ("infer", "load", "completion") for sign in SIGNS}
        self.batch_rows = [0] * 1025
        self.loads = self.unloads = self.too_late = 0
        self._models = models

    def line(self, group: str) -> GroupCounts:
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
        panel = self.panel(sent_ns)
        panel.lines[group].sent += 1
        if cold:
            panel.lines[group].cold += 1
            panel.cold_models[model] = 1
        if sent_ns >= self.from_ns:
            line = self.lines[group]
            line.sent += 1
            line.cold += cold

    def answered(self, sent_ns: int, group: int, took_ns: int, slo_ns: int, grace_ns: int) -> None:
        """Count a request whose outputs arrived after `took_ns`; the client waits until SLO and grace.

        `slo_ns` 0: best effort, always in time.
        """
        lines = (self.panels[sent_ns // self.interval_ns].lines[group], self.lines[group])
        limit_ns = slo_ns + grace_ns if slo_ns else took_ns
        for line in lines if sent_ns >= self.from_ns else lines[:1]:
            if took_ns <= slo_ns or not slo_ns:
                line.ok += 1
            elif took_ns <= limit_ns:
                line.late += 1
            else:
                line.timed_out += 1
            line.times.add(min(took_ns, limit_ns))

    def unserved(self, sent_ns: int, group: int) -> None:
        """Count a refused request."""
        self.panels[sent_ns // self.interval_ns].lines[group].unserved += 1
        if sent_ns >= self.from_ns:
            self.lines[group].unserved += 1

    def ran(self, end_ns: int, rows: int, took_ns: int, expected_ns: int, promised_ns: int) -> None:
        """Count a finished INFER. `promised_ns`: its end as predicted when it was sent."""
        panel = self.panel(end_ns)
        panel.batches += 1
        panel.rows += rows
        panel.exec_ns += took_ns
        if end_ns >= self.from_ns:
            self.batch_rows[min(rows, 1024)] += 1
            self._error("infer", took_ns - expected_ns)
            self._error("completion", end_ns - promised_ns)

    def loaded(self, end_ns: int, took_ns: int, expected_ns: int) -> None:
        """Count a finished LOAD."""
        self.panel(end_ns).load_ns += took_ns
        if end_ns >= self.from_ns:
            self.loads += 1
            self._error("load", took_ns - expected_ns)

    def check(self) -> None:
        """Check that every request has at most one end."""
        for line in self.lines:
            assert line.ok + line.late + line.timed_out + line.unserved <= line.sent
            assert line.times.total == line.ok + line.late + line.timed_out

    def _error(self, kind: str, error_ns: int) -> None:
        self.errors[kind, "under" if error_ns > 0 else "over"].add(abs(error_ns))


class GroupLedger(Ledger):
    """Counts by group without histograms."""

    def __init__(self, groups: int, from_ns: int) -> None:
        super().__init__([], 0, 1, from_ns)
        self.counts = np.zeros((5, groups), np.int64)
        """(sent, in time, late, timed out, refused; groups)."""

    def sent(self, sent_ns: int, group: int, model: int, cold: bool) -> None:
        """Count a request that was sent."""
        self._count(0, sent_ns, group)

    def answered(self, sent_ns: int, group: int, took_ns: int, slo_ns: int, grace_ns: int) -> None:
        """Count a request that was answered after `took_ns`."""
        late = bool(slo_ns) and took_ns > slo_ns
        self._count(1 + late + (late and took_ns > slo_ns + grace_ns), sent_ns, group)

    def unserved(self, sent_ns: int, group: int) -> None:
        """Count a refused request."""
        self._count(4, sent_ns, group)

    def ran(self, end_ns: int, rows: int, took_ns: int, expected_ns: int, promised_ns: int) -> None:
        """Do nothing."""

    def loaded(self, end_ns: int, took_ns: int, expected_ns: int) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Check that every request has at most one end."""
        assert (self.counts[1:].sum(0) <= self.counts[0]).all()

    def _count(self, row: int, sent_ns: int, group: int) -> None:
        if sent_ns >= self.from_ns:
            self.counts[row, group] += 1
