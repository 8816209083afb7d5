"""Catalogue of models: which are admitted, from the reports of workers and the commands of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.message_order import RecentCalls
from horologe_common.core.protocol import Out
from horologe_common.status import HorologeError, Status
from horologe_common.wire import Models, ModelState, Scan
from horologe_controller.core.model_loads import LOADS_MAX, PendingLoad, PendingLoads, matches_key, with_unchanged
from horologe_controller.core.reported_models import combine_reports
from horologe_controller.core.version_switches import VersionSwitches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_common.wire import Admit, ModelReport, Register
    from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
    from horologe_controller.core.cluster.discovery import WorkerDiscovery
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import RequestQueues


class ModelCatalogue:
    """States of all models. It keeps `Cluster.specs` to the admitted models that at least one worker serves.

    A model has one content at a time: that of its spec. While a load of the model is in progress, workers may run the
    content before or the new one.
    """

    def __init__(self, cluster: Cluster, discovery: WorkerDiscovery, store: str = "") -> None:
        """`store`: the address of the state file."""
        self.discovery = discovery
        self.switches = VersionSwitches(cluster, store)
        self._cluster = cluster
        self._calls = RecentCalls()
        self._announcements = 0
        self._withdrawn: dict[str, bool] = {}
        """Models that an operator has unloaded."""
        self._loads = PendingLoads()
        self.released: dict[str, bool] = {}
        """Versions (keys) that lost their requests. They are unloaded when no request and no stream needs them."""
        self._states: dict[str, ModelState] = {}
        self._stale: dict[str, str] = {}
        """Models whose content in a worker's repository is not served -> the reason."""
        self._subscribers: dict[str, bool] = {}

    def add_subscriber(self, address: str) -> Out:
        """Send all changes to `address` from now on. Return the current state for it."""
        self._subscribers[address] = True
        return Out(address, self._models())

    def remove_peer(self, address: str) -> list[Out]:
        """Remove a peer that has disconnected, and return what the loads that waited for it send next."""
        self._subscribers.pop(address, None)
        self._loads.confirm(address)
        return self._advance_loads()

    def pop_released(self, now_ns: int, queues: RequestQueues) -> list[str]:
        """Return the versions to unload now: those that no switch, stream, EXEC or queued request needs."""
        shares = list(self._cluster.shares())
        switched = {switch.key for switch in self.switches.pending.values()}
        popped = [
            key
            for key in self.released
            if key not in switched
            and not queues.of_model(key)
            and not any(share.is_running(key) or share.has_streams(now_ns, key) for share in shares)
        ]
        for key in popped:
            del self.released[key]
        return [key for key in popped if key in self._states and not self._states[key].traffic]

    def _release_unused(self, keys: Iterable[str], states: Mapping[str, ModelState]) -> None:
        """Release the versions that get no requests. Frontends may have requests for one that a load still drains."""
        for key in keys:
            if key in states and not states[key].traffic and not self._loads.is_draining(key):
                self.released[key] = True

    def announce(self) -> list[Out]:
        """Return the current state for every subscriber."""
        models = self._models()
        return [Out(address, models) for address in self._subscribers]

    def admit(self, sender: str, message: Admit) -> list[Out]:
        """Load or unload models for an operator.

        A load makes every worker read the model again, and takes effect when all have. An unload takes effect at once.
        A call that arrives again is ignored.
        """
        if self._calls.is_repeated(sender, message.id):
            return []
        if message.admitted and len(self._loads) >= LOADS_MAX:
            reason = f"{LOADS_MAX} loads have no answer yet"
            return [Out(sender, Models(message.id, (), int(Status.REFUSED), reason))]
        keys = self._matching_keys(message)
        if message.admitted:
            before = {key: self._states[key].spec.content_hash for key in keys if self._states[key].state == "READY"}
            versions = self.switches.versions_to_load(message)
            workers = self._cluster.workers if versions is None or not versions.keys() <= before.keys() else ()
            scans = self._loads.start_load(sender, message, workers, {} if message.rollout else before)
            return scans or self.refresh_and_announce()
        self._withdrawn |= dict.fromkeys(keys, True)
        self._loads.revoke(message)
        outs = self.refresh_and_announce() if keys else []
        states = tuple(self._states[key] for key in keys)
        return [*outs, Out(sender, Models(message.id, states) if keys else self._unknown_model(message))]

    def register_worker(self, worker: WorkerMirror, message: Register) -> list[Out]:
        """Adopt a worker's report. A model that no worker has any more is removed, not only unavailable."""
        before = worker.models
        worker.update_models(message)
        kept = [(key, report) for key, report in worker.models.items() if key in before]
        changed = [key for key, report in kept if report.spec.content_hash != before[key].spec.content_hash]
        served = {key for other in self._cluster.workers.values() for key in other.models}
        for key in before:
            if key not in served:
                self._states.pop(key, None)
                self._withdrawn.pop(key, None)
                self._cluster.retired.pop(key, None)
                self._cluster.distributions.pop(key, None)
        self._loads.confirm(worker.address, message.scans)
        outs = self.refresh_and_announce()
        self._cluster.register_worker(worker, message, changed)  # it can run models whose content was just chosen
        if not before:
            outs += [Out(worker.address, Scan(name)) for name in self._names_with_other_content(worker)]
        return outs

    def _names_with_other_content(self, worker: WorkerMirror) -> dict[str, bool]:
        """Return the models of which a worker has another content than the others.

        It reads them again when it connects, because a Scan may have been lost with its last connection.
        """
        specs = self._cluster.specs
        reported = [(specs.get(key), report.spec) for key, report in worker.models.items() if not report.loading]
        return {spec.name: True for spec, other in reported if spec and spec.content_hash != other.content_hash}

    def confirm_scans(self, worker: str, message: Register) -> list[Out]:
        """Adopt only the scans that a report answers: a later report of the worker has arrived before."""
        self._loads.confirm(worker, message.scans)
        return self.refresh_and_announce()

    def on_settled(self, address: str, load_id: int) -> list[Out]:
        """Record that a selector or frontend has settled, and return what its load sends next."""
        self._loads.confirm(address, (load_id,))
        return self._advance_loads()

    def mark_load_failed(self, share: Share, key: str, reason: str) -> list[Out]:
        """Withdraw a model from a share that failed to load it, and from the worker if no other share has it."""
        self._cluster.capable_shares.withdraw_model(share, key)
        worker = self._cluster.workers[share.worker]
        if key in worker.models and not any(key in other.estimates for other in worker.shares.values()):
            worker.mark_load_failed(key, reason)
        return self.refresh_and_announce()

    def explain_missing(self, key: str) -> str:
        """Return why a request for a model that is not admitted should wait; empty if it should not.

        The model is loading, or a worker that has not registered may have it.
        """
        if (state := self._states.get(key)) is not None:
            return f"model {key!r} is loading: {state.reason}" if state.state == "LOADING" else ""
        if self.discovery.missing:
            return f"model {key!r} is not known yet: {self.discovery.missing}"
        return ""

    def explain_unserved(self, key: str) -> tuple[Status, str]:
        """Return the status and reason for a request whose model no worker can run."""
        if (state := self._states.get(key)) is None:
            return Status.UNKNOWN_MODEL, f"model {key!r}: not served any more"
        if state.state == "LOADING":
            return Status.REFUSED, f"model {key!r} is loading: {state.reason}"
        return Status.FAILED, f"model could not be loaded: {state.reason}"

    def refresh_and_announce(self) -> list[Out]:
        """Recompute the states. Return them for every subscriber, and what the loads that were scanned send next."""
        scanned = self._loads.confirmed_loads(scans=True)
        for load in scanned:
            for key in [key for key in self._withdrawn if not load.revoked and matches_key(load.message, key)]:
                if load.message.version or not load.message.rollout:
                    del self._withdrawn[key]
        self._update_states({load.message.model: True for load in scanned})
        for share in self._cluster.shares():
            self._cluster.changes.mark_reconfigured(share)
        outs = [*self.switches.save(), *self.announce()]
        for load in scanned:
            outs += self._advance_load(load)
        return outs

    def advance_switches(self, now_ns: int) -> list[Out]:
        """End the switches whose versions are loaded, and return what the loads that waited for them send next."""
        ended = False
        for name, switch in list(self.switches.pending.items()):
            before = self.switches.rollouts[name]
            end = self.switches.advance(now_ns, name, self._states.get(switch.key))
            if end is not None:
                after, ended = self.switches.rollouts[name], True
                drained = tuple([f"{name}/{old}" for old in before.versions() if old not in after.versions()])
                self._loads.finish_switch(name, drained, end if end[0] != Status.OK else None)
        return [*self.refresh_and_announce(), *self._advance_loads()] if ended else []

    def _update_states(self, scanned_names: Mapping[str, bool]) -> None:
        """Recompute the states from the workers' reports, and admit the models that can be served."""
        reports: dict[str, dict[str, ModelReport]] = {}
        for worker in self._cluster.workers.values():
            for key, report in worker.models.items():
                reports.setdefault(key, {})[worker.address] = report
        self._stale, states, retired = {}, {}, {}
        for key, parts in reports.items():
            scanned = key.partition("/")[0] in scanned_names
            states[key], stale, is_retired = combine_reports(parts, self._states.get(key), scanned=scanned)
            if stale:
                self._stale[key] = stale
            if is_retired:
                retired[key] = True
        for key, state in states.items():
            if key in self._withdrawn:
                states[key] = ModelState(state.spec, "UNAVAILABLE", "unloaded")
        for key, state in self._states.items():
            if (
                key not in states and key not in self.switches.missing
            ):  # its workers are away; its requests wait for them while their deadlines allow
                state_now = "UNAVAILABLE" if key in self._withdrawn else "LOADING"
                states[key] = ModelState(state.spec, state_now, "no worker serves it now")
        self._states = dict(sorted(self._give_traffic(states, retired).items()))
        specs = {
            key: state.spec
            for key, state in self._states.items()
            if state.state != "UNAVAILABLE" and state.spec.has_signature
        }
        self._cluster.admit_models(specs, self._loads.scanning_names())

    def _give_traffic(self, states: dict[str, ModelState], retired: Mapping[str, bool]) -> dict[str, ModelState]:
        """Choose the versions that requests without a version reach, and return the states with their parts.

        `retired`: versions that no repository has any more. They are unloaded when no request reaches them.
        """
        names: dict[str, list[ModelState]] = {}
        for state in states.values():
            names.setdefault(state.spec.name, []).append(state)
        scanning = self._loads.scanning_names()
        self.switches.forget_unknown(names)
        for name, versions in names.items():
            waited = name in self.switches.pending
            states |= self.switches.give_traffic(name, versions, retired, self.discovery.missing, name in scanning)
            if name in self.switches.pending and not waited:
                self._loads.start_switch(name)
        self._release_unused(retired, states)
        return states

    def _models(self) -> Models:
        self._announcements += 1
        states = tuple(self._states.values())
        return Models(0, states, number=self._announcements, incomplete=self.discovery.missing)

    def _advance_loads(self) -> list[Out]:
        """Return what the loads send next that selectors or frontends have confirmed."""
        outs = []
        for load in self._loads.confirmed_loads(scans=False):
            outs += self._advance_load(load)
        return outs

    def _advance_load(self, load: PendingLoad) -> list[Out]:
        """Return the Settles of the load's next stage, or its answer."""
        message, is_rollout = load.message, bool(load.message.rollout)
        if is_rollout and load.stage == 0:
            load.fault = self._start_switch(message)
        keys = self._matching_keys(msgspec.structs.replace(message, version="") if is_rollout else message)
        states = tuple(self._states[key] for key in keys)
        fault = load.fault
        if fault is None and load.sender and not is_rollout:
            fault = self._find_fault(states)
        if states and fault is None:
            is_switching = message.model in self.switches.pending
            settles = self._loads.advance(load, keys, self._subscribers, is_switching=is_switching)
            if load.waiting:
                return settles
        self._loads.finish(load)
        self._release_unused(load.drained, self._states)
        if not load.sender:
            return []
        if not states:
            return [Out(load.sender, self._unknown_model(message))]
        follows_newest = message.rollout == "promote" and not message.version
        if fault is None and follows_newest and not any(state.state == "READY" for state in states):
            fault = self._find_fault(states)  # the promotion is effective, but no version can answer
        status, reason = fault or (Status.OK, "")
        states = tuple(with_unchanged(state, load.before) for state in states)
        return [Out(load.sender, Models(message.id, states, int(status), reason))]

    def _start_switch(self, message: Admit) -> tuple[Status, str] | None:
        """Begin the switch that an operator has requested. Return the status and reason if that is not possible."""
        states = [state for state in self._states.values() if state.spec.name == message.model]
        if not states:
            return None  # the load ends with UNKNOWN_MODEL
        try:
            self.switches.begin_rollout(message, {state.spec.version: state for state in states})
        except HorologeError as error:
            return error.status, error.reason
        return None

    def _find_fault(self, states: Sequence[ModelState]) -> tuple[Status, str] | None:
        """Return the status and reason of a load whose versions are not all READY with their new content."""
        faults = [self._stale.get(state.spec.key, state.reason) for state in states if self._has_failed(state)]
        if not faults:
            return None
        away = any(state.state == "LOADING" for state in states)  # its workers have disconnected: load it again
        return Status.REFUSED if away else Status.FAILED, faults[0]

    def _has_failed(self, state: ModelState) -> bool:
        return state.state != "READY" or state.spec.key in self._stale

    def _matching_keys(self, message: Admit) -> list[str]:
        return [key for key in self._states if matches_key(message, key)]

    def _unknown_model(self, message: Admit) -> Models:
        status, reason = Status.UNKNOWN_MODEL, f"model {message.model!r}: not in any worker's repository"
        if self.discovery.missing:
            status, reason = Status.REFUSED, f"model {message.model!r} is not known yet: {self.discovery.missing}"
        return Models(message.id, (), int(status), reason)
