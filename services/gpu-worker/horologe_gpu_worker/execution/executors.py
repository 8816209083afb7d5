"""Lane threads: each waits for the window of its next operation, runs the operation, and posts the result.

An EXEC that is shorter than a hand-over between threads runs on the event loop's thread; see `Executors._runs_inline`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns, us
from horologe_common.service.log import logger
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import Abort, Finished, LaneOperation, OperationQueue, VersionScanned, not_run
from horologe_gpu_worker.core.worker import lanes_address
from horologe_gpu_worker.execution.device_health import end_if_lost
from horologe_gpu_worker.execution.device_models import DeviceModels
from horologe_gpu_worker.execution.realtime import (
    CpuClaims,
    RealtimePriority,
    disable_timer_slack,
    pin_thread,
    realtime_permitted,
)
from horologe_gpu_worker.execution.shown_paths import ShownPaths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_gpu_worker.inspection.repository_scans import RepositoryScans
    from horologe_gpu_worker.repository.modelstore import ModelStore
    from horologe_gpu_worker.settings import WorkerSettings

    Post = Callable[[str, str, Any], None]
    """The reactor's `post(sender, to, message)` or `post_threadsafe`."""

LANE_OF = {"unload": "load"}
"""Operation -> its lane, if the names differ. UNLOAD runs on LOAD's lane, so its memory is free before the next LOAD.
A replacement may take as long as starting a Python model, so it must not block LOADs.
"""
REALTIME_LANES = ("input", "exec", "output")
"""Lanes that wait at real-time priority. LOAD takes milliseconds and a replacement seconds, so exact starts do not
matter there.
"""
IN_PROCESS_RUNTIMES = ("onnx", "pytorch", "torchscript")
"""Runtimes whose EXEC on the CPU computes in this process and does not wait."""
WAITING_RUNTIMES = ("emulated",)
"""Runtimes whose EXEC waits for a time and computes next to nothing: its lane keeps its real-time priority."""

SPIN_NS = us(60)
"""The last part of a wait for a window is spun instead of slept: it covers the wake-up time of the thread."""
INLINE_EXEC_NS = us(200)
"""An EXEC on the CPU expected to take less than this runs on the event loop's thread if its lane is idle."""
log = logger("executors")


class LaneThread:
    """The thread of one lane. Only this thread uses the lane; other threads put operations into its inbox.

    The inbox is a SimpleQueue: it wakes its reader in 10 us, a Condition in 14 us.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[LaneOperation], Finished],
        post: Callable[[Finished], None],
        priority: RealtimePriority,
        core: int | None = None,
    ) -> None:
        self.name = name
        self._run = run
        self._post = post
        self._priority = priority
        self._core = core
        self._lane = OperationQueue()
        self._inbox: SimpleQueue[LaneOperation | Abort | None] = SimpleQueue()
        self._stopping = False
        self._enqueued = self._finished = 0
        self._thread = Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enqueue(self, message: LaneOperation | Abort) -> None:
        """Put an operation or Abort into the inbox. Call on the event loop's thread only."""
        self._enqueued += isinstance(message, LaneOperation)
        self._inbox.put(message)

    def is_idle(self) -> bool:
        """Return True if every operation has finished. Valid on the event loop's thread until the next `enqueue`."""
        return self._enqueued == self._finished

    def stop(self, wait_s: float) -> bool:
        """Stop after the running operation; queued operations are dropped. Returns True if the thread has ended."""
        self._inbox.put(None)
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        disable_timer_slack()
        pin_thread(self._core)
        while (operation := self._wait_for_operation()) is not None:
            if operation.runtime not in WAITING_RUNTIMES:
                self._priority.lower_priority()
            self._post_finished(self._run(operation))

    def _post_finished(self, finished: Finished) -> None:
        self._finished += 1
        self._post(finished)

    def _wait_for_operation(self) -> LaneOperation | None:
        """Wait until an operation can begin and return it; None when stopped."""
        lane = self._lane
        while True:
            while not self._inbox.empty():
                self._receive(self._inbox.get())
            if self._stopping:
                return None
            now_ns = monotonic_ns()
            while late := lane.pop_expired(now_ns):
                self._post_finished(not_run(late, Status.TOO_LATE, now_ns, "the window had closed"))
            startable = lane.pop_startable(now_ns)
            if isinstance(startable, LaneOperation):
                return startable
            self._wait(now_ns, startable)

    def _wait(self, now_ns: int, wait_ns: int | None) -> None:
        """Wait for a message, at most `wait_ns`. The last `SPIN_NS` are spun instead of slept."""
        self._priority.raise_priority()
        if wait_ns is None:
            self._receive(self._inbox.get())
        elif wait_ns > SPIN_NS:
            try:
                self._receive(self._inbox.get(timeout=(wait_ns - SPIN_NS) / 1e9))
            except Empty:
                return
        else:
            begin_ns = now_ns + wait_ns
            while monotonic_ns() < begin_ns and self._inbox.empty():
                pass

    def _receive(self, message: LaneOperation | Abort | None) -> None:
        match message:
            case LaneOperation():
                self._lane.push(message)
            case Abort():
                if operation := self._lane.remove_operation(message.action_id):
                    self._post_finished(not_run(operation, Status.CANCELLED, monotonic_ns()))
            case None:
                self._stopping = True


