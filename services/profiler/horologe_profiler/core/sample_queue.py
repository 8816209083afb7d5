"""Rows that wait to be run: in turn by model and application, bounded for each; which models are being run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from horologe_profiler.core.measurements import Key

EACH_MAX = 16
"""Rows that wait of one model and application; a newer one takes the place of the oldest."""


class Task(msgspec.Struct, frozen=True):
    """Run one row, staged under `id`, repeated to a batch of `size`. Tasks of the same `row` repeat the same."""

    id: int
    key: Key
    length: int
    row: int
    size: int = 1


class Waiting:
    """Tasks by (model, application). `known` says how often rows like those of a key were run."""

    def __init__(self, known: Callable[[Key], int]) -> None:
        self._known = known
        self._tasks: dict[tuple[str, str], deque[Task]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def __iter__(self) -> Iterator[Task]:
        for tasks in self._tasks.values():
            yield from tasks

    def push(self, task: Task) -> Task | None:
        """Behind the others of its kind; the one it displaces."""
        tasks = self._tasks.setdefault(task.key[:2], deque())
        displaced = tasks.popleft() if len(tasks) >= EACH_MAX else None
        tasks.append(task)
        return displaced

    def first(self, task: Task) -> None:
        """Before all others of its kind."""
        self._tasks.setdefault(task.key[:2], deque()).appendleft(task)

    def take(self, running: Container[str]) -> Task | None:
        """Of the next kind whose model is not `running`: a batch, else what is least known. That kind then is last."""
        for kind, tasks in self._tasks.items():
            if kind[0] not in running:
                task = min(tasks, key=lambda task: self._known(task.key) if task.size == 1 else -1)
                tasks.remove(task)
                del self._tasks[kind]
                if tasks:
                    self._tasks[kind] = tasks
                return task
        return None

    def ready(self, running: Container[str]) -> bool:
        """Whether `take` would find one."""
        return any(kind[0] not in running for kind in self._tasks)

    def drop(self, models: Container[str]) -> list[Task]:
        """Remove and return those of models that are not among these."""
        gone = [kind for kind in self._tasks if kind[0] not in models]
        return [task for kind in gone for task in self._tasks.pop(kind)]

    def check(self) -> None:
        assert all(self._tasks.values())
