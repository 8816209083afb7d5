"""Requests that a controller has run and refused recently, to compare a replay of them with what was served."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_common.wire import Events

MAX_ENTRIES = 2000
"""Messages that are kept: those of more than three minutes at `controller.events_ns` 100 ms."""


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
        run = sum(model.finished for model in events.models)
        refused = sum(model.refused for model in events.models)
        if run or refused:
            if len(self._entries) == MAX_ENTRIES:
                self.since_ns = self._entries[0][0]
            self._entries.append((now_ns, run, refused))

    def part_run(self, from_ns: int, until_ns: int, least: int) -> float | None:
        """Return the part of the requests that ended between the two times and have run; None if fewer than `least`."""
        counts = [(run, refused) for at_ns, run, refused in self._entries if from_ns < at_ns <= until_ns]
        run, refused = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        return run / (run + refused) if run + refused >= max(1, least) else None

    def latest(self, least: int) -> float | None:
        """Return the part of the last `least` requests or more; None if fewer have ended since the restart."""
        run = ended = 0
        for _, entry_run, refused in reversed(self._entries):
            run += entry_run
            ended += entry_run + refused
            if ended >= least:
                return run / ended
        return None
