"""Limit of the open queries of a pipeline, so that few are dropped after their first stage has worked for them.

The limit shrinks by `DECREASE` for each query that is dropped behind its first stage, so in proportion to the waste,
and grows while queries that use it are answered. Deadlines alone cannot prevent such drops: a call waits in the queue
of its own stage, and the queues of later stages grow only when it gets there.
"""

from __future__ import annotations

DECREASE, INCREASE = 0.25, 2.0
"""Open queries fewer for each wasted one; growth per round trip. In the table of docs/pipelines.md, a decrease of 1 and
a growth of 0.5 answer a tenth fewer."""


class OpenLimit:
    """The present limit, at most `maximum`. There is none before the first wasted query."""

    def __init__(self, maximum: int) -> None:
        self.limit = float(maximum)
        self._maximum = maximum

    def admits(self, open_runs: int) -> bool:
        return open_runs < self.limit

    def on_answered(self, open_runs: int) -> None:
        """Grow if the answered query was one of as many as the limit allows."""
        if open_runs + 1 >= self.limit:
            self.limit = min(self.limit + INCREASE / self.limit, self._maximum)

    def on_wasted(self, open_runs: int) -> None:
        """Shrink. `open_runs`: with the wasted query."""
        self.limit = max(1.0, min(self.limit, open_runs) - DECREASE)
