"""Error of problems that no plan solves."""

from __future__ import annotations


class Infeasible(ValueError):
    """No plan meets the SLO. `nearest_slo_ns`: the shortest SLO that one meets; 0: unknown."""

    def __init__(self, reason: str, nearest_slo_ns: int = 0) -> None:
        super().__init__(reason)
        self.nearest_slo_ns = nearest_slo_ns
