"""Description of the cluster for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import Description, ShareState

if TYPE_CHECKING:
    from horologe_common.wire import Describe
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.scheduler_choice import SchedulerChoice


def describe_cluster(
    now_ns: int, message: Describe, cluster: Cluster, choice: SchedulerChoice, pending: int
) -> Description:
    """Return the state of the shares, the scheduler in force, and the number of pending requests."""
    shares = _describe_shares(now_ns, cluster, message.model)
    return Description(message.id, shares, choice.name, pending, choice.reason)


def _describe_shares(now_ns: int, cluster: Cluster, model: str) -> tuple[ShareState, ...]:
    """Return the state of the shares, with the typical durations of `model`."""
    return tuple(
        ShareState(
            share.worker,
            share.number,
            share.device,
            share.pages_total,
            share.pages_free,
            (*share.resident, *share.held),
            len(share.exec.pending) + len(share.load.pending) + len(share.beside.pending),
            share.exec.free_at(now_ns) - now_ns,
            *share.typical_durations(now_ns, model),
            share.hardware,
            tuple(share.kept),
            share.percent,
            cluster.devices.of(share).info,
        )
        for share in cluster.shares()
    )
