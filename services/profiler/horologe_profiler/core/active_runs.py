"""What has been submitted and not come back, and when the next may be: all take their share of a device, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_profiler.core.sample_queue import Task
    from horologe_profiler.settings import ProfilerSettings

GRACE_NS = s(1)
"""The controller answers by a run's budget; after this much more nothing is expected of it."""
REFUSED_NS = ms(100)
"""After a run that came to nothing, none begins for this long."""


class Runs:
    """Tasks under way by id: at most `in_flight`, at most one of a model, each to its one `end`."""

    def __init__(self, settings: ProfilerSettings) -> None:
        self._settings = settings
        self._tasks: dict[int, Task] = {}
        self.models: dict[str, bool] = {}
        """Those that are being run."""
        self._give_up = Timers()
        self._paid_ns = 0
        """Until then the share of a device is used up by what ran."""
        self._paused_ns = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    def get(self, task_id: int) -> Task | None:
        return self._tasks.get(task_id)

    def room(self) -> bool:
        """Whether one more may be under way."""
        return len(self._tasks) < self._settings.in_flight

    def begin(self, now_ns: int, task: Task) -> None:
        self._tasks[task.id] = task
        self.models[task.key.model] = True
        self._give_up.arm(task.id, now_ns + self._settings.budget_ns + GRACE_NS)

    def end(self, task: Task) -> None:
        del self._tasks[task.id]
        del self.models[task.key.model]
        self._give_up.cancel(task.id)

    def free_ns(self) -> int:
        """When the next may begin."""
        return max(self._paused_ns, self._paid_ns - round(self._settings.busy_burst_ns / self._settings.busy_share))

    def took(self, now_ns: int, took_ns: int) -> None:
        """A device was busy for so long: the share of `1 / busy_share` times as long is used up."""
        self._paid_ns = max(self._paid_ns, now_ns - took_ns) + round(took_ns / self._settings.busy_share)

    def failed(self, now_ns: int) -> None:
        """One was refused or lost."""
        self._paused_ns = now_ns + REFUSED_NS

    def overdue(self, now_ns: int) -> list[Task]:
        """Those nothing is expected of any more. They are still to be ended."""
        return [self._tasks[task_id] for task_id in self._give_up.pop_expired(now_ns)]

    def next_overdue_ns(self) -> int | None:
        return self._give_up.next_ns()

    def check(self) -> None:
        self._give_up.check()
        assert sorted(self.models) == sorted(task.key.model for task in self)
        assert len(self) == len(self._give_up) <= self._settings.in_flight
