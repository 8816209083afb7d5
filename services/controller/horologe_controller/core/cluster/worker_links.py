"""Links to workers: what changes when one connects, registers, answers a ping, drains or disconnects.

A worker that drains is released once the models that only it has loaded are loaded on other shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.wire import Drain
from horologe_controller.core.cluster.cluster import WorkerMirror
from horologe_controller.core.cluster.report_checks import check_register, is_clock_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.wire import Pong, Register
    from horologe_controller.core.actions import Actions
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.model_catalogue import ModelCatalogue

HANDOVER_NS = s(3)
"""Longest time that a worker is kept for the LOADs of its models elsewhere. It has `links.drain_ns` (10 s) in all."""


class WorkerLinks:
    """Updates the mirror by the messages of connected workers. `host` is that of the controller."""

    def __init__(self, cluster: Cluster, catalogue: ModelCatalogue, actions: Actions, host: str) -> None:
        self._cluster = cluster
        self._catalogue = catalogue
        self._actions = actions
        self._host = host
        self.handovers: dict[WorkerMirror, tuple[int, list[tuple[Share, str]]]] = {}
        """Draining worker that still runs requests -> its release at the latest, and the LOADs that it waits for.

        Call `release_finished` at the first of these times, and in each turn before."""

    def connect(self, address: str, host: str) -> None:
        """Mirror a worker that has connected. Its shares and models follow in its Register."""
        self._cluster.workers[address] = WorkerMirror(address, host == self._host)
        self._cluster.lost_workers = max(0, self._cluster.lost_workers - 1)

    def register(self, now_ns: int, sender: str, message: Register) -> list[Out]:
        """Adopt a worker's report, unless a later one has arrived before. Return the announcements."""
        worker = self._cluster.workers.get(sender)
        if worker is None:
            return []
        if 0 < message.number <= worker.last_register:
            return self._catalogue.confirm_scans(sender, message) if message.scans else []
        worker.last_register = message.number
        message = check_register(message)
        self._catalogue.discovery.add_worker(sender)
        self._catalogue.discovery.update(now_ns)
        outs = self._catalogue.register_worker(worker, message)
        self._actions.adopt_loads(now_ns, worker, message)
        return outs

    def update_status(self, now_ns: int, sender: str, message: Pong | Drain) -> list[Out]:
        """Update the clock of a worker, or return the LOADs that hand its models over because it drains."""
        worker = self._cluster.workers.get(sender)
        if worker is None:
            return []
        if isinstance(message, Drain):
            return [] if worker in self.handovers else self._begin_handover(now_ns, worker)
        if is_clock_sample(now_ns, message):
            self._cluster.observe_clock(worker, message.sent_ns, message.peer_ns, now_ns)
        return []

    def disconnect(self, worker: WorkerMirror) -> None:
        """Remove a worker from the mirror. Its actions are dropped by `Actions.drop_worker`."""
        leaves = worker.draining or worker in self.handovers
        self.handovers.pop(worker, None)
        self._cluster.remove_worker(worker)
        self._cluster.lost_workers += not leaves

    def _begin_handover(self, now_ns: int, worker: WorkerMirror) -> list[Out]:
        """Hand over the models of a worker, the most recently used ones first. Return the LOADs.

        A model that has not run since its LOAD, or that fits into no free pages, is not handed over.
        """
        outs: list[Out] = []
        targets: list[tuple[Share, str]] = []
        self.handovers[worker] = now_ns + HANDOVER_NS, targets
        for share in worker.shares.values():
            for model in reversed(share.resident):
                if model in share.unused or model not in self._cluster.specs:
                    continue
                holders = self._cluster.residency.shares_of[model]
                others = {other: loaded for other, loaded in holders.items() if self._stays(other)}
                if not others and (target := self._find_target(model)) is not None:
                    outs.append(self._actions.load_model(now_ns, target, model))
                    targets.append((target, model))
                elif others and not any(others.values()):
                    targets.append((next(iter(others)), model))
        return outs

    def release_finished(self, now_ns: int) -> Iterator[Out]:
        """Drain the workers whose models are loaded elsewhere, or whose time has passed. Yield the replies."""
        for worker, (until_ns, targets) in list(self.handovers.items()):
            if now_ns >= until_ns or not any(model in share.loading for share, model in targets):
                del self.handovers[worker]
                self._cluster.drain_worker(worker)
                yield Out(worker.address, Drain())

    def _stays(self, share: Share) -> bool:
        worker = self._cluster.workers.get(share.worker)
        return worker is not None and worker.reachable and worker not in self.handovers

    def _find_target(self, model: str) -> Share | None:
        """Return the share with the most free pages that can load the model without an UNLOAD."""
        pages = self._cluster.specs[model].pages
        capable = self._cluster.capable.get(model, {})
        fitting = [share for share in capable if self._stays(share) and share.can_load(model)]
        roomy = [share for share in fitting if share.pages_free >= pages]
        return max(roomy, key=lambda share: (share.pages_free, -share.index), default=None)
