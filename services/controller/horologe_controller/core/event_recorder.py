"""Events for tuners: arrivals in fine bins, results and devices, collected per turn and sent at a constant interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.latency_buckets import latency_bucket
from horologe_common.wire import DeviceState, Events, ModelEvents, PipelineArrivals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.requests.request import Request

BIN_NS = ms(10)
INTERVAL_NS = ms(100)
"""Time between two messages with arrivals to a tuner."""


class _ModelCounts(msgspec.Struct):
    """Events of a model since the last message."""

    bins: dict[int, int] = {}
    """Number of a bin since the clock's start -> requests."""
    refused: int = 0
    latencies: dict[int, int] = {}
    """Bucket -> requests."""


class EventRecorder:
    """Collects events while a tuner subscribes. Its memory is bounded by the models and the bins of an interval."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        """Tuner -> number of its last message."""
        self._models: dict[str, _ModelCounts] = {}
        self._queries: dict[str, dict[int, int]] = {}
        """Pipeline -> number of a bin since the clock's start -> queries."""
        self._sent_ns = 0
        self._devices: dict[str, tuple[DeviceState, ...]] = {}
        """Tuner -> devices as it knows them."""
        self.active = False
        """True if a tuner subscribes. Nothing is recorded otherwise."""
        self.due_ns: int | None = None
        """When the next message is due; None without a tuner."""

    def add_tuner(self, now_ns: int, address: str) -> None:
        """Send events to `address` from now on."""
        if address not in self._numbers:
            self._numbers[address] = 0
            if not self.active:
                self.active, self._sent_ns, self.due_ns = True, now_ns, now_ns + INTERVAL_NS

    def remove_tuner(self, address: str) -> None:
        """Stop recording if this was the last tuner."""
        self._numbers.pop(address, None)
        self._devices.pop(address, None)
        if not self._numbers:
            self.active, self.due_ns = False, None
            self._models.clear()
            self._queries.clear()

    def record_arrivals(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Count requests that have arrived in this turn. Call it once per turn and queue."""
        first = requests[0]
        if not first.best_effort:
            _add(self._find(first.model).bins, now_ns, len(requests))

    def record_queries(self, now_ns: int, counts: Iterable[tuple[str, int]]) -> None:
        """Count the queries of pipelines that have arrived at a selector in its last turn."""
        if self.active:
            for pipeline, count in counts:
                _add(self._queries.setdefault(pipeline, {}), now_ns, count)

    def record_refusal(self, request: Request, count: int = 1) -> None:
        """Count a refused request, or `count` requests like it."""
        if not request.best_effort:
            self._find(request.model).refused += count

    def record_latencies(self, answered_ns: int, action: Action, slo_ns: int) -> None:
        """Count the latencies of a finished batch until `answered_ns`. `slo_ns`: SLO of the plan."""
        latencies = self._find(action.model).latencies
        for request in action.requests:
            bucket = latency_bucket(answered_ns - request.arrival_ns, slo_ns)
            latencies[bucket] = latencies.get(bucket, 0) + 1

    def pop_events(self, now_ns: int, cluster: Cluster) -> list[Out]:
        """Return the messages with the events since the last ones."""
        span_ns, self._sent_ns, self.due_ns = now_ns - self._sent_ns, now_ns, now_ns + INTERVAL_NS
        models, self._models = self._models, {}
        queries, self._queries = self._queries, {}
        events = tuple(
            ModelEvents(
                model,
                _ages(counts.bins, now_ns),
                refused=counts.refused,
                latencies=tuple(sorted(counts.latencies.items())),
            )
            for model, counts in models.items()
        )
        pipelines = tuple(PipelineArrivals(name, _ages(bins, now_ns)) for name, bins in queries.items())
        devices = describe_devices(cluster)
        outs = []
        for address, number in self._numbers.items():
            self._numbers[address] = number + 1
            changed = devices if self._devices.get(address) != devices else None
            self._devices[address] = devices
            plan = cluster.planned.number
            outs.append(Out(address, Events(number + 1, span_ns, BIN_NS, events, changed, plan, pipelines)))
        return outs

    def _find(self, model: str) -> _ModelCounts:
        if (counts := self._models.get(model)) is None:
            counts = self._models[model] = _ModelCounts({}, latencies={})
        return counts


def _add(bins: dict[int, int], now_ns: int, count: int) -> None:
    number = now_ns // BIN_NS
    bins[number] = bins.get(number, 0) + count


def _ages(bins: dict[int, int], now_ns: int) -> tuple[tuple[int, int], ...]:
    """Return (age, count) of each bin, ascending."""
    last = now_ns // BIN_NS
    return tuple((last - number, count) for number, count in sorted(bins.items(), reverse=True))


def describe_devices(cluster: Cluster) -> tuple[DeviceState, ...]:
    """Return the shares that actions can be planned for, with their hardware and the models that they keep."""
    return tuple(
        DeviceState(
            share.worker,
            share.number,
            share.hardware,
            tuple(share.kept),
            tuple(key for key in share.kept if key in share.resident or key in share.held),
            share.percent,
            cluster.devices.of(share).info.id,
        )
        for share in cluster.shares()
    )
