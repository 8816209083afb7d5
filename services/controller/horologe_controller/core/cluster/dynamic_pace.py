"""Times of dynamic models on a share, as a multiple of their distributions, which are those of the fastest share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.cluster.estimates import OUTLIER, TRIAL_EXECS, TRIAL_NS
from horologe_controller.core.cluster.model_profiles import profiled_ns

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share

PACE_BATCHES = 16
"""Batches of the average. Fewer follow single inputs, more follow a change of the device late. The median of ten, as of
static models, says more about the inputs than about the device (experiments/results/schedulers.md)."""
DEVICE_SPREAD = 0.1
"""Standard deviation of equal batches on one device, as a part of their mean."""


class DynamicPace:
    """Pace of a share in batches of dynamic models: their times over the expected ones.

    It is the mean of the last `PACE_BATCHES`, and the profile counts as one. Each counts by the inverse of its
    variance, since a batch whose time is hard to predict says little about the device. It counts for at most `OUTLIER`
    times the pace before it, or the batch before it, whichever is more.

    The mean is dropped after `TRIAL_NS` without a batch, or `TRIAL_EXECS` times the duration of the last one: a share
    that counts as too slow for every request runs no batch that would show its recovery.
    """

    def __init__(self) -> None:
        self._sum = self._weight = 1 / DEVICE_SPREAD**2
        self._last = 1.0
        """Time of the last batch over the expected one."""
        self._until_ns = 0

    def observe(self, now_ns: int, took_ns: int, expected_ns: float, spread: float) -> None:
        """Add a batch. `spread`: standard deviation of its time due to its inputs, as a part of `expected_ns`."""
        if now_ns > self._until_ns:
            self._sum = self._weight = 1 / DEVICE_SPREAD**2
            self._last = 1.0
        weight, kept = 1 / (DEVICE_SPREAD**2 + spread * spread), 1 - 1 / PACE_BATCHES
        most = OUTLIER * max(self._sum / self._weight, self._last)
        self._last = took_ns / expected_ns
        self._sum = kept * self._sum + weight * min(most, self._last)
        self._weight = kept * self._weight + weight
        self._until_ns = now_ns + max(TRIAL_NS, TRIAL_EXECS * took_ns)

    def at(self, now_ns: int) -> float:
        """Return recent times as a multiple of the expected ones; 1 without recent batches."""
        return self._sum / self._weight if now_ns <= self._until_ns else 1.0


def profiled_slowness(cluster: Cluster, share: Share, spec: ModelSpec) -> float:
    """Return the profile of a model on the share as a multiple of the shortest one of all shares."""
    size, model = spec.batch_sizes[0], spec.key
    seed_ns = profiled_ns(share.estimates[model].seed_ns, size)
    return max(1, seed_ns) / max(1, cluster.profiled_ns(model, size))


def expected_pace(now_ns: int, cluster: Cluster, share: Share, spec: ModelSpec) -> float:
    """Return the expected times of a dynamic model on the share as a multiple of its distributions."""
    return share.slowness(now_ns) * profiled_slowness(cluster, share, spec)


def dynamic_slowness(now_ns: int, cluster: Cluster, share: Share, spec: ModelSpec) -> float:
    """Return the recent times of a dynamic model on the share as a multiple of its distributions, at least 1."""
    return max(1.0, expected_pace(now_ns, cluster, share, spec) * share.dynamic_pace.at(now_ns))


def observe_batch(now_ns: int, cluster: Cluster, action: Action, took_ns: int) -> None:
    """Count a batch of a dynamic model for the pace of its share, unless it is one of the profiler's copies of a row.

    A share that may no longer run the model, since it has become a standby, has no estimate of it.
    """
    if action.kind == "load" or action.model not in action.share.estimates:
        return
    mean_ns, spread = cluster.distributions[action.model].batch_moments(action.requests, action.batch_size)
    if mean_ns:
        expected_ns = mean_ns * expected_pace(now_ns, cluster, action.share, action.requests[0].spec)
        action.share.dynamic_pace.observe(now_ns, took_ns, expected_ns, spread)
