"""Finding a capacity: which rate to offer next, given what became of those before."""

from __future__ import annotations

ATTAINED = 0.99
"""Share of the requests that must be answered in time for a rate to count as carried."""
GROWTH = 1.3
PRECISION = 1.07
"""The search ends when the lowest rate that failed is this close to the highest that was carried."""
STRIKES = 2
"""So often must a rate fail: something else may have had the machine for a moment."""
RETREAT = 0.93
LOWEST = 1.0
MOST_STEPS = 16


class Ramp:
    """Upwards by `GROWTH` until a rate fails (downwards, should the first fail), then bisection; no clock, no I/O."""

    def __init__(self, first: float, most_steps: int = MOST_STEPS) -> None:
        self._next: float | None = max(LOWEST, first)
        self._left = most_steps
        self._failed: float | None = None
        self._strikes = 0
        self.carried: float | None = None
        """The highest rate carried so far."""

    def next_rate(self) -> float | None:
        """The rate to offer now; None when the search has ended."""
        return self._next if self._left > 0 else None

    def observe(self, rate: float, attained: float) -> None:
        """`attained`: share of the requests offered at `rate` that were answered in time."""
        self._left -= 1
        self._strikes = 0 if attained >= ATTAINED else self._strikes + 1
        if 0 < self._strikes < STRIKES:
            return
        if self._strikes:
            self._failed = rate
        else:
            self.carried = rate
        self._strikes = 0
        self._next = self._following()

    def _following(self) -> float | None:
        if self._failed is None:
            return (self.carried or LOWEST) * GROWTH
        if self.carried is None:
            return self._failed / GROWTH**2 if self._failed > LOWEST else None
        if self._failed / self.carried <= PRECISION:
            return None
        return float((self._failed * self.carried) ** 0.5)


class Confirmation:
    """The rate found is offered again, for longer; while it is not carried, less is, in growing steps."""

    def __init__(self, rate: float, most_tries: int = 6) -> None:
        self._rate = rate
        self._left = most_tries
        self._retreat = 1.0
        self.confirmed: float | None = None

    def next_rate(self) -> float | None:
        return self._rate if self._left > 0 and self.confirmed is None else None

    def observe(self, attained: float) -> None:
        self._left -= 1
        if attained >= ATTAINED:
            self.confirmed = self._rate
        else:
            self._retreat *= RETREAT
            self._rate *= self._retreat
