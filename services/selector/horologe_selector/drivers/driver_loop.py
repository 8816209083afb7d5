"""An asyncio event loop without I/O that its owner steps: tasks, futures, timers, `gather` and `TaskGroup` work in it.

The driver's process and the simulator step the same loop, one on the real clock and one on virtual time. Its order of
execution depends on nothing but the order of the results that arrive.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from horologe_common.status import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable

RUN: ContextVar[int] = ContextVar("run", default=0)
"""The run that a task or a callback belongs to."""
PREDECESSORS: ContextVar[Predecessors] = ContextVar("predecessors")


class Predecessors:
    """The calls whose results a task has. `calls` leaves out the parents of other calls in it."""

    def __init__(self, calls: tuple[int, ...] = ()) -> None:
        self.calls = dict.fromkeys(calls)

    def add(self, call: int, parents: tuple[int, ...]) -> None:
        """Add a call that is done, and drop its parents."""
        for parent in parents:
            self.calls.pop(parent, None)
        self.calls[call] = None


class DriverLoop(asyncio.AbstractEventLoop):
    """Event loop of drivers. `clock` returns nanoseconds. Methods that need I/O or threads raise NotImplementedError.

    `running` is the run whose code executes now, 0 if none. `steps` counts the executed callbacks.
    """

    def __init__(self, clock: Callable[[], int], on_step: Callable[[int], None] | None = None) -> None:
        self.running = 0
        self.steps = 0
        self._clock = clock
        self._on_step = on_step
        self._ready: deque[tuple[int, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._tasks: dict[int, dict[asyncio.Task[Any], bool]] = {}
        self.errors: list[tuple[int, str]] = []
        """Run and message of errors that no task has raised or awaited."""

    def run_ready(self) -> None:
        """Execute callbacks until none is ready. Timers that expire meanwhile wait for the next call."""
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            _, _, run, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._ready.append((run, timer))
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                self._execute(*self._ready.popleft())
        finally:
            asyncio._set_running_loop(None)

    def _execute(self, run: int, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        self.steps += 1
        self.running = run
        if self._on_step:
            self._on_step(run)
        try:
            handle._run()
        finally:
            self.running = 0
        if self._on_step:  # not after SystemExit: the run at fault stays visible
            self._on_step(0)

    def wakeup_ns(self) -> int | None:
        """Return the time of the earliest timer, or None without timers."""
        while self._timers and self._timers[0][3].cancelled():
            heapq.heappop(self._timers)
        return round(self._timers[0][0] * 1e9) if self._timers else None

    def time(self) -> float:
        return self._clock() / 1e9

    def call_soon(  # type: ignore[override]  # typeshed ties the arguments to the callback
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context or copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((context.get(RUN, 0), handle))
        return handle

    def call_later(  # type: ignore[override]  # as call_soon
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as call_soon
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, context.get(RUN, 0), timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Create a task. When the task ends, the task that created it gets its predecessors."""
        context = context or copy_context()
        creator = context.get(PREDECESSORS)
        own = Predecessors(tuple(creator.calls) if creator else ())
        context.run(PREDECESSORS.set, own)
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        run = context.get(RUN, 0)
        self._tasks.setdefault(run, {})[task] = True
        task.add_done_callback(lambda _: self._remove_task(run, task))
        if creator is not None:
            task.add_done_callback(lambda _: creator.calls.update(own.calls))
        return task

    def cancel_run(self, run: int) -> None:
        """Cancel all tasks of a run except the one that executes now."""
        current = asyncio.current_task(self)
        for task in list(self._tasks.get(run, ())):
            if task is not current:
                task.cancel()

    def _remove_task(self, run: int, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks[run]
        del tasks[task]
        if not tasks:
            del self._tasks[run]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Store the error in `errors`."""
        error = context.get("exception")
        message = describe_exception(error) if error else str(context.get("message"))
        self.errors.append((self.running, message))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are dropped when they expire."""