class Executors:
    """All lanes of a worker process; `deliver` is what the reactor attaches at the worker's `lanes` address."""

    def __init__(self, worker: str, settings: WorkerSettings, store: ModelStore, scans: RepositoryScans) -> None:
        self.worker = worker
        self.address = lanes_address(worker)
        self.settings = settings
        self._scans = scans
        self._own_lanes: dict[str, bool] = {}
        """Models whose LOADs and UNLOADs run on a lane of the model: they start processes."""
        cuda = settings.cuda
        self._inline_exec_ns = INLINE_EXEC_NS if cuda is None else 0
        check_device = (lambda: None) if cuda is None else partial(end_if_lost, cuda)
        self._post: Post | None = None
        self._post_threadsafe: Post | None = None
        self._devices = [DeviceModels(store, check_device) for _ in range(settings.shares)]
        self._threads: dict[tuple[int, str], LaneThread] = {}
        self._permitted = False
        self._shown = ShownPaths(settings.repository, settings.cache)
        self._cpus = CpuClaims(Path(settings.cache, "cpus"))

    def start(self, post: Post, post_threadsafe: Post) -> None:
        """Start the LOAD and EXEC lanes. Other lanes start with their first operation.

        `post_threadsafe` receives results from lane threads, `post` results of operations that ran inline.
        """
        self._post, self._post_threadsafe = post, post_threadsafe
        self._permitted = self.settings.realtime and realtime_permitted()
        for share in range(self.settings.shares):
            self._thread(share, "load")
            self._thread(share, "exec")
        self._scans.start(self._post_to_worker)

    def deliver(self, message: LaneOperation | Abort, buffers: Sequence[Buffer] = ()) -> None:
        """Put an operation into its lane, or run it inline."""
        if isinstance(message, LaneOperation) and message.lane == "scan":
            self._scans.begin_scan(message)
            return
        thread = self._thread(message.share, self._lane_of(message))
        device = self._devices[message.share]
        if self._post and isinstance(message, LaneOperation) and self._runs_inline(message, thread, device):
            self._post(self.address, self.worker, self._shown.show(device.run(message)))
        else:
            thread.enqueue(message)

    def _lane_of(self, message: LaneOperation | Abort) -> str:
        lane = LANE_OF.get(message.lane, message.lane)
        if lane not in ("load", "replace") or not isinstance(message, LaneOperation):
            return lane
        if message.spec is not None and message.spec.loads_beside:
            self._own_lanes[message.model] = True
        return f"{lane} {message.model}" if message.model in self._own_lanes else lane

    def _runs_inline(self, operation: LaneOperation, thread: LaneThread, device: DeviceModels) -> bool:
        """Return True if the operation should run on the event loop's thread: a hand-over to an idle lane takes longer.

        This holds for a LOAD or UNLOAD without work, and for an EXEC on the CPU that probably takes less than
        `INLINE_EXEC_NS` and whose window is open. `DeviceModels.run` checks the end of the window.
        """
        if not (self._inline_exec_ns and thread.is_idle()):
            return False
        if operation.lane != "exec":
            return device.loads_at_once(operation)
        return (
            operation.runtime in IN_PROCESS_RUNTIMES
            and operation.staged is None
            and device.exec_ns(operation) < self._inline_exec_ns
            and operation.earliest_ns <= monotonic_ns()
        )

    def stop(self, wait_s: float = 1.0) -> None:
        """Stop the threads after their running operations, and close the models."""
        self._scans.stop()
        stopped = [thread.stop(wait_s) for thread in self._threads.values()]
        self._cpus.release()
        if all(stopped):
            for device in self._devices:
                device.close()
        else:
            log.warning("a lane is still running an operation: models are not closed", lanes=list(self._threads))

    def _thread(self, share: int, lane: str) -> LaneThread:
        thread = self._threads.get((share, lane))
        if thread is None:
            core = self._exec_cpu(share) if self.settings.pin and lane == "exec" else None
            priority = RealtimePriority(self._permitted and lane in REALTIME_LANES)
            run = self._devices[share].run
            thread = LaneThread(f"{lane}-{share}", run, self._post_to_worker, priority, core)
            self._threads[share, lane] = thread
            thread.start()
        return thread

    def _exec_cpu(self, share: int) -> int | None:
        """Return the CPU of the EXEC lane of a share: of the settings, else a free one. None: any."""
        if self.settings.exec_cpus:
            cpus = self.settings.exec_cpus.split(",")
            return int(cpus[share]) if share < len(cpus) else None
        return self._cpus.claim(os.sched_getaffinity(0))

    def _post_to_worker(self, message: Finished | VersionScanned) -> None:
        if self._post_threadsafe is not None:
            with suppress(RuntimeError):  # the event loop has closed
                self._post_threadsafe(self.address, self.worker, self._shown.show(message))
