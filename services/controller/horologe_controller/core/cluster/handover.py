"""Workers that drain: their models are loaded on other shares before they are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.wire import Drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.cluster.worker_mirror import WorkerMirror

HANDOVER_NS = s(3)
"""Longest time that a worker is kept for the LOADs of its models elsewhere. It has `links.drain_ns` (10 s) in all."""


class Handovers:
    """The draining workers that still run requests, until the models that only they have loaded are loaded elsewhere.

    A model that has not run since its LOAD, or that fits into no free pages, is not handed over. `load_model` returns
    the LOAD of a model.
    """

    def __init__(self, cluster: Cluster, load_model: Callable[[int, Share, str], Out]) -> None:
        self._cluster = cluster
        self._load_model = load_model
        self.until_ns: dict[WorkerMirror, int] = {}
        """Draining worker -> its release at the latest. Call `release_finished` then, and in each turn before."""
        self._targets: dict[WorkerMirror, list[tuple[Share, str]]] = {}
        """Draining worker -> the LOADs that it waits for."""

    def begin(self, now_ns: int, worker: WorkerMirror) -> list[Out]:
        """Hand over the models of a worker, the most recently used ones first. Return the LOADs."""
        outs: list[Out] = []
        if worker in self.until_ns:
            return outs
        self.until_ns[worker] = now_ns + HANDOVER_NS
        targets = self._targets[worker] = []
        for share in worker.shares.values():
            for model in reversed(share.resident):
                if model in share.unused or model not in self._cluster.specs:
                    continue
                holders = self._cluster.residency.shares_of[model]
                others = {other: loaded for other, loaded in holders.items() if self._stays(other)}
                if not others and (target := self._find_target(model)) is not None:
                    outs.append(self._load_model(now_ns, target, model))
                    targets.append((target, model))
                elif others and not any(others.values()):
                    targets.append((next(iter(others)), model))
        return outs

    def release_finished(self, now_ns: int) -> Iterator[Out]:
        """Drain the workers whose models are loaded elsewhere, or whose time has passed. Yield the replies."""
        for worker, until_ns in list(self.until_ns.items()):
            waits = any(model in share.loading for share, model in self._targets[worker])
            if not waits or now_ns >= until_ns:
                self.remove_worker(worker)
                self._cluster.drain_worker(worker)
                yield Out(worker.address, Drain())

    def remove_worker(self, worker: WorkerMirror) -> None:
        """Remove a worker that is released or has disconnected."""
        self.until_ns.pop(worker, None)
        self._targets.pop(worker, None)

    def _stays(self, share: Share) -> bool:
        worker = self._cluster.workers.get(share.worker)
        return worker is not None and worker.reachable and worker not in self.until_ns

    def _find_target(self, model: str) -> Share | None:
        """Return the share with the most free pages that can load the model without an UNLOAD."""
        pages = self._cluster.specs[model].pages
        capable = self._cluster.capable.get(model, {})
        fitting = [s for s in capable if self._stays(s) and s.can_load(model) and s.pages_free >= pages]
        return max(fitting, key=lambda share: (share.pages_free, -share.index), default=None)
