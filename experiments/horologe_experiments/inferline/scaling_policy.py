"""The interface of a scaling policy in the serving simulation: it observes the pipeline and wants replicas by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray


class StageLoad(NamedTuple):
    """Observation of a stage at the end of an interval."""

    replicas: int
    """Replicas that serve or start."""
    ready: int
    """Replicas that can serve."""
    waiting: int
    """Calls that have reached the stage and are not finished."""
    completed: int
    """Calls that finished in the interval."""
    busy_s: float
    """Busy time of all replicas in the interval, in seconds."""
    utilisation: float
    """Share of the ready replicas' time in the interval that was busy, from 0 to 1."""


class Observation(NamedTuple):
    """Everything that a scaling policy can see at `now_ns`."""

    now_ns: int
    arrivals_ns: NDArray[np.int64]
    """All arrivals up to now, ascending."""
    stages: Mapping[str, StageLoad]
    queries_in_flight: int

    def rate(self, seconds: float) -> float:
        """Return the mean arrivals per second over the last `seconds`, or since the start if that is shorter."""
        window_ns = min(round(seconds * 1e9), self.now_ns)
        first = self.arrivals_ns.searchsorted(self.now_ns - window_ns, side="right")
        return (len(self.arrivals_ns) - int(first)) / (window_ns / 1e9) if window_ns else 0.0


class ScalingPolicy(Protocol):
    """A policy that changes the number of replicas. It is stateful and serves one run."""

    name: str
    interval_ns: int
    """Time between decisions."""

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """Return the wanted replicas of each stage that shall change. Each is at least 1."""


class FixedReplicas:
    """No scaling: the replicas of the plan."""

    name = "none"
    interval_ns = 3600 * 10**9

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """Return no change."""
        return {}
