"""Description of the cluster for operators."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from horologe_common.wire import Description, ShareState

if TYPE_CHECKING:
    from horologe_common.wire import Describe
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.traffic import Traffic


def describe_cluster(
    now_ns: int, message: Describe, cluster: Cluster, scheduler: str, traffic: Traffic | None, pending: int
) -> Description:
    """Return the state of the shares, the scheduler, the number of pending requests, and who is served worst.

    `traffic`: None if the scheduler has no ledger.
    """
    shares = _describe_shares(now_ns, cluster, message.model)
    worst = "" if traffic is None else _describe_worst(now_ns, cluster, traffic)
    return Description(message.id, shares, scheduler, pending, worst_served=worst)


def _describe_worst(now_ns: int, cluster: Cluster, traffic: Traffic) -> str:
    """Return the model of which the smallest part is served, and why; empty if the part is 100%."""
    parts = {model: part for model, part in traffic.served_parts().items() if model in cluster.specs}
    part = min(parts.values(), default=1.0)
    if (shown := f"{part:.0%}") == "100%":
        return ""
    model = next(model for model in parts if parts[model] == part)
    mean = sum(parts.values(), 0.0) / len(parts)
    text = f"{model}: {shown} of its requests are served, {mean:.0%} of a model's on average: "
    if model not in cluster.residency.shares_of:
        return text + "no share holds it"
    times_ns = {name: cluster.cached_exec_ns(now_ns, name, cluster.specs[name].batch_sizes[0])[0] for name in parts}
    own_ms, usual_ms = times_ns[model] / 1e6, median(times_ns.values()) / 1e6
    return text + f"a request alone takes {own_ms:.3g} ms, one of the median model {usual_ms:.3g} ms"


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
