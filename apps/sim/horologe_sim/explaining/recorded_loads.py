"""LOADs of a recorded controller: where each ran, how long, and which models it evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import instance
from horologe_common.wire import Load, Unload
from horologe_sim.explaining.request_history import LoadHistory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Out

RECENT_LOADS = 4096


class RecordedLoads:
    """The latest LOADs by worker and action id."""

    def __init__(self) -> None:
        self._loads: dict[tuple[str, int], LoadHistory] = {}

    def observe_outs(self, now_ns: int, outs: Sequence[Out]) -> None:
        """Record the LOADs that are sent. UNLOADs of the same share in the same turn make room for them."""
        evicted: dict[tuple[str, int], list[str]] = {}
        for out in outs:
            if isinstance(out.message, Unload):
                evicted.setdefault((out.to, out.message.share), []).append(out.message.model)
            elif isinstance(out.message, Load):
                load, victims = out.message, evicted.pop((out.to, out.message.share), [])
                history = LoadHistory(load.model, instance(out.to), load.share, now_ns, load.expected_ns, victims)
                if len(self._loads) >= RECENT_LOADS:
                    del self._loads[next(iter(self._loads))]
                self._loads[out.to, load.action_id] = history

    def end_load(self, worker: str, action_id: int, begin_ns: int, end_ns: int, status: str) -> None:
        """Record the Result of a LOAD."""
        if load := self._loads.get((worker, action_id)):
            load.begin_ns, load.end_ns, load.status = begin_ns, end_ns, status

    def find_load(self, model: str, arrived_ns: int, until_ns: int, worker: str = "") -> LoadHistory | None:
        """Return the LOAD that a request of `model` has waited for, the first to end; None if there was none.

        `until_ns`: when the request was sent to `worker`, or ended.
        """
        loads = [
            load
            for load in self._loads.values()
            if load.model == model
            and load.sent_ns <= until_ns
            and (not load.end_ns or load.end_ns > arrived_ns)
            and worker in ("", load.worker)
        ]
        return min(loads, key=lambda load: (not load.end_ns, load.end_ns, load.sent_ns), default=None)
