"""Reactive autoscaling as in Kubernetes: HPA on CPU utilisation, and KEDA, which feeds queue lengths to an HPA."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_experiments.inferline.scaling_policy import Observation, StageLoad

SYNC_NS = 15 * 10**9
"""Default `--horizontal-pod-autoscaler-sync-period`."""
STABILISATION_NS = 300 * 10**9
"""Default stabilisation window of scaling down."""
TOLERANCE = 0.1
PODS_PER_PERIOD = 4
"""The default policy of scaling up allows twice the replicas or 4 more in each period of 15 s."""


class HorizontalPodAutoscaler:
    """The algorithm of the HPA with its defaults: ceil(replicas * metric / target), bounded and stabilised.

    Scaling down uses the largest recommendation of the last 300 s.
    """

    interval_ns = SYNC_NS

    def __init__(self) -> None:
        self._recommendations: dict[str, list[tuple[int, int]]] = {}

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """See `ScalingPolicy`."""
        return {name: self._stabilise(observation.now_ns, name, stage) for name, stage in observation.stages.items()}

    def ratio(self, name: str, stage: StageLoad) -> float:
        """Return the metric over its target."""
        raise NotImplementedError

    def _stabilise(self, now_ns: int, name: str, stage: StageLoad) -> int:
        ratio = self.ratio(name, stage)
        wanted = stage.replicas if abs(ratio - 1) <= TOLERANCE else max(1, math.ceil(stage.ready * ratio))
        recent = [(at_ns, n) for at_ns, n in self._recommendations.get(name, []) if at_ns > now_ns - STABILISATION_NS]
        self._recommendations[name] = [*recent, (now_ns, wanted)]
        if wanted > stage.replicas:
            return min(wanted, max(2 * stage.replicas, stage.replicas + PODS_PER_PERIOD))
        return min(stage.replicas, max(n for _, n in self._recommendations[name]))


class CpuUtilisation(HorizontalPodAutoscaler):
    """HPA on the utilisation of the replicas."""

    name = "hpa"

    def __init__(self, target: float) -> None:
        """`target`: utilisation between 0 and 1."""
        super().__init__()
        self._target = target

    def ratio(self, name: str, stage: StageLoad) -> float:
        """See `HorizontalPodAutoscaler`."""
        return stage.utilisation / self._target


class QueueLength(HorizontalPodAutoscaler):
    """KEDA: unfinished calls per replica, as a queue's scaler counts them (waiting and in service)."""

    name = "keda"

    def __init__(self, targets: Mapping[str, float]) -> None:
        """`targets`: unfinished calls that a replica of each stage may have."""
        super().__init__()
        self._targets = targets

    def ratio(self, name: str, stage: StageLoad) -> float:
        """See `HorizontalPodAutoscaler`."""
        return stage.waiting / max(1, stage.ready) / self._targets[name]
