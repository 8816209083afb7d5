"""What part of its requests a controller has served in time recently, to compare a replay of them with it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_common.wire import Events

MAX_ENTRIES = 2000
"""Messages that are kept: those of more than three minutes at a message every 100 ms."""


class ServedRecord:
    """Counts of each Events since the last `restart`, by the time of its arrival."""

    def __init__(self) -> None:
        self.since_ns = 0
        self._entries: deque[tuple[int, int, int]] = deque(maxlen=MAX_ENTRIES)

    def restart(self, now_ns: int) -> None:
        """Discard all counts: another scheduler is in use from now on."""
        self.since_ns = now_ns
        self._entries.clear()

    def add(self, now_ns: int, events: Events) -> None:
        """Add the requests that have ended."""
        in_time = sum(model.in_time for model in events.models)
        missed = sum(model.refused + model.late for model in events.models)
        if in_time or missed:
            if len(self._entries) == MAX_ENTRIES:
                self.since_ns = self._entries[0][0]
            self._entries.append((now_ns, in_time, missed))

    def part_in_time(self, from_ns: int, until_ns: int, least: int) -> float | None:
        """Return the part in time of the requests that ended between the two times; None if fewer than `least`."""
        counts = [(in_time, missed) for at_ns, in_time, missed in self._entries if from_ns < at_ns <= until_ns]
        in_time, missed = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        return in_time / (in_time + missed) if in_time + missed >= max(1, least) else None

    def latest(self, least: int) -> float | None:
        """Return the part in time of the last `least` requests or more; None if fewer have ended since the restart."""
        served = ended = 0
        for _, in_time, missed in reversed(self._entries):
            served += in_time
            ended += in_time + missed
            if ended >= least:
                return served / ended
        return None
