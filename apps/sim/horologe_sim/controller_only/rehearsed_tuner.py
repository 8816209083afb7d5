"""A tuner beside the controller: its rehearsals are played at once, and their scores arrive later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import us
from horologe_sim.rehearsal_process import rehearse
from horologe_tuner.core.journal import JournalEntry
from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalCall, RehearsalScores
from horologe_tuner.core.tuner import Tuner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from horologe_common.core.protocol import Buffer
    from horologe_sim.controller_only.controller_world import ControllerWorld
    from horologe_tuner.settings import TunerSettings

REQUEST_NS = us(40)
"""CPU time of a request under one candidate."""


class RehearsedTuner:
    """The tuner's core. Give `core` to the world as a neighbour of the controller, then `attach` it."""

    def __init__(self, settings: TunerSettings, request_ns: int = REQUEST_NS) -> None:
        """`request_ns`: CPU time of a request under one candidate."""
        self.core = Tuner("tuner/0#00000001", settings, rehearses=True)
        self.journal: list[JournalEntry] = []
        self.calls = 0
        self._request_ns = request_ns

    def attach(self, world: ControllerWorld) -> None:
        """Connect the tuner's process, state file and log."""
        self._world = world
        world.attach(self.core.rehearsal, self._on_call)
        world.attach(self.core.store, self._ignore)
        world.attach(self.core.journal, self._on_journal)

    def _ignore(self, message: Any, buffers: Sequence[Buffer]) -> None:
        pass

    def _on_journal(self, entry: JournalEntry, buffers: Sequence[Buffer]) -> None:
        self.journal.append(entry)

    def _on_call(self, call: RehearsalCall, buffers: Sequence[Buffer]) -> None:
        """Play all candidates. The scores arrive after the CPU time that this takes, at a whole core."""
        self.calls += 1
        scores = RehearsalScores(error="no candidates")
        for scores in rehearse(call, lambda: 0.0):  # noqa: B007 - the last scores have all candidates
            pass
        cost_ns = len(call.trace.requests) * len(scores.in_time) * self._request_ns
        scores = msgspec.structs.replace(scores, cpu_s=cost_ns / 1e9)
        self._world.schedule(self._world.now_ns + cost_ns, self._post, scores)

    def _post(self, now_ns: int, scores: RehearsalScores) -> None:
        self._world.post(self.core.address, self.core.rehearsal, scores)
