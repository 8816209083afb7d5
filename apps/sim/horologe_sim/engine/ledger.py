"""The ledger of a simulation: every request once, by group and final status."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

OK, LATE, LOST, REFUSED = (status.name for status in (Status.OK, Status.LATE, Status.LOST, Status.REFUSED))


class RequestCounts:
    """Requests of a group by final status. `cold`: sent while no device had the model loaded."""

    __slots__ = ("cold", "sent", "statuses")

    def __init__(self) -> None:
        self.sent = self.cold = 0
        self.statuses: Counter[str] = Counter()
        """Requests by name of their status. LATE: outputs after the SLO. LOST: none before the client gave up."""


class Ledger:
    """Counts of numbered groups, of requests sent from `from_ns` on. Times are relative to the start of the load."""

    def __init__(self, groups: int, from_ns: int = 0) -> None:
        self.from_ns = from_ns
        self.lines: Sequence[RequestCounts] = [RequestCounts() for _ in range(groups)]

    def table(self) -> NDArray[np.int64]:
        """Return the requests by (sent, in time, late, lost, refused; groups)."""
        rows = [(line.sent, *(line.statuses[status] for status in (OK, LATE, LOST, REFUSED))) for line in self.lines]
        return np.array(rows, np.int64).reshape(-1, 5).T

    def sent(self, sent_ns: int, group: int, model: int, cold: bool) -> None:
        """Count a request that was sent. `cold`: no device held its model."""
        if sent_ns >= self.from_ns:
            line = self.lines[group]
            line.sent += 1
            line.cold += cold

    def answered(self, sent_ns: int, group: int, took_ns: int, slo_ns: int, grace_ns: int) -> None:
        """Count a request whose outputs arrived after `took_ns`; the client waits until SLO and grace.

        `slo_ns` 0: best effort, always in time.
        """
        if not slo_ns or took_ns <= slo_ns:
            self.ended(sent_ns, group, OK, took_ns)
        elif took_ns <= slo_ns + grace_ns:
            self.ended(sent_ns, group, LATE, took_ns)
        else:
            self.ended(sent_ns, group, LOST, slo_ns + grace_ns)

    def refused(self, sent_ns: int, group: int) -> None:
        """Count a refused request."""
        self.ended(sent_ns, group, REFUSED, 0)

    def ended(self, sent_ns: int, group: int, status: str, took_ns: int) -> None:
        """Count the end of a request. `took_ns`: its latency; 0 if it was refused."""
        if sent_ns >= self.from_ns:
            self.lines[group].statuses[status] += 1

    def check(self) -> None:
        """Check that every request has at most one end."""
        for line in self.lines:
            assert line.statuses.total() <= line.sent
