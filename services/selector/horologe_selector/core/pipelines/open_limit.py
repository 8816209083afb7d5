"""Limit of the open queries of a pipeline, so that few are dropped after their first stage has worked for them.

Additive increase, multiplicative decrease, as TCP does with its window: the limit grows while queries that use it are
answered, and shrinks when one is dropped behind its first stage. Deadlines alone cannot prevent such drops: a call is
admitted by the queue of its own stage, and the queues of later stages grow only when it gets there.
"""

from __future__ import annotations

DECREASE, INCREASE = 0.9, 0.5
"""Factor after a wasted query, at most once per round trip; growth per round trip."""


class OpenLimit:
    """The present limit, at most `maximum`. There is none before the first wasted query."""

    def __init__(self, maximum: int) -> None:
        self.limit = float(maximum)
        self._maximum = maximum
        self._decreased_ns = 0

    def admits(self, open_runs: int) -> bool:
        """Return whether one more query may start."""
        return open_runs < self.limit

    def on_answered(self, open_runs: int) -> None:
        """Grow if the answered query was one of as many as the limit allows."""
        if open_runs + 1 >= self.limit:
            self.limit = min(self.limit + INCREASE / self.limit, self._maximum)

    def on_wasted(self, now_ns: int, begin_ns: int, open_runs: int) -> None:
        """Shrink, unless the query began before the last decrease."""
        if begin_ns >= self._decreased_ns:
            self.limit = max(1.0, DECREASE * min(self.limit, open_runs + 1))
            self._decreased_ns = now_ns
