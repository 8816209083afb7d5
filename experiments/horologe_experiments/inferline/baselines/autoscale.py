"""AutoScale (Gandhi et al., ACM TOCS 2012), InferLine's coarse-grained tuner: scales the whole pipeline as a unit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_experiments.inferline.scaling_policy import Observation

WAIT_NS = 120 * 10**9
"""A unit that is not needed is kept for 120 s before it stops (AutoScale's t_wait)."""


class LoadCurve:
    """Mean queries inside one pipeline unit by its load, measured once. Both ascend; load 1 is the unit's capacity."""

    def __init__(self, loads: Sequence[float], queries: Sequence[float]) -> None:
        self._loads = np.asarray(loads, float)
        self._queries = np.maximum.accumulate(np.asarray(queries, float))

    def load(self, queries: float) -> float:
        """Return the load of a unit that has so many queries inside. Beyond the curve it grows in proportion."""
        if queries > self._queries[-1]:
            return float(self._loads[-1] * queries / self._queries[-1])
        return float(np.interp(queries, self._queries, self._loads))


class AutoScale:
    """Infers the load from the number of queries in the system, and starts units until the load is at its reference.

    The number of queries shows overload, slow servers and larger requests, which the request rate does not. A unit
    stops only when it was not needed for `WAIT_NS`.
    """

    name = "autoscale"
    interval_ns = 10**9

    def __init__(self, curve: LoadCurve, reference: float) -> None:
        """`reference`: wanted load of a unit."""
        self._curve = curve
        self._reference = reference
        self._needed: list[tuple[int, int]] = []
        """(time, units needed) of the last `WAIT_NS`."""

    def fresh(self) -> AutoScale:
        """Return the same policy without memory of a run."""
        return AutoScale(self._curve, self._reference)

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """See `ScalingPolicy`. All stages get the same number."""
        ready = max(1, min(stage.ready for stage in observation.stages.values()))
        ordered = max(stage.replicas for stage in observation.stages.values())
        needed = max(1, math.ceil(ready * self._curve.load(observation.queries_in_flight / ready) / self._reference))
        now_ns = observation.now_ns
        self._needed = [(at_ns, n) for at_ns, n in self._needed if at_ns > now_ns - WAIT_NS] + [(now_ns, needed)]
        return dict.fromkeys(observation.stages, max(needed, min(ordered, max(n for _, n in self._needed))))
