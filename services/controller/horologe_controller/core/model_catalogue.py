"""Which models are admitted, from what the workers report and what operators asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Admit, Models, ModelState, Scan
from horologe_controller.core.cluster.model_profiles import unmeasured

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Register
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.cluster.worker_mirror import Worker

AUDIENCE = ("frontend", "selector", "profiler")
"""Roles that are told which models there are."""


class Repository:
    """The catalogue. Keeps `cluster.specs` to the models that are admitted and that some worker serves."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._withdrawn: dict[str, bool] = {}
        self._scans: list[tuple[str, Admit, dict[str, bool]]] = []
        self._states: dict[str, ModelState] = {}
        self._followers: dict[str, bool] = {}

    def follow(self, address: str) -> Out:
        """Someone who is told of every change: what there is now."""
        self._followers[address] = True
        return Out(address, self._models())

    def leave(self, address: str) -> None:
        self._followers.pop(address, None)

    def announcement(self) -> list[Out]:
        """What there is now, to everyone who follows."""
        models = self._models()
        return [Out(address, models) for address in self._followers]

    def admit(self, sender: str, message: Admit) -> list[Out]:
        """Load: have every worker read the model again, answer when all have; unload: withdraw it at once."""
        if message.admitted:
            for key in self._keys(message):
                self._withdrawn.pop(key, None)
            waiting = dict.fromkeys(self._cluster.workers, True)
            self._scans.append((sender, message, waiting))
            scans = [Out(worker, Scan(message.model)) for worker in waiting]
            return [*scans, *self.refresh()]
        keys = self._keys(message)
        self._withdrawn |= dict.fromkeys(keys, True)
        outs = self.refresh()
        if not keys:
            return [*outs, Out(sender, _unknown(message))]
        return [*outs, Out(sender, Models(message.id, tuple(self._states[key] for key in keys)))]

    def registered(self, worker: Worker, message: Register) -> list[Out]:
        """A worker has reported (again): what it had and has no more is not only away."""
        before = worker.models
        self._cluster.register(worker, message)
        for key in before:
            if key not in worker.models:
                self._states.pop(key, None)
                self._withdrawn.pop(key, None)
        for _, _, waiting in self._scans:
            waiting.pop(worker.address, None)
        return self.changed()

    def failed(self, share: Share, key: str, reason: str) -> list[Out]:
        """A share could not load the model; the worker cannot serve it if no other share of it can."""
        self._cluster.withdraw(share, key)
        worker = self._cluster.workers[share.worker]
        if key in worker.models and not any(key in other.estimates for other in worker.shares.values()):
            worker.models[key] = (worker.models[key][0], None, reason)
        return self.changed()

    def why_not(self, key: str) -> tuple[Status, str]:
        """How a request for a model ends that nobody can run."""
        if (state := self._states.get(key)) is None:
            return Status.UNKNOWN_MODEL, f"model {key!r}: not served any more"
        return Status.FAILED, f"model could not be loaded: {state.reason}"

    def changed(self) -> list[Out]:
        """`refresh`, and what there is now to everyone who follows."""
        return [*self.refresh(), *self.announcement()]

    def refresh(self) -> list[Out]:
        """Recompute from the workers; answers to loads that all of them have dealt with."""
        found = self._found()
        for key, state in found.items():
            if key in self._withdrawn:
                found[key] = ModelState(state.spec, "UNAVAILABLE", "unloaded")
        for key, state in self._states.items():
            if key not in found:  # its workers are away; requests wait for them while their deadlines allow
                state_now = "UNAVAILABLE" if key in self._withdrawn else "LOADING"
                found[key] = ModelState(state.spec, state_now, "no worker serves it now")
        self._states = dict(sorted(found.items()))
        self._cluster.admit({key: state.spec for key, state in self._states.items() if state.state != "UNAVAILABLE"})
        for share in self._cluster.shares():
            self._cluster.stir(share)
        return self._answers()

    def _found(self) -> dict[str, ModelState]:
        """What the workers report. The first that can serve a model says what it is."""
        found: dict[str, ModelState] = {}
        for worker in self._cluster.workers.values():
            for key, (spec, profile, reason) in worker.models.items():
                known = found.get(key)
                if profile is None:
                    found.setdefault(key, ModelState(spec, "UNAVAILABLE", reason))
                elif known is None or known.state != "READY":
                    found[key] = ModelState(spec, "READY", reason)
                elif lacking := unmeasured(profile, known.spec.batch_sizes):
                    reason = f"not at {worker.address}: batch sizes: {lacking} not measured there"
                    found[key] = ModelState(known.spec, "READY", reason)
        return found

    def _models(self) -> Models:
        return Models(0, tuple(self._states.values()))

    def _answers(self) -> list[Out]:
        outs = []
        for scan in list(self._scans):
            sender, message, waiting = scan
            if any(worker in self._cluster.workers for worker in waiting):
                continue
            self._scans.remove(scan)
            states = tuple(self._states[key] for key in self._keys(message))
            bad = next((state for state in states if state.state != "READY"), None)
            if not states:
                outs.append(Out(sender, _unknown(message)))
            elif bad:
                outs.append(Out(sender, Models(message.id, states, int(Status.FAILED), bad.reason)))
            else:
                outs.append(Out(sender, Models(message.id, states)))
        return outs

    def _keys(self, message: Admit) -> list[str]:
        return [key for key, state in self._states.items() if _is(message, state.spec)]


def _is(message: Admit, spec: ModelSpec) -> bool:
    return spec.name == message.model and message.version in ("", spec.version)


def _unknown(message: Admit) -> Models:
    return Models(message.id, (), int(Status.UNKNOWN_MODEL), f"model {message.model!r}: not in any worker's repository")
