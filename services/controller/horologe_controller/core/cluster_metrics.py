"""Gauges of the cluster and of open requests. They are computed when the metrics are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import instance
from horologe_common.models import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.core.instruments import Stats
    from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
    from horologe_controller.core.requests.request import Request

    Gauge = dict[tuple[str, ...], float]


def publish_cluster(now_ns: int, stats: Stats, cluster: Cluster) -> None:
    """Set the gauges of workers, shares, devices and models."""
    workers = cluster.workers.values()
    states: Gauge = {("ready",): 0, ("draining",): 0, ("unreachable",): 0, ("lost",): cluster.lost_workers}
    for worker in workers:
        states[_worker_state(worker),] += 1
    _replace_gauge(stats, "horologe_workers", states)
    clocks = {_incarnation(worker.address): worker.clock for worker in workers if worker.clock.is_measured}
    offsets = {labels: clock.offset_ns / 1e9 for labels, clock in clocks.items()}
    _replace_gauge(stats, "horologe_clock_offset_seconds", offsets)
    errors = {labels: clock.error_ns / 1e9 for labels, clock in clocks.items()}
    _replace_gauge(stats, "horologe_clock_error_seconds", errors)
    slowness: Gauge = {
        (instance(share.worker), str(share.number)): share.slowness(now_ns) for share in cluster.shares()
    }
    _replace_gauge(stats, "horologe_device_slowness", slowness)
    devices = cluster.devices.by_id.values()
    percents: Gauge = {(device.info.id, device.info.type): device.percent for device in devices}
    _replace_gauge(stats, "horologe_device_share_percent", percents)
    _publish_models(stats, cluster)


def _publish_models(stats: Stats, cluster: Cluster) -> None:
    labels = {key: (spec.name, spec.version) for key, spec in cluster.specs.items()}
    dynamic: Gauge = {labels[key]: float(key in cluster.distributions) for key in labels}
    _replace_gauge(stats, "horologe_model_dynamic", dynamic)
    pages: Gauge = dict.fromkeys(labels.values(), 0)
    shares: Gauge = dict.fromkeys(labels.values(), 0)
    for share in cluster.shares():
        for key, count in share.resident.items():
            if key in labels:
                pages[labels[key]] += count * PAGE_BYTES
                shares[labels[key]] += 1
    _replace_gauge(stats, "horologe_model_resident_bytes", pages)
    _replace_gauge(stats, "horologe_model_resident_shares", shares)


def publish_requests(now_ns: int, stats: Stats, cluster: Cluster, requests: Iterable[Request]) -> None:
    """Set the gauges of open requests: their number by model, and the age of the oldest queued one."""
    pending: Gauge = {(spec.name, spec.version): 0 for spec in cluster.specs.values()}
    oldest_ns = now_ns
    for request in requests:
        labels = request.spec.name, request.spec.version
        pending[labels] = pending.get(labels, 0) + 1
        if request.queued and not request.best_effort and request.arrival_ns < oldest_ns:
            oldest_ns = request.arrival_ns
    _replace_gauge(stats, "nv_inference_pending_request_count", pending)
    stats.set("horologe_oldest_request_seconds", to=(now_ns - oldest_ns) / 1e9)


def _worker_state(worker: WorkerMirror) -> str:
    if worker.draining:
        return "draining"
    return "ready" if worker.reachable else "unreachable"


def _incarnation(address: str) -> tuple[str, ...]:
    """Return name and incarnation. After a restart on another machine, the offset is that of another clock."""
    return instance(address), address.partition("#")[2]


def _replace_gauge(stats: Stats, name: str, current: Gauge) -> None:
    """Set a gauge for all labels in `current`, and drop its other labels: their shares or models no longer exist."""
    for key in [key for key in list(stats.values) if key[0] == name and key[1:] not in current]:
        del stats.values[key]
    for labels, value in current.items():
        stats.set(name, *labels, to=value)
