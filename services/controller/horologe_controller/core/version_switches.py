"""Switches between versions of a model: a new version is loaded before requests without a version reach it.

While a switch waits, the shares that hold the version before keep both loaded, like the models of a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.models import ModelSpec, natural_sort_key
from horologe_common.rollouts import ControllerState, Rollout
from horologe_common.status import InvalidInput, ModelFailed, Status, UnknownModel
from horologe_common.wire import ModelState

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from horologe_common.wire import Admit
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share

SLACK_NS, SLACK_LOADS = s(10), 4
"""A version must be loaded within this time and this many LOADs. Then the shares that hold it are enough."""


class Switch:
    """A change of the rollout of a model that waits until the version `key` is loaded. An empty key: none is added."""

    def __init__(self, rollout: Rollout, key: str, must_load: bool) -> None:
        self.rollout = rollout
        self.key = key
        self.must_load = must_load
        self.shares: dict[Share, bool] = {}
        """Shares on which it is loaded."""
        self.until_ns = 0
        """When it ends at the latest. 0: it has not begun to load."""


class VersionSwitches:
    """The rollout of every model, and the switches that wait. They write `Cluster.retired`."""

    def __init__(self, cluster: Cluster, store: str = "") -> None:
        self.rollouts: dict[str, Rollout] = {}
        self.pending: dict[str, Switch] = {}
        """Switches by the name of the model."""
        self.missing: dict[str, bool] = {}
        """Current versions (keys) that no worker has. Their states are made up."""
        self._cluster = cluster
        self._store = store
        self._saved: dict[str, Rollout] = {}

    def restore(self, state: ControllerState) -> None:
        """Adopt the rollouts of an earlier controller."""
        self.rollouts = dict(state.rollouts)
        self._saved = dict(state.rollouts)
        for name, rollout in self.rollouts.items():
            if rollout.previous and rollout.previous not in rollout.versions():
                self._cluster.retired[f"{name}/{rollout.previous}"] = True

    def save(self) -> Iterator[Out]:
        """Yield the state for the state file, if it has changed. It must be sent before it is announced."""
        kept = {name: rollout for name, rollout in self.rollouts.items() if rollout.pinned or rollout.previous}
        if kept != self._saved:
            self._saved = kept
            yield Out(self._store, ControllerState(kept))

    def forget_unknown(self, names: Container[str]) -> None:
        """Forget the models that no worker has any more, unless their rollout is kept in the state file."""
        self.missing.clear()
        for name in [name for name in self.rollouts if name not in names and name not in self._saved]:
            self._cancel(name)
            del self.rollouts[name]

    def give_traffic(
        self,
        name: str,
        versions: list[ModelState],
        retired: Mapping[str, bool],
        missing: str,
        scanning: bool,
    ) -> dict[str, ModelState]:
        """Return the states of a model with the part of the requests that each gets, by key.

        Unless an operator has chosen a version, it is the newest one that is READY. A version that is in use stays
        until the newer one is loaded, and while workers are `scanning` the model. A single version gets all requests
        unless it is UNAVAILABLE. `retired`: versions that no repository has any more. `missing`: why versions may be
        missing.
        """
        if len(versions) > 1:
            versions.sort(key=lambda state: natural_sort_key(state.spec.version))
        known = {state.spec.version: state for state in versions}
        before = self.rollouts.get(name)
        if not (missing and before is not None and before.current not in known):
            self._choose_newest(name, versions, retired, scanning)
        rollout = self.rollouts[name]
        if len(versions) == 1 and rollout.current in known and not rollout.pinned:
            (only,) = versions
            part = 0.0 if only.state == "UNAVAILABLE" else 1.0
            return {only.spec.key: ModelState(only.spec, only.state, only.reason, part)}
        if rollout.current not in known:
            spec = ModelSpec(name, rollout.current, "", (), ())
            state = "LOADING" if missing else "UNAVAILABLE"
            known[rollout.current] = ModelState(spec, state, missing or "it is current, but in no worker's repository")
            self.missing[spec.key] = True
        canary = known.get(rollout.canary)
        parts = {
            version: rollout.traffic(version, canary_ready=canary is not None and canary.state == "READY")
            for version in known
        }
        return {
            state.spec.key: ModelState(state.spec, state.state, state.reason, parts[version])
            for version, state in known.items()
        }

    def _choose_newest(
        self, name: str, versions: Sequence[ModelState], retired: Mapping[str, bool], scanning: bool
    ) -> None:
        ready = [state.spec.version for state in versions if state.state == "READY"]
        newest = next((version for version in reversed(ready) if f"{name}/{version}" not in retired), "")
        rollout = self.rollouts.get(name)
        if rollout is None:
            loading = [state.spec.version for state in versions if state.state == "LOADING"]
            self.rollouts[name] = Rollout(newest or (ready or loading or [versions[-1].spec.version])[-1])
        elif not rollout.pinned and newest not in ("", rollout.current):
            newer, pending = rollout.promote(newest, pinned=False), self.pending.get(name)
            if rollout.current not in ready:
                self._adopt(name, newer)
            elif not scanning and (pending is None or pending.rollout != newer):
                self._begin(name, newer, must_load=self._is_used(f"{name}/{rollout.current}"))

    def versions_to_load(self, message: Admit) -> Mapping[str, bool] | None:
        """Return the versions (keys) that must be READY for a rollout; None if the message is no rollout."""
        if not message.rollout:
            return None
        rollout = self.rollouts.get(message.model)
        if message.rollout == "rollback":
            versions = () if rollout is None or rollout.canary else (rollout.previous,)
        else:
            versions = (message.version,)
        return {f"{message.model}/{version}": True for version in versions if version}

    def begin_rollout(self, message: Admit, states: Mapping[str, ModelState]) -> None:
        """Begin the switch that an operator has requested. Raise `HorologeError` if it is not possible.

        `states`: those of all versions of the model.
        """
        name, version, rollout = message.model, message.version, self.rollouts[message.model]
        if message.rollout == "promote":
            ready = [known for known, state in states.items() if state.state == "READY"]
            newest = max(ready, key=natural_sort_key, default=rollout.current)
            new = rollout.promote(version or newest, pinned=bool(version))
        elif message.rollout == "rollback":
            new = rollout.roll_back()
        elif message.rollout == "canary":
            _check_canary(message, rollout, states)
            new = rollout.start_canary(version, message.weight)
        else:
            raise InvalidInput(f"rollout: got {message.rollout!r}, wanted promote, rollback or canary")
        for chosen in new.versions():
            is_added = chosen not in rollout.versions()
            if is_added or chosen == version:
                state = _find_version(name, chosen, states)
                if state.state == "UNAVAILABLE" or (is_added and state.state == "LOADING"):
                    raise ModelFailed(f"{state.spec.key}: {state.state}: {state.reason}")
        self._begin(name, new)

    def _begin(self, name: str, rollout: Rollout, *, must_load: bool = True) -> None:
        """Begin a switch, in place of one that waits. It does not wait if nothing has to be loaded."""
        before = self.rollouts[name]
        added = [version for version in rollout.versions() if version not in before.versions()]
        self._cancel(name)
        self.pending[name] = Switch(rollout, f"{name}/{added[0]}" if added else "", must_load)

    def _cancel(self, name: str) -> None:
        """Drop the switch of a model that waits, if there is one."""
        if self.pending.pop(name, None):
            self._keep(name, {}, ())

    def advance(self, now_ns: int, name: str, state: ModelState | None) -> tuple[Status, str] | None:
        """End the switch if its version is loaded, or cannot be. `state`: of the version that it adds.

        Return (OK, "") or the status and reason of the failure; None: it waits.
        """
        switch = self.pending[name]
        if switch.key and (state is None or state.state != "READY"):
            self._cancel(name)
            return Status.FAILED, f"{switch.key}: {state.reason if state else 'not in any repository'}"
        if switch.key and not switch.until_ns:
            self._load(now_ns, name, switch)
        if switch.shares:
            loaded = [switch.key in share.resident for share in switch.shares if self._is_reachable(share)]
            if not all(loaded) and now_ns < switch.until_ns:
                return None
            if not any(loaded):
                self._cancel(name)
                return Status.REFUSED, f"{switch.key}: could not be loaded on any device yet"
        self._cancel(name)
        self._adopt(name, switch.rollout)
        return Status.OK, ""

    def next_ns(self) -> int | None:
        """Return when a switch ends at the latest; None without one."""
        return min([switch.until_ns for switch in self.pending.values()], default=None)

    def _is_used(self, key: str) -> bool:
        """Return whether a share holds the version and has run it."""
        shares = self._cluster.residency.shares_of.get(key, {})
        return any(key in share.resident and key not in share.unused for share in shares)

    def _is_reachable(self, share: Share) -> bool:
        return not share.is_lost and self._cluster.workers[share.worker].reachable

    def _load(self, now_ns: int, name: str, switch: Switch) -> None:
        """Have the version loaded beside the current one."""
        old_key = f"{name}/{self.rollouts[name].current}"
        switch.until_ns = now_ns + SLACK_NS + SLACK_LOADS * self._cluster.profiled_load_ns(switch.key)
        switch.shares = self._choose_shares(switch.key, old_key) if switch.must_load else {}
        self._keep(name, switch.shares, (switch.key, old_key))

    def _adopt(self, name: str, rollout: Rollout) -> None:
        """Make a rollout effective. The versions that lose their requests are not loaded without demand."""
        before = self.rollouts.get(name)
        self.rollouts[name] = rollout
        retired = self._cluster.retired
        for version in before.versions() if before else ():
            retired[f"{name}/{version}"] = True
        for version in rollout.versions():
            retired.pop(f"{name}/{version}", None)

    def _choose_shares(self, key: str, old_key: str) -> dict[Share, bool]:
        """Return the shares to load the version on: those that hold the one before, else the one with most free pages.

        A share without room for both versions is left out: requests wait for its LOAD.
        """
        cluster = self._cluster
        if key not in cluster.specs:
            return {}
        capable, pages = cluster.capable.get(key) or {}, cluster.specs[key].pages
        old_pages = cluster.specs[old_key].pages if old_key in cluster.specs else 0
        if holders := [share for share, resident in cluster.residency.shares_of.get(old_key, {}).items() if resident]:
            fitting = [share for share in holders if share in capable and pages + old_pages <= share.pages_total]
            return {share: True for share in fitting if self._is_reachable(share)}
        if any(cluster.residency.shares_of.get(key, {}).values()):
            return {}
        roomy = [share for share in capable if share.pages_free >= pages and self._is_reachable(share)]
        return dict.fromkeys(sorted(roomy, key=lambda share: (-share.pages_free, share.index))[:1], True)

    def _keep(self, name: str, shares: Mapping[Share, bool], keys: Sequence[str]) -> None:
        """Keep these versions of a model loaded on the shares, in place of those that were kept for it before."""
        for share in self._cluster.planned.keep_for_switch(name, shares, keys):
            self._cluster.changes.mark_reconfigured(share)


def _find_version(name: str, version: str, states: Mapping[str, ModelState]) -> ModelState:
    if (state := states.get(version)) is None:
        raise UnknownModel(f"version: got {version!r}, wanted one of model {name}: {', '.join(states)}")
    return state


def _check_canary(message: Admit, rollout: Rollout, states: Mapping[str, ModelState]) -> None:
    """Raise `InvalidInput` unless requests for the current version may go to the canary."""
    if not 0 <= message.weight < 1:
        raise InvalidInput(f"weight: got {message.weight}, wanted at least 0 and less than 1")
    if not message.weight:
        return
    if message.version in ("", rollout.current):
        raise InvalidInput(f"version: got {message.version!r}, wanted another one than the current {rollout.current!r}")
    canary, current = _find_version(message.model, message.version, states).spec, states[rollout.current].spec
    if (canary.inputs, canary.outputs) != (current.inputs, current.outputs):
        raise InvalidInput(f"version: got {message.version!r}, wanted one with the inputs and outputs of {current.key}")
