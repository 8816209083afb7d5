"""Describes the cluster for a rehearsal: models with their execution times, shares, and the latency of messages."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from horologe_common.models import Profile
from horologe_common.wire import ModelReport, ScheduledModel, ScheduledShare, SchedulingState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.settings import ControllerSettings

MEASURED_MODELS = 100
"""Models, the first ones, whose recent medians are read. The others have the times of their profile: the medians of
1,000 models would take 20 ms, in which no batch starts."""
COMPARED_MODELS = 8
"""Models that the factor of a share is computed from."""


def describe_scheduling(
    now_ns: int, cluster: Cluster, settings: ControllerSettings, models: Iterable[str]
) -> SchedulingState:
    """Return the state of the scheduling, with those of the models that are served."""
    keys = [key for key in dict.fromkeys(models) if key in cluster.specs and key in cluster.capable]
    described = tuple(_describe_model(now_ns, cluster, key, place < MEASURED_MODELS) for place, key in enumerate(keys))
    shares = tuple(_describe_share(now_ns, cluster, share, keys) for share in cluster.shares())
    latency = cluster.latency
    return SchedulingState(msgspec.to_builtins(settings), described, shares, latency.dispatch_ns, latency.return_ns)


def _describe_model(now_ns: int, cluster: Cluster, key: str, measured: bool) -> ScheduledModel:
    spec, distributions = cluster.specs[key], cluster.distributions.get(key)
    exec_ns = {
        size: cluster.cached_exec_ns(now_ns, key, size)[1]
        if measured and distributions is None
        else cluster.profiled_ns(key, size)
        for size in spec.batch_sizes
    }
    report = ModelReport(spec, Profile(exec_ns, cluster.profiled_load_ns(key)))
    return ScheduledModel(report, None if distributions is None else distributions.publish(key))


def _describe_share(now_ns: int, cluster: Cluster, share: Share, keys: Sequence[str]) -> ScheduledShare:
    """Return the share. Its factor is the median over some models of its time over that of the fastest share.

    The measured times of dynamic models depend on their inputs, so their profiles are compared.
    """
    able = tuple(place for place, key in enumerate(keys) if key in share.estimates)
    ratios = []
    for place in able[:COMPARED_MODELS]:
        key = keys[place]
        estimate, size = share.estimates[key], cluster.specs[key].batch_sizes[0]
        if key in cluster.distributions:
            ratios.append(share.slowness(now_ns) * estimate.seed_ns[size] / cluster.profiled_ns(key, size))
        else:
            ratios.append(estimate.typical(now_ns, size) / cluster.cached_exec_ns(now_ns, key, size)[1])
    factor = median(ratios) if ratios else share.slowness(now_ns)
    return ScheduledShare(share.pages_total, round(factor, 4), () if len(able) == len(keys) else able)
