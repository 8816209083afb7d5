"""Finds a request in recordings: a replay of the frontend gives its times, one of the controller the work around it.

A replay of the selector gives the stages of a query of a pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.hosting import CoreObserver
from horologe_common.status import STATUS_NAMES
from horologe_common.wire import Answer, Predict, Query
from horologe_frontend.core.frontend import Frontend
from horologe_sim.explaining.recorded_stages import SelectorObserver
from horologe_sim.explaining.recorded_submits import ControllerObserver
from horologe_sim.explaining.request_history import RequestHistory
from horologe_sim.replay import replay_recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from horologe_common.core.protocol import Buffer, Core, Out

MATCHES_MAX = 20
"""Requests of different clients may have the same id. Further ones are not followed."""


def find_requests(recordings: Iterable[Path], request_id: str) -> list[RequestHistory]:
    """Return the requests with this id in recordings of frontends and controllers, in the order of their arrival.

    Recordings of one process may overlap: a request in several of them is returned once.
    `request_id`: the `id` of an HTTP request, the number of its response header, that of an SDK reply or exception, or
    `CLIENT:NUMBER`. Raises `SettingsError` for a file that is not a recording. Damaged parts are left out.
    """
    files = list(recordings)
    frontends = FrontendObserver(request_id)
    for file in files:
        replay_recording(file, "frontend", observer=frontends)
    targets = {(request.holder, request.request_id): (request, "") for request in frontends.found if request.request_id}
    if frontends.queried:
        selectors = SelectorObserver(targets)
        for file in files:
            replay_recording(file, "selector", observer=selectors)
    controllers = ControllerObserver(targets)
    if targets:
        for file in files:
            controllers.begin_recording()
            replay_recording(file, "controller", observer=controllers)
    return frontends.found


class FrontendObserver(CoreObserver):
    """Follows the requests with an id through a frontend."""

    def __init__(self, request_id: str) -> None:
        self.found: list[RequestHistory] = []
        self.queried = False
        """A selector was asked for a request that has the id."""
        self._client, _, number = request_id.rpartition(":")
        self._number = int(number) if number.isdecimal() else -1
        self._name = request_id
        self._open: dict[tuple[str, str, int], RequestHistory] = {}
        """Unanswered requests by frontend, client and its id."""
        self._new: list[RequestHistory] = []
        self._known: dict[tuple[str, str, int, int], RequestHistory] = {}
        """By frontend, client, its id, and arrival."""

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Note a Predict with the id. The frontend handles it after this call."""
        if isinstance(core, Frontend):
            self._read_new(core)
            if isinstance(message, Predict) and self._matches(sender, message) and len(self.found) < MATCHES_MAX:
                self._follow(now_ns, core, sender, message)

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Note the answers."""
        if not isinstance(core, Frontend):
            return
        self._read_new(core)
        for out in outs:
            if isinstance(out.message, Query):
                self.queried = self.queried or any(request.request_id == out.message.id for request in self.found)
            elif isinstance(out.message, Answer):
                request = self._open.pop((core.address, out.to, out.message.id), None)
                if request is not None:
                    request.answered_ns, request.reason = now_ns, out.message.reason
                    request.status = STATUS_NAMES[out.message.status]

    def _follow(self, now_ns: int, core: Core, client: str, message: Predict) -> None:
        """Follow a request, unless an earlier recording has its answer."""
        key = core.address, client, message.id, now_ns
        request = self._known.get(key)
        if request is None:
            model = message.model or message.application
            request = self._known[key] = RequestHistory(client, message.id, message.name, model, now_ns, core.address)
            self.found.append(request)
        if not request.status:
            self._new.append(request)
            self._open[core.address, client, message.id] = request

    def _matches(self, client: str, message: Predict) -> bool:
        if self._client:
            return message.id == self._number and client.startswith(self._client)
        return message.id == self._number or (bool(message.name) and message.name == self._name)

    def _read_new(self, core: Frontend) -> None:
        for history in self._new:
            request = core.find_open(history.client, history.client_id)
            if request is not None:
                history.request_id, history.deadline_ns = request.id, request.deadline_ns
                history.best_effort = request.query.best_effort
        self._new.clear()
