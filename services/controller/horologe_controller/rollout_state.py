"""State file of the controller: the rollouts of models, which survive its restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.rollouts import ControllerState
from horologe_common.service.log import logger
from horologe_common.service.state_file import StateFile, check_writable

if TYPE_CHECKING:
    from horologe_common.transport.reactor import Reactor
    from horologe_controller.core.controller import Controller

log = logger("controller")


class RolloutState:
    """Restores the core from its state file, and writes the file. Raises `SettingsError` if it cannot be written."""

    def __init__(self, core: Controller) -> None:
        check_writable(core.settings.state, "controller.state")
        self._core = core
        self._store = StateFile(ControllerState, core.settings.state, "controller")
        self._store.restore(self._restore)

    def attach(self, reactor: Reactor) -> None:
        """Write the file on the event loop's thread, before a change is announced."""
        reactor.attach(self._core.store, lambda message, buffers: self._store.save(message))

    def _restore(self, state: ControllerState, age_ns: int) -> list[str]:
        self._core.restore(state)
        log.info("state restored", models=list(state.rollouts), age_minutes=round(age_ns / 60e9, 1))
        return []
