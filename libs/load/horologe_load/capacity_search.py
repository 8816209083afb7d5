"""Search for a capacity: the highest rate that a server carries within its SLO."""

from __future__ import annotations

from typing import NamedTuple

ATTAINED = 0.99
"""Share of the requests that must be answered in time for a rate to count as carried."""
GROWTH = 1.3
PRECISION = 1.07
"""The search ends when the lowest failed rate is at most this multiple of the highest carried one."""
STRIKES = 2
"""Failed trials that make a rate fail: another program may have used the machine for a moment."""
RETREAT = 0.93
LOWEST = 1.0
MAX_TRIALS = 16


class Trial(NamedTuple):
    """A rate in requests per second, and the share of its requests that was answered in time."""

    rate: float
    attained: float


class CapacitySearch:
    """Increases the rate by `growth` until a rate fails, then bisects. Reads no clock and does no I/O.

    If the first rate fails already, the search goes down by `growth` squared. Assumes that less load is never worse.
    Call `next_rate`, measure, call `observe`, until `next_rate` returns None.
    """

    def __init__(
        self,
        first: float,
        max_trials: int = MAX_TRIALS,
        growth: float = GROWTH,
        precision: float = PRECISION,
        wanted: float = ATTAINED,
    ) -> None:
        self._next: float | None = max(LOWEST, first)
        self._max_trials = max_trials
        self._growth = growth
        self._precision = precision
        self._wanted = wanted
        self._strikes = 0
        self.trials: list[Trial] = []
        self.carried: float | None = None
        """The highest rate carried so far."""
        self.failed: float | None = None
        """The lowest rate that failed so far."""

    def next_rate(self) -> float | None:
        """Return the rate to offer next; None when the search has ended."""
        return self._next if len(self.trials) < self._max_trials else None

    def observe(self, rate: float, attained: float) -> None:
        """Record a trial: the share of the requests offered at `rate` that were answered in time."""
        self.trials.append(Trial(rate, attained))
        self._strikes = 0 if attained >= self._wanted else self._strikes + 1
        if 0 < self._strikes < STRIKES:
            return
        if self._strikes:
            self.failed = rate
        else:
            self.carried = rate
        self._strikes = 0
        self._next = self._choose_rate()

    def _choose_rate(self) -> float | None:
        if self.failed is None:
            return (self.carried or LOWEST) * self._growth
        if self.carried is None:
            return self.failed / self._growth**2 if self.failed > LOWEST else None
        if self.failed / self.carried <= self._precision:
            return None
        return float((self.failed * self.carried) ** 0.5)


class Confirmation:
    """Offers a found rate again, for longer. Each time it is not carried, the rate is reduced in growing steps."""

    def __init__(self, rate: float, max_trials: int = 6, retreat: float = RETREAT, wanted: float = ATTAINED) -> None:
        self._rate = rate
        self._step = retreat
        self._wanted = wanted
        self._trials_left = max_trials
        self._retreat = 1.0
        self.confirmed: float | None = None

    def next_rate(self) -> float | None:
        """Return the rate to offer next; None when a rate is confirmed or no trial is left."""
        return self._rate if self._trials_left > 0 and self.confirmed is None else None

    def observe(self, attained: float) -> None:
        """Record the share of the requests that were answered in time."""
        self._trials_left -= 1
        if attained >= self._wanted:
            self.confirmed = self._rate
        else:
            self._retreat *= self._step
            self._rate *= self._retreat
