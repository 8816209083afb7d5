"""Links to workers: what changes when one connects, registers, answers a ping, drains or disconnects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import Drain
from horologe_controller.core.cluster.report_checks import check_register, is_clock_sample
from horologe_controller.core.cluster.worker_mirror import WorkerMirror

if TYPE_CHECKING:
    from horologe_common.core.protocol import Out
    from horologe_common.wire import Pong, Register
    from horologe_controller.core.actions import Actions
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.handover import Handovers
    from horologe_controller.core.model_catalogue import ModelCatalogue


class WorkerLinks:
    """Updates the mirror by the messages of connected workers. `host` is that of the controller."""

    def __init__(
        self, cluster: Cluster, catalogue: ModelCatalogue, actions: Actions, handovers: Handovers, host: str
    ) -> None:
        self._cluster = cluster
        self._catalogue = catalogue
        self._actions = actions
        self._handovers = handovers
        self._host = host

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
            return self._handovers.begin(now_ns, worker)
        if is_clock_sample(now_ns, message):
            self._cluster.observe_clock(worker, message.sent_ns, message.peer_ns, now_ns)
        return []

    def disconnect(self, worker: WorkerMirror) -> None:
        """Remove a worker from the mirror. Its actions are dropped by `Actions.drop_worker`."""
        leaves = worker.draining or worker in self._handovers.until_ns
        self._handovers.remove_worker(worker)
        self._cluster.remove_worker(worker)
        self._cluster.lost_workers += not leaves
