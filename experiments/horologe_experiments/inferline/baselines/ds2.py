"""DS2 (Kalavri et al., OSDI 2018): replicas from mean rates and true processing rates (InferLine section 8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_planning.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_experiments.inferline.scaling_policy import Observation
    from horologe_planning.profiles import Profiles
    from horologe_planning.search.evaluation import Configuration


class Ds2:
    """Sets all stages at once to the mean rate over the true processing rate of a replica.

    The true processing rate is calls per second of busy time. A stage that did nothing in the interval keeps its last
    known rate. DS2 halts Flink to change the parallelism; here replicas change without a halt, which favours DS2.
    """

    name = "ds2"
    interval_ns = 30 * 10**9

    def __init__(self, scale_factors: Mapping[str, float]) -> None:
        self._scale_factors = scale_factors
        self._true_rates: dict[str, float] = {}

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """See `ScalingPolicy`."""
        rate = observation.rate(self.interval_ns / 1e9)
        wanted = {}
        for name, stage in observation.stages.items():
            if stage.completed and stage.busy_s:
                self._true_rates[name] = stage.completed / stage.busy_s
            if name in self._true_rates:
                wanted[name] = max(1, math.ceil(rate * self._scale_factors[name] / self._true_rates[name]))
        return wanted


def plan_for_mean(
    profiles: Profiles, stages: Iterable[Placement], scale_factors: Mapping[str, float], rate: float
) -> Configuration:
    """Return the stages without batching and with the replicas that DS2 would choose for a rate (InferLine Fig. 14)."""
    return tuple(
        Placement(
            stage.stage,
            stage.model,
            stage.hardware,
            1,
            max(1, math.ceil(rate * scale_factors[stage.stage] / profiles[stage.model][stage.hardware].throughput(1))),
        )
        for stage in stages
    )
