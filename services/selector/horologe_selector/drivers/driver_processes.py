"""The processes of the drivers: started from the folder of pipelines, watched, and started again after a delay."""

from __future__ import annotations

import asyncio
import mmap
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_common.service.processes import STEADY_S, Backoff, IsolatedProcess, child_environment, start_isolated
from horologe_common.status import HorologeError
from horologe_common.transport.streams import Stream, Streams
from horologe_common.wire import MAX_FRAME_BYTES, PEER_HEADER_LIMIT, DriverReady, StartDriver
from horologe_common.wire.frames import unpack
from horologe_selector.driver import (
    CALLS_LIMIT,
    DriverEnded,
    KillDriver,
    PipelineDefinition,
    PipelinesRead,
    driver_address,
)
from horologe_selector.drivers.driver_process import PROGRESS, pack_messages
from horologe_selector.drivers.pipeline_folder import folder_state, read_pipelines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.transport.reactor import Reactor
    from horologe_common.wire import AnyMessage
    from horologe_selector.settings import SelectorSettings

CHILD = "horologe_selector.drivers.driver_process"
SCAN_S = 1.0
"""Interval at which the folder is compared with its last state."""
START_S = 60.0

log = logger("drivers")


class DriverProcess:
    """One incarnation of a driver's process. `start` starts it."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.stream: Stream | None = None
        self.outbox: list[tuple[AnyMessage, Sequence[Buffer]]] = []
        self.ready = self.refused = False
        """The driver function has been loaded, or could not be loaded."""
        self.ended = asyncio.Event()
        self.reason = "it could not be started"
        """Why it has ended, if the process itself does not show it."""
        self._progress: mmap.mmap | None = None
        self._child: IsolatedProcess | None = None

    async def start(self, streams: Streams, user: str, environment: tuple[str, ...]) -> None:
        """Start the process and connect to it. Raises OSError if it cannot be started."""
        progress = os.memfd_create("progress")
        try:
            os.ftruncate(progress, mmap.PAGESIZE)
            self._progress = mmap.mmap(progress, PROGRESS.size)
            variables = child_environment(os.environ, 1, environment)
            self._child = start_isolated(CHILD, variables, user, (progress,))
            self.reason = ""
        finally:
            os.close(progress)
        stream = self.stream = Stream(streams, driver_address(self.pipeline))
        self._child.sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: stream, sock=self._child.sock)

    def flush(self) -> None:
        """Send the messages of this turn in one packet. Kill a process that does not read."""
        outbox, self.outbox = self.outbox, []
        if not outbox or self.stream is None:
            return
        if not self.stream.send(pack_messages(outbox)):
            self.kill(self.reason)

    def kill(self, reason: str) -> None:
        """Kill the process and its children. The selector detects it when its socket closes."""
        self.reason = reason
        if self._child is not None:
            self._child.kill()

    def end(self) -> tuple[str, int]:
        """Kill and reap the process. Return how it ended and the run that it executed then."""
        run = 0
        if self._progress is not None:
            (run,) = PROGRESS.unpack_from(self._progress)
            self._progress.close()
        if self._child is not None:
            status = self._child.end()
            self.reason = self.reason or status
            self._child = None
        if self.stream is not None:
            self.stream.abort()
        return self.reason, run


class DriverProcesses:
    """All drivers of a selector. `run` starts and watches them; the core gets what they send.

    `start_s`: timeout in seconds for the import of a driver's module.
    """

    def __init__(
        self,
        core: str,
        settings: SelectorSettings,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        start_s: float = START_S,
    ) -> None:
        self._core = core
        self._max_frame_bytes = max_frame_bytes
        self._start_s = start_s
        self._settings = settings
        self._folder = Path(settings.pipelines)
        self._definitions: dict[str, PipelineDefinition] = {}
        self._processes: dict[str, DriverProcess] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unflushed: dict[str, DriverProcess] = {}
        self._starting = asyncio.Lock()
        self._streams = Streams(max_frame_bytes, lambda stream: None, self._on_lost, self._on_packets)

    async def run(self, reactor: Reactor) -> None:
        """Read the folder whenever it changes, until cancelled. The loop does not wait for its files."""
        self._reactor = reactor
        state: Any = None
        try:
            while True:
                try:
                    if (now := await asyncio.to_thread(folder_state, self._folder)) != state:
                        await self._read_folder()
                        state = now
                except RuntimeError as error:  # no thread can be started now
                    log.warning("pipelines not read: they are read again", reason=str(error))
                await asyncio.sleep(SCAN_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _read_folder(self) -> None:
        """Read the folder, withdraw the pipelines that have changed, and start those of the folder that do not run."""
        try:
            definitions = await asyncio.to_thread(read_pipelines, self._folder)
        except HorologeError as error:  # the pipelines before stay served
            log.error("pipelines unreadable", reason=error.reason)
            return
        for definition in definitions:
            if definition.reason:
                log.warning("pipeline unavailable", pipeline=definition.spec.name, reason=definition.reason)
        wanted = {definition.spec.name: definition for definition in definitions if not definition.reason}
        changed = [name for name, before in self._definitions.items() if wanted.get(name) != before]
        self._post("drivers", PipelinesRead(definitions))
        for name in changed:
            self._tasks.pop(name).cancel()
        for name, definition in wanted.items():
            address = driver_address(name)
            if name not in self._tasks:
                self._reactor.attach(address, partial(self._deliver, name))
                self._tasks[name] = asyncio.ensure_future(self._keep_running(definition))
        self._definitions = wanted

    async def _keep_running(self, definition: PipelineDefinition) -> None:
        """Run the process of a pipeline; start it again, after a growing delay, whenever it ends."""
        name, settings, backoff = definition.spec.name, self._settings, Backoff(immediate=1)
        while True:
            process = DriverProcess(name)
            try:
                async with self._starting:  # on a busy machine a start takes 0.1 s, in which the loop must run
                    await process.start(self._streams, settings.pipeline_user, settings.pipeline_environment)
                self._processes[name] = process
                started = self._reactor.loop.time()
                start = StartDriver(
                    name,
                    definition.file,
                    CALLS_LIMIT,
                    settings.pipeline_step_ns,
                    settings.pipeline_memory_bytes,
                    self._max_frame_bytes,
                )
                self._deliver(name, start, ())
                timer = self._reactor.loop.call_later(self._start_s, self._kill_unready, process)
                await process.ended.wait()
                timer.cancel()
                if self._reactor.loop.time() - started > STEADY_S:
                    backoff.reset()
            except (OSError, KeyError) as error:  # KeyError: there is no such user
                process.reason = f"it could not be started: {error}"
            finally:  # also when cancelled, because the pipeline was withdrawn or changed: the core knows it
                reason, run = process.end()
                if self._processes.get(name) is process:
                    del self._processes[name]
            log.error("driver ended", pipeline=name, reason=reason, run=run)
            self._post(driver_address(name), DriverEnded(name, reason, run))
            if process.refused:  # it would fail again until the file changes, which cancels this task
                await asyncio.Event().wait()
            await asyncio.sleep(backoff.next_delay_s())

    def _deliver(self, name: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Send a message of the core to a driver: all messages of one turn in one packet."""
        process = self._processes.get(name)
        if process is None:
            return  # the core gets a DriverEnded
        if isinstance(message, KillDriver):
            process.kill(message.reason)
            return
        if not self._unflushed:
            self._reactor.loop.call_soon(self._flush)
        self._unflushed[name] = process
        process.outbox.append((message, buffers))

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for process in unflushed.values():
            process.flush()

    def _on_packets(self, stream: Stream, packets: list[list[memoryview]]) -> None:
        try:
            arrivals = [arrival for frames in packets for arrival in unpack(frames, PEER_HEADER_LIMIT)]
        except HorologeError as error:
            log.error("driver sent an invalid packet", driver=stream.endpoint, reason=error.reason)
            stream.abort()
            return
        for _, _, message, buffers in arrivals:
            if isinstance(message, DriverReady):
                self._on_ready(stream, message.reason)
            self._post(stream.endpoint, message, buffers)

    def _on_ready(self, stream: Stream, reason: str) -> None:
        if reason:
            log.error("driver unavailable", driver=stream.endpoint, reason=reason)
        for process in self._processes.values():
            if process.stream is stream:
                process.ready, process.refused = True, bool(reason)

    def _kill_unready(self, process: DriverProcess) -> None:
        if not process.ready and self._processes.get(process.pipeline) is process:
            process.kill(f"the driver's module was not imported within {self._start_s:g} s")

    def _on_lost(self, stream: Stream) -> None:
        for process in self._processes.values():
            if process.stream is stream:
                process.ended.set()

    def _post(self, sender: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        self._reactor.post(sender, self._core, message, buffers)
