"""Requests of tuners: plans, changes of the scheduler, and descriptions of the scheduling for a rehearsal."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.models import Profile
from horologe_common.wire import (
    DescribeScheduling,
    ModelReport,
    ResourcePlan,
    ScheduledModel,
    ScheduledShare,
    SchedulingState,
    UseScheduler,
)
from horologe_controller.core.cluster.dynamic_pace import dynamic_slowness
from horologe_controller.core.cluster.planned_models import apply_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.wire import Distributions
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.event_recorder import EventRecorder
    from horologe_controller.core.scheduler_choice import SchedulerChoice
    from horologe_controller.settings import ControllerSettings

MEASURED_MODELS = 100
"""Models, the first ones, whose recent medians are read. The others have the times of their profile: the medians of
1,000 models would take 20 ms, in which no batch starts."""
COMPARED_MODELS = 8
"""Models that the factor of a share is computed from."""


class TunerRequests:
    """Carries out the requests of tuners. A tuner gets events from its first plan on."""

    def __init__(self, cluster: Cluster, events: EventRecorder, choice: SchedulerChoice) -> None:
        self._cluster = cluster
        self._events = events
        self._choice = choice

    def carry_out(
        self, now_ns: int, tuner: str, message: ResourcePlan | DescribeScheduling | UseScheduler
    ) -> list[Out]:
        """Adopt a plan or a scheduler. Return the description of the scheduling, if that is the request.

        A plan without a number only subscribes to events.
        """
        if isinstance(message, DescribeScheduling):
            return [Out(tuner, describe_scheduling(now_ns, self._cluster, self._choice.configured, message.models))]
        if isinstance(message, UseScheduler):
            self._choice.request_change(message)
        else:
            self._events.add_tuner(now_ns, tuner)
            if message.number:
                apply_plan(self._cluster, message)
        return []

    def remove_tuner(self, address: str) -> None:
        """Send no more events to this peer. Without a tuner, the default scheduler returns."""
        if self._events.remove_tuner(address):
            self._choice.request_default()


def describe_scheduling(
    now_ns: int, cluster: Cluster, settings: ControllerSettings, models: Iterable[str]
) -> SchedulingState:
    """Describe the shares, the latency of messages, and those of the models that are served, with their times."""
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
    if distributions is None:
        return ScheduledModel(report)
    return ScheduledModel(report, _scale(distributions.publish(key), _fastest_pace(now_ns, cluster, key)))


def _describe_share(now_ns: int, cluster: Cluster, share: Share, keys: Sequence[str]) -> ScheduledShare:
    """Return the share. Its factor is the median over some models of its time over that of the fastest share."""
    able = tuple(place for place, key in enumerate(keys) if key in share.estimates)
    ratios = []
    for place in able[:COMPARED_MODELS]:
        key = keys[place]
        if key in cluster.distributions:
            slowness = dynamic_slowness(now_ns, cluster, share, cluster.specs[key])
            ratios.append(slowness / _fastest_pace(now_ns, cluster, key))
        else:
            size = cluster.specs[key].batch_sizes[0]
            typical_ns = share.estimates[key].typical(now_ns, size)
            ratios.append(typical_ns / cluster.cached_exec_ns(now_ns, key, size)[1])
    factor = median(ratios) if ratios else share.slowness(now_ns)
    places = {key: place for place, key in enumerate(keys)}
    resident = tuple(places[key] for key in (*share.resident, *share.loading) if key in places)
    return ScheduledShare(share.pages_total, round(factor, 4), () if len(able) == len(keys) else able, resident)


def _fastest_pace(now_ns: int, cluster: Cluster, key: str) -> float:
    return min(dynamic_slowness(now_ns, cluster, share, cluster.specs[key]) for share in cluster.capable[key])


def _scale(published: Distributions, factor: float) -> Distributions:
    """Return the distributions with all times multiplied by a factor of at least 1."""
    histograms = tuple(
        msgspec.structs.replace(part, edges_ns=tuple(round(factor * edge_ns) for edge_ns in part.edges_ns))
        for part in published.histograms
    )
    return msgspec.structs.replace(published, base_ns=round(factor * published.base_ns), histograms=histograms)
