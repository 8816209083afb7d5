"""The ledger of a simulation: every request once, by group and final status, and the actions that served them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from horologe_common.clock import us
from horologe_common.status import Status
from horologe_sim.engine.durations import DurationCounts, DurationSamples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

T = TypeVar("T", bound=DurationCounts | DurationSamples)
COARSE_NS = us(100)
SIGNS = ("over", "under")
OK, LATE, LOST, REFUSED = (status.name for status in (Status.OK, Status.LATE, Status.LOST, Status.REFUSED))


class RequestCounts(Generic[T]):
    """Requests of a group by final status. `cold`: sent while no device had the model loaded."""

    __slots__ = ("cold", "sent", "statuses", "times")

    def __init__(self, times: T) -> None:
        self.sent = self.cold = 0
        self.statuses: Counter[str] = Counter()
        """Requests by name of their status. LATE: outputs after the SLO. LOST: none before the client gave up."""
        self.times = times
        """Latencies of answers."""

    def add_answer(self, status: str, took_ns: int) -> None:
        """Count an answer after `took_ns`."""
        self.statuses[status] += 1
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
        return self.ok + self.late + self.lost

    @property
    def satisfaction(self) -> float:
        """Return the share of requests answered in time."""
        return self.ok / self.sent if self.sent else 1.0


class IntervalCounts:
    """Counts of an interval: requests by the time they were sent, actions by the time they ended."""

    def __init__(self, groups: int, models: int) -> None:
        self.lines = [RequestCounts(DurationCounts(COARSE_NS)) for _ in range(groups)]
        self.cold_models = bytearray(models)
        self.batches = self.rows = 0
        self.exec_ns = self.load_ns = 0


class Ledger:
    """Counts of all groups from `from_ns` on, and of every interval. Times are relative to the start of the load.

    `models`: number of models. `interval_ns` 0: no intervals are counted.
    """

    def __init__(self, groups: Sequence[str], models: int = 0, interval_ns: int = 0, from_ns: int = 0) -> None:
        self.groups = list(groups)
        self.from_ns = from_ns
        self.interval_ns = interval_ns
        self.lines = [RequestCounts(DurationCounts()) for _ in groups]
        self.panels: list[IntervalCounts] = []
        self.errors = {(kind, sign): DurationCounts() for kind in ("infer", "load", "completion") for sign in SIGNS}
        self.batch_rows = [0] * 1025
        self.loads = self.unloads = self.too_late = 0
        self._models = models

    def line(self, group: str) -> RequestCounts[DurationCounts]:
        """Return the counts of a group."""
        return self.lines[self.groups.index(group)]

    def table(self) -> NDArray[np.int64]:
        """Return the requests by (sent, in time, late, lost, refused; groups)."""
        rows = [(line.sent, line.ok, line.late, line.lost, line.refused) for line in self.lines]
        return np.array(rows, np.int64).reshape(-1, 5).T

    def panel(self, at_ns: int) -> IntervalCounts:
        """Return the counts of the interval of a time."""
        at = at_ns // self.interval_ns
        while len(self.panels) <= at:
            self.panels.append(IntervalCounts(len(self.groups), self._models))
        return self.panels[at]

    def sent(self, sent_ns: int, group: int, model: int, cold: bool) -> None:
        """Count a request that was sent. `cold`: no device held its model."""
        if self.interval_ns:
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
        status = OK
        if slo_ns and took_ns > slo_ns:
            limit_ns = slo_ns + grace_ns
            status = LATE
            if took_ns > limit_ns:
                status, took_ns = LOST, limit_ns
        if self.interval_ns:
            self.panels[sent_ns // self.interval_ns].lines[group].add_answer(status, took_ns)
        if sent_ns >= self.from_ns:
            self.lines[group].add_answer(status, took_ns)

    def refused(self, sent_ns: int, group: int) -> None:
        """Count a refused request."""
        if self.interval_ns:
            self.panels[sent_ns // self.interval_ns].lines[group].statuses[REFUSED] += 1
        if sent_ns >= self.from_ns:
            self.lines[group].statuses[REFUSED] += 1

    def ran(self, end_ns: int, rows: int, took_ns: int, expected_ns: int, promised_ns: int) -> None:
        """Count a finished INFER. `promised_ns`: its end as predicted when it was sent."""
        if self.interval_ns:
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
        if self.interval_ns:
            self.panel(end_ns).load_ns += took_ns
        if end_ns >= self.from_ns:
            self.loads += 1
            self._add_error("load", took_ns - expected_ns)

    def check(self) -> None:
        """Check that every request has at most one end."""
        for line in self.lines:
            assert line.answered + line.refused <= line.sent
            assert line.times.total == line.answered

    def _add_error(self, kind: str, error_ns: int) -> None:
        self.errors[kind, "under" if error_ns > 0 else "over"].add(abs(error_ns))
