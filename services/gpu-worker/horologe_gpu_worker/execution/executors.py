"""A thread per lane and share: takes operations in the order of their windows, waits, runs, posts what happened.

An EXEC that is shorter than a hand-over between threads runs on the loop's own thread instead: `brief`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import Abort, Finished, Lane, Operation, not_run
from horologe_gpu_worker.core.worker import lanes_of
from horologe_gpu_worker.execution.device import Device, Store
from horologe_gpu_worker.execution.realtime import Priority, exec_core, pin, realtime_permitted, sharp_timers
from horologe_gpu_worker.settings import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_gpu_worker.settings import WorkerSettings

    Post = Callable[[str, str, Any], None]
    """`post(sender, to, message)` of the reactor, or its `post_threadsafe`."""

LANE_OF = {"unload": "load"}
"""UNLOAD shares LOAD's lane: what it frees is free before the next LOAD begins."""
WAITING_LANES = ("input", "exec", "output")
"""Lanes whose start is worth a real-time wait. LOAD takes milliseconds, and a scan seconds."""
COMPUTE_HERE = ("onnx", "pytorch")
"""Runtimes whose EXEC on the CPU computes in this process and waits for nothing."""

log = logger("executors")


class LaneThread:
    """The thread of one lane. Only it touches the lane; others put operations into its inbox.

    A SimpleQueue wakes its reader in 10 us, a Condition in 14.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Operation], Finished],
        post: Callable[[Finished], None],
        spin_ns: int,
        priority: Priority,
        core: int | None = None,
    ) -> None:
        self.name = name
        self._run = run
        self._post = post
        self._spin_ns = spin_ns
        self._priority = priority
        self._core = core
        self._lane = Lane()
        self._inbox: SimpleQueue[Operation | Abort | None] = SimpleQueue()
        self._stopping = False
        self._given = self._ended = 0
        self._thread = Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, message: Operation | Abort) -> None:
        """From the loop's thread."""
        self._given += isinstance(message, Operation)
        self._inbox.put(message)

    def idle(self) -> bool:
        """Whether every operation has ended. On the loop's thread that holds until the next `put`."""
        return self._given == self._ended

    def stop(self, wait_s: float) -> bool:
        """End after the operation that runs now; what is queued is not begun. True if the thread has ended."""
        self._inbox.put(None)
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        sharp_timers()
        pin(self._core)
        while (operation := self._next()) is not None:
            self._priority.lower()
            self._end(self._run(operation))

    def _end(self, finished: Finished) -> None:
        self._ended += 1
        self._post(finished)

    def _next(self) -> Operation | None:
        """Wait for the operation to begin now; None when told to stop."""
        lane = self._lane
        while True:
            while not self._inbox.empty():
                self._take_in(self._inbox.get())
            if self._stopping:
                return None
            now_ns = monotonic_ns()
            while late := lane.expired(now_ns):
                self._end(not_run(late, Status.TOO_LATE, now_ns, "the window had closed"))
            found = lane.next(now_ns)
            if isinstance(found, Operation):
                return found
            self._wait(now_ns, found)

    def _wait(self, now_ns: int, wait_ns: int | None) -> None:
        """Until something arrives or `wait_ns` have passed: slept but for the last `spin_ns`."""
        self._priority.raise_()
        if wait_ns is None:
            self._take_in(self._inbox.get())
        elif wait_ns > self._spin_ns:
            try:
                self._take_in(self._inbox.get(timeout=(wait_ns - self._spin_ns) / 1e9))
            except Empty:
                return
        else:
            begin_ns = now_ns + wait_ns
            while monotonic_ns() < begin_ns and self._inbox.empty():
                pass

    def _take_in(self, message: Operation | Abort | None) -> None:
        match message:
            case Operation():
                self._lane.push(message)
            case Abort():
                if operation := self._lane.abort(message.action_id):
                    self._end(not_run(operation, Status.CANCELLED, monotonic_ns()))
            case None:
                self._stopping = True


class Executors:
    """All lanes of a worker process; `deliver` is what the reactor attaches at the worker's `lanes` address."""

    def __init__(self, worker: str, settings: WorkerSettings, store: Store) -> None:
        self.worker = worker
        self.address = lanes_of(worker)
        self.settings = settings
        self.store = store
        self._brief_ns = settings.brief_ns if place_of(settings).cuda is None else 0
        self._post: Post | None = None
        self._post_threadsafe: Post | None = None
        self._devices = [Device(store) for _ in range(settings.shares)]
        self._threads: dict[tuple[int, str], LaneThread] = {}
        self._inline: dict[str, bool] = {}
        self._permitted = False

    def start(self, post: Post, post_threadsafe: Post) -> None:
        """Start the lanes that every model needs; the others start when something is first put into them.

        `post_threadsafe` is told what has finished on the lanes' threads, `post` what did on the caller's of `deliver`.
        """
        self._post, self._post_threadsafe = post, post_threadsafe
        self._permitted = self.settings.realtime and realtime_permitted()
        for share in range(self.settings.shares):
            self._thread(share, "load")
            self._thread(share, "exec")

    def deliver(self, message: Operation | Abort, buffers: Sequence[Buffer] = ()) -> None:
        """Put an operation into its lane, or run it at once."""
        thread = self._thread(message.share, LANE_OF.get(message.lane, message.lane))
        if self._post and isinstance(message, Operation) and thread.idle() and brief(message, self._brief_ns):
            self._post(self.address, self.worker, self._devices[message.share].run(message))
        else:
            thread.put(message)

    def stop(self, wait_s: float = 1.0) -> None:
        """End the threads after what they run now, and close the models."""
        stopped = [thread.stop(wait_s) for thread in self._threads.values()]
        if all(stopped):
            for device in self._devices:
                device.close()
        else:
            log.warning("a lane is still busy: its model is not closed", lanes=list(self._threads))

    def inline_io(self, model: str) -> bool:
        """Whether INPUT and OUTPUT are part of this model's EXEC (asked per action, so remembered)."""
        if model not in self._inline:
            self._inline[model] = self.store.inline_io(model)
        return self._inline[model]

    def _thread(self, share: int, lane: str) -> LaneThread:
        thread = self._threads.get((share, lane))
        if thread is None:
            core = exec_core(self.settings, share, os.sched_getaffinity(0)) if lane == "exec" else None
            priority = Priority(self._permitted and lane in WAITING_LANES)
            run = self._devices[share].run
            thread = LaneThread(f"{lane}-{share}", run, self._finished, self.settings.spin_ns, priority, core)
            self._threads[share, lane] = thread
            thread.start()
        return thread

    def _finished(self, finished: Finished) -> None:
        if finished.lane == "scan":
            self._inline.clear()
        if self._post_threadsafe is not None:
            with suppress(RuntimeError):  # the loop has closed: nobody is there to be told
                self._post_threadsafe(self.address, self.worker, finished)


def brief(operation: Operation, brief_ns: int) -> bool:
    """Whether to run it on the loop's thread, its lane being idle: a hand-over to the lane and back takes longer.

    An EXEC on the CPU, expected to take less than `brief_ns`, whose window is open; `Device.run` sees to its end.
    """
    return (
        operation.lane == "exec"
        and operation.runtime in COMPUTE_HERE
        and operation.staged is None
        and operation.expected_ns < brief_ns
        and operation.earliest_ns <= monotonic_ns()
    )
