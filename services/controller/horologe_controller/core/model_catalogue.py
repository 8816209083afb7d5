"""Catalogue of models: which are admitted, from the reports of workers and the commands of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.message_order import RecentCalls
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Admit, Models, ModelState, Scan
from horologe_controller.core.cluster.estimates import missing_batch_sizes

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Register
    from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
    from horologe_controller.core.cluster.discovery import WorkerDiscovery
    from horologe_controller.core.cluster.share import Share

SUBSCRIBER_ROLES = ("frontend", "selector", "profiler")
"""Roles that receive every change of the catalogue."""


class ModelCatalogue:
    """States of all models. It keeps `Cluster.specs` to the admitted models that at least one worker serves."""

    def __init__(self, cluster: Cluster, discovery: WorkerDiscovery) -> None:
        self.discovery = discovery
        self._cluster = cluster
        self._calls = RecentCalls()
        self._announcements = 0
        self._withdrawn: dict[str, bool] = {}
        """Models that an operator has unloaded."""
        self._scans: list[tuple[str, Admit, dict[str, bool]]] = []
        """Pending loads: (sender, message, workers that have not reported yet)."""
        self._states: dict[str, ModelState] = {}
        self._subscribers: dict[str, bool] = {}

    def add_subscriber(self, address: str) -> Out:
        """Send all changes to `address` from now on. Return the current state for it."""
        self._subscribers[address] = True
        return Out(address, self._models())

    def remove_subscriber(self, address: str) -> None:
        self._subscribers.pop(address, None)

    def announce(self) -> list[Out]:
        """Return the current state for every subscriber."""
        models = self._models()
        return [Out(address, models) for address in self._subscribers]

    def admit(self, sender: str, message: Admit) -> list[Out]:
        """Load or unload models for an operator.

        A load makes every worker read the model again and is answered when all have. An unload takes effect at once.
        A call that arrives again is ignored.
        """
        if self._calls.is_repeated(sender, message.id):
            return []
        if message.admitted:
            for key in self._matching_keys(message):
                self._withdrawn.pop(key, None)
            waiting = dict.fromkeys(self._cluster.workers, True)
            self._scans.append((sender, message, waiting))
            scans = [Out(worker, Scan(message.model)) for worker in waiting]
            return [*scans, *self.refresh()]
        keys = self._matching_keys(message)
        self._withdrawn |= dict.fromkeys(keys, True)
        outs = self.refresh()
        if not keys:
            return [*outs, Out(sender, self._unknown_model(message))]
        return [*outs, Out(sender, Models(message.id, tuple(self._states[key] for key in keys)))]

    def register_worker(self, worker: WorkerMirror, message: Register) -> list[Out]:
        """Adopt a worker's report. A model that it has stopped serving is removed, not only unavailable."""
        before = worker.models
        self._cluster.register_worker(worker, message)
        for key in before:
            if key not in worker.models:
                self._states.pop(key, None)
                self._withdrawn.pop(key, None)
        for _, _, waiting in self._scans:
            waiting.pop(worker.address, None)
        return self.refresh_and_announce()

    def mark_load_failed(self, share: Share, key: str, reason: str) -> list[Out]:
        """Withdraw a model from a share that failed to load it, and from the worker if no other share has it."""
        self._cluster.withdraw_model(share, key)
        worker = self._cluster.workers[share.worker]
        if key in worker.models and not any(key in other.estimates for other in worker.shares.values()):
            worker.models[key] = (worker.models[key][0], None, reason)
        return self.refresh_and_announce()

    def explain_missing(self, key: str) -> str:
        """Return why a model that no worker has registered may exist nevertheless; empty if it does not."""
        if self.discovery.missing and key not in self._states:
            return f"model {key!r} is not known yet: {self.discovery.missing}"
        return ""

    def explain_unserved(self, key: str) -> tuple[Status, str]:
        """Return the status and reason for a request whose model no worker can run."""
        if (state := self._states.get(key)) is None:
            return Status.UNKNOWN_MODEL, f"model {key!r}: not served any more"
        return Status.FAILED, f"model could not be loaded: {state.reason}"

    def refresh_and_announce(self) -> list[Out]:
        """Recompute the states, and return them for every subscriber."""
        return [*self.refresh(), *self.announce()]

    def refresh(self) -> list[Out]:
        """Recompute the states from the workers' reports. Return answers to the loads that have completed."""
        states = self._reported_states()
        for key, state in states.items():
            if key in self._withdrawn:
                states[key] = ModelState(state.spec, "UNAVAILABLE", "unloaded")
        for key, state in self._states.items():
            if key not in states:  # its workers are away; its requests wait for them while their deadlines allow
                state_now = "UNAVAILABLE" if key in self._withdrawn else "LOADING"
                states[key] = ModelState(state.spec, state_now, "no worker serves it now")
        self._states = dict(sorted(states.items()))
        self._cluster.admit_models(
            {key: state.spec for key, state in self._states.items() if state.state != "UNAVAILABLE"}
        )
        for share in self._cluster.shares():
            self._cluster.changes.mark_reconfigured(share)
        return self._completed_loads()

    def _reported_states(self) -> dict[str, ModelState]:
        """Return the states that the workers report. The first worker that can serve a model defines its spec."""
        states: dict[str, ModelState] = {}
        for worker in self._cluster.workers.values():
            for key, (spec, profile, reason) in worker.models.items():
                state = states.get(key)
                if profile is None:
                    states.setdefault(key, ModelState(spec, "UNAVAILABLE", reason))
                elif state is None or state.state != "READY":
                    states[key] = ModelState(spec, "READY", reason)
                elif missing := missing_batch_sizes(profile, state.spec.batch_sizes):
                    reason = f"not at {worker.address}: batch sizes: {missing} not measured there"
                    states[key] = ModelState(state.spec, "READY", reason)
        return states

    def _models(self) -> Models:
        self._announcements += 1
        states = tuple(self._states.values())
        return Models(0, states, number=self._announcements, incomplete=self.discovery.missing)

    def _completed_loads(self) -> list[Out]:
        """Return an answer for each pending load that all its workers have dealt with."""
        outs = []
        for scan in list(self._scans):
            sender, message, waiting = scan
            if any(worker in self._cluster.workers for worker in waiting):
                continue
            self._scans.remove(scan)
            states = tuple(self._states[key] for key in self._matching_keys(message))
            failed = next((state for state in states if state.state != "READY"), None)
            if not states:
                outs.append(Out(sender, self._unknown_model(message)))
            elif failed:
                outs.append(Out(sender, Models(message.id, states, int(Status.FAILED), failed.reason)))
            else:
                outs.append(Out(sender, Models(message.id, states)))
        return outs

    def _matching_keys(self, message: Admit) -> list[str]:
        return [key for key, state in self._states.items() if _matches(message, state.spec)]

    def _unknown_model(self, message: Admit) -> Models:
        status, reason = Status.UNKNOWN_MODEL, f"model {message.model!r}: not in any worker's repository"
        if self.discovery.missing:
            status, reason = Status.REFUSED, f"model {message.model!r} is not known yet: {self.discovery.missing}"
        return Models(message.id, (), int(status), reason)


def _matches(message: Admit, spec: ModelSpec) -> bool:
    return spec.name == message.model and message.version in ("", spec.version)
