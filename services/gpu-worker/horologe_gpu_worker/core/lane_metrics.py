"""What the lanes of a worker do with their time, all its shares together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import Status

if TYPE_CHECKING:
    from horologe_common.service.metrics import Stats
    from horologe_gpu_worker.core.lanes import Finished, Operation

STATUS_NAMES = {int(status): status.name for status in Status}


class Telemetry:
    """Operations by lane: how they ended, how long the lane was busy with them, how long they waited in it.

    Law: what was given and has not ended is what the lanes hold.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._possible_ns: dict[int, int] = {}
        """Action id -> from when on its operation could have begun: an action is in one lane at a time."""

    def __len__(self) -> int:
        return len(self._possible_ns)

    def given(self, now_ns: int, operation: Operation) -> None:
        """An operation goes to its lane."""
        self._possible_ns[operation.action_id] = max(now_ns, operation.earliest_ns)

    def ended(self, finished: Finished) -> None:
        """A lane is through with it; one that was never run (`begin_ns` == `end_ns`) was no work and has no wait."""
        possible_ns = self._possible_ns.pop(finished.action_id, None)
        stats, lane = self._stats, finished.lane
        stats.count("horologe_lane_operations_total", lane, STATUS_NAMES[finished.status])
        if busy_ns := finished.end_ns - finished.begin_ns:
            stats.count("horologe_lane_busy_seconds_total", lane, by=busy_ns / 1e9)
            if possible_ns is not None:
                stats.observe("horologe_lane_wait_seconds", lane, value=max(0, finished.begin_ns - possible_ns))
