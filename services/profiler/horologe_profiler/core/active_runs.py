"""Runs in flight, and when the next run may start: together they use a limited share of one device's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.indexed_heap import Timers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_profiler.core.sample_queue import ProfilingTask
    from horologe_profiler.settings import ProfilerSettings

GRACE_NS = s(1)
"""Extra time after a run's budget in which the controller's answer may still arrive."""
FAILURE_PAUSE_NS = ms(100)
"""Pause after a refused or lost run."""


class ActiveRuns:
    """Tasks in flight by id: at most `in_flight`, at most one of each model. Each is finished exactly once."""

    def __init__(self, settings: ProfilerSettings) -> None:
        self._settings = settings
        self._tasks: dict[int, ProfilingTask] = {}
        self.running_models: dict[str, bool] = {}
        """Models that have a run in flight."""
        self._timeouts = Timers()
        self._budget_spent_ns = 0
        """The device time of past runs is paid for at this time, at the rate `busy_share`."""
        self._paused_ns = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[ProfilingTask]:
        return iter(list(self._tasks.values()))

    def get(self, task_id: int) -> ProfilingTask | None:
        return self._tasks.get(task_id)

    def has_room(self) -> bool:
        """Return True if another run may be in flight."""
        return len(self._tasks) < self._settings.in_flight

    def start_run(self, now_ns: int, task: ProfilingTask) -> None:
        self._tasks[task.id] = task
        self.running_models[task.key.model] = True
        self._timeouts.arm(task.id, now_ns + self._settings.budget_ns + GRACE_NS)

    def finish_run(self, task: ProfilingTask) -> None:
        del self._tasks[task.id]
        del self.running_models[task.key.model]
        self._timeouts.cancel(task.id)

    def next_start_ns(self) -> int:
        """Return the time from which the next run may start."""
        return max(
            self._paused_ns, self._budget_spent_ns - round(self._settings.busy_burst_ns / self._settings.busy_share)
        )

    def charge_device_time(self, now_ns: int, took_ns: int) -> None:
        """Charge `took_ns` of device time: it uses up the share of the next `took_ns / busy_share`.

        Example: with `busy_share` 0.05, a run of 10 ms uses up the share of 200 ms.
        """
        self._budget_spent_ns = max(self._budget_spent_ns, now_ns - took_ns) + round(
            took_ns / self._settings.busy_share
        )

    def pause_after_failure(self, now_ns: int) -> None:
        """Delay the next run after a refused or lost one."""
        self._paused_ns = now_ns + FAILURE_PAUSE_NS

    def overdue_tasks(self, now_ns: int) -> list[ProfilingTask]:
        """Return the tasks whose answer is overdue. The caller must finish them."""
        return [self._tasks[task_id] for task_id in self._timeouts.pop_expired(now_ns)]

    def next_overdue_ns(self) -> int | None:
        return self._timeouts.next_ns()

    def check(self) -> None:
        self._timeouts.check()
        assert sorted(self.running_models) == sorted(task.key.model for task in self)
        assert len(self) == len(self._timeouts) <= self._settings.in_flight
