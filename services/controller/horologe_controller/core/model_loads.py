"""Loads that operators requested: answered once workers, selectors and frontends have the new content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out, role
from horologe_common.wire import Admit, ModelState, Scan, Settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_common.status import Status

STAGES = ("worker", "switch", "selector", "frontend")
"""What a load waits for, in this order: scans of workers, a switch to another version, selectors, frontends.
Frontends come last: from then on no selector answers with an earlier content, so only requests that are open at a
frontend already may still get such an answer."""

LOADS_MAX = 1000
"""Limit of loads without an answer. Further ones are refused."""


class PendingLoad:
    """A load that has no answer yet."""

    def __init__(
        self,
        id: int,
        sender: str,
        message: Admit,
        waiting: dict[str, bool],
        before: dict[str, str],
        stage: int = 0,
    ) -> None:
        self.id = id
        self.sender = sender
        self.message = message
        self.waiting = waiting
        """Addresses that have not confirmed the present stage."""
        self.before = before
        """Contents of the model's versions that were READY when the load was requested: key -> content hash."""
        self.stage = stage
        self.revoked = False
        """True if the model was unloaded after this load had been requested."""
        self.drained: tuple[str, ...] = ()
        """Versions (keys) that lost their requests. They are unloaded when the load is complete."""
        self.fault: tuple[Status, str] | None = None
        """Why the switch has failed."""


class PendingLoads:
    """All loads that have no answer yet, by id. Addresses that disconnect are not waited for."""

    def __init__(self) -> None:
        self._loads: dict[int, PendingLoad] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._loads)

    def start_load(self, sender: str, message: Admit, workers: Iterable[str], before: dict[str, str]) -> list[Out]:
        """Start a load, and return a Scan for each worker. `before`: see `PendingLoad`."""
        self._last_id += 1
        waiting = dict.fromkeys(workers, True)
        self._loads[self._last_id] = PendingLoad(self._last_id, sender, message, waiting, before)
        return [Out(worker, Scan(message.model, self._last_id)) for worker in waiting]

    def start_switch(self, name: str) -> None:
        """Start a load that nobody has requested, for a switch of the model."""
        self._last_id += 1
        self._loads[self._last_id] = PendingLoad(self._last_id, "", Admit(0, name, "", True), {"switch": True}, {}, 1)

    def finish_switch(self, name: str, drained: tuple[str, ...], fault: tuple[Status, str] | None) -> None:
        """Record the end of the model's switch in the loads that wait for it, or will."""
        for load in self._loads.values():
            if load.message.model == name and load.stage <= 1:
                load.drained += drained
                if load.stage == 1:
                    load.fault = fault
                    load.waiting.clear()

    def is_draining(self, key: str) -> bool:
        """Return whether frontends may have requests for a version that has lost them."""
        return any(key in load.drained for load in self._loads.values())

    def confirm(self, address: str, load_ids: Iterable[int] | None = None) -> None:
        """Record that an address has confirmed these loads. None: all."""
        for load_id in self._loads if load_ids is None else load_ids:
            if load := self._loads.get(load_id):
                load.waiting.pop(address, None)

    def revoke(self, message: Admit) -> None:
        """Record that an operator has unloaded a model."""
        for load in self._loads.values():
            load.revoked |= load.message.model == message.model

    def scanning_names(self) -> dict[str, bool]:
        """Return the names of the models that workers are reading."""
        return {load.message.model: True for load in self._loads.values() if load.stage == 0 and load.waiting}

    def confirmed_loads(self, *, scans: bool) -> list[PendingLoad]:
        """Return the loads that wait for no confirmation: those in the stage of the scans, or in later stages."""
        return [load for load in self._loads.values() if not load.waiting and scans == (load.stage == 0)]

    def advance(
        self, load: PendingLoad, models: Sequence[str], subscribers: Iterable[str], *, is_switching: bool
    ) -> list[Out]:
        """Begin the next stage that has to be waited for, and return its Settles. None is left: `waiting` is empty.

        `is_switching`: a switch of the model waits.
        """
        while load.stage + 1 < len(STAGES):
            load.stage += 1
            if STAGES[load.stage] == "switch":
                load.waiting = {"switch": True} if is_switching else {}
                if load.waiting:
                    return []
            load.waiting = {address: True for address in subscribers if role(address) == STAGES[load.stage]}
            if load.waiting:
                return [Out(address, Settle(load.id, tuple(models), load.drained)) for address in load.waiting]
        return []

    def finish(self, load: PendingLoad) -> None:
        """Remove a load, which is answered now."""
        del self._loads[load.id]


def with_unchanged(state: ModelState, before: Mapping[str, str]) -> ModelState:
    """Return the state with a remark if the model was READY with this content before the load."""
    content = state.spec.content_hash
    if state.state != "READY" or state.reason or not content or before.get(state.spec.key) != content:
        return state
    reason = f"unchanged: its files have the content {content} as before"
    return ModelState(state.spec, state.state, reason, state.traffic)


def matches_key(message: Admit, key: str) -> bool:
    """Return whether a load or unload concerns the version `key`."""
    name, _, version = key.partition("/")
    return name == message.model and message.version in ("", version)
