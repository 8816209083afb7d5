"""The reactor: runs a `CoreHost` on sockets and the real clock, in an asyncio loop.

In a turn it reads all packets that have arrived, puts their messages into the mailboxes of the cores, and lets the host
call the cores and send one packet to each peer (core/hosting.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import deque
from functools import partial
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.core.hosting import CoreHost
from horologe_common.core.protocol import Drains
from horologe_common.service.log import logger
from horologe_common.transport.alarm import Alarm
from horologe_common.transport.garbage_collection import collect_garbage, freeze_objects
from horologe_common.wire import Envelope
from horologe_common.wire.frames import find_unencodable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from horologe_common.core.protocol import Arrival, Buffer, Core
    from horologe_common.transport.links import Links

    Task: TypeAlias = "Callable[[Reactor], Coroutine[Any, Any, None]]"

log = logger("reactor")

SWITCH_INTERVAL_S = 0.0002
"""Interval at which threads take turns. A busy thread delayed a lane by 5.1 ms at the default, by 0.28 ms here."""
FAULT_PAUSE_S, FAULT_LOG_NS = 0.01, s(10)
"""Pause after a turn that has raised, and the shortest time between the log lines about such turns."""
DRAIN_POLL_S = 0.01
LAST_READ_NS = ms(200)
"""Time for clients to read their last answers: with ZMQ_IMMEDIATE, libzmq drops them when the connection ends."""


def log_fault(core: Core | None, message: Any, error: Exception) -> None:
    """Log the exception of a core or an attached function, or of a message that could not be sent."""
    if core is not None:
        log.exception("core fault", core=core.address, message=type(message).__name__)
    elif isinstance(message, Envelope):
        name = type(message.messages[0]).__name__
        log.exception("message not sent", to=message.to, part=find_unencodable(message.messages[0], name))
    else:
        log.exception("delivery fault", message=type(message).__name__)


class Reactor:
    """Runs the cores of one process. `start` are coroutines beside the cores, cancelled at the end.

    `endpoints` are coroutines that serve clients (an HTTP server). They end by themselves once `draining` is set.
    """

    def __init__(self, cores: Sequence[Core], links: Links) -> None:
        self.core_host = CoreHost(cores, monotonic_ns, links, log_fault)
        self.links = links
        self.start: Sequence[Task] = ()
        self.endpoints: Sequence[Task] = ()
        self.drain_ns = links.settings.drain_ns
        self.is_stopping = False
        """Set by the first signal: the process reports not ready."""
        self._posted: deque[Arrival] = deque()
        self._scheduled = False
        self._signalled = False
        self._paused = self._closed = False
        self.is_running = False
        """True if the loop handles messages: it has started and has not ended."""
        self._turn_faults = self._fault_log_ns = 0
        """Turns that have raised since the last log line about them, and when the next line may be written."""
        observed = self.core_host.has_turn_observers()
        self._thread_cpu_ns: Callable[[], int] = thread_time_ns if observed else lambda: 0
        """Reads the thread's CPU clock, if a core observes turns. The system call takes 0.6 us, twice in each turn."""
        self._cpu_ns = 0
        """CPU time of the loop's thread at the end of the last turn. HTTP is parsed between turns."""
        self._failed: BaseException | None = None

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None:
        """Pass messages that cores send to `address` to `deliver`, on the loop's thread."""
        self.core_host.attached[address] = deliver

    def post(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message to a core of this process. Call it on the loop's thread."""
        self._posted.append((to, sender, message, buffers))
        self._schedule()

    def post_threadsafe(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message to a core of this process from any thread."""
        self._posted.append((to, sender, message, buffers))
        if not self._signalled:
            self._signalled = True
            self.loop.call_soon_threadsafe(self._turn)

    def call_between_turns(self, work: Callable[[], None], timeout_s: float) -> None:
        """Run `work` on the loop's thread and wait for it. Call this from another thread.

        Does nothing before the loop has started and after it has ended. Raises TimeoutError if the loop does not get to
        it in time, and whatever `work` raises.
        """

        async def run() -> None:
            work()

        if self.is_running:
            asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout_s)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Use uvloop if it is installed."""
        try:
            import uvloop
        except ImportError:
            asyncio.run(self.serve())
        else:
            uvloop.run(self.serve())

    async def serve(self) -> None:
        """Run in the current asyncio loop until SIGTERM or SIGINT."""
        self.loop = asyncio.get_running_loop()
        self._stopped, self.draining = asyncio.Event(), asyncio.Event()
        self.alarm = Alarm(self.loop, self._on_alarm)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._stopped.set)
        self.links.readiness.start(self.loop, self._turn, self._on_monitor_readable)
        self.links.on_arrival = self._schedule  # one turn for all that the loop reads at once
        await self.links.streams.start()
        await self.links.client_server.start(self._schedule)
        self.core_host.introduce_cores(self.links.host)
        self._serving = [asyncio.ensure_future(begin(self)) for begin in self.endpoints]
        tasks = [asyncio.ensure_future(self.links.keep_alive()), *self._serving]
        tasks += [asyncio.ensure_future(begin(self)) for begin in self.start]
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        freeze_objects()
        self._schedule()
        self.is_running = True
        try:
            await collect_garbage(self._stopped, self.core_host)
            await self._drain()
        finally:
            self.is_running = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._turn()
            self._closed = True
            self.alarm.close()
            await self.links.client_server.stop()
            await self.links.streams.stop()
            self.links.readiness.close()
            self.links.close()
        if self._failed:
            raise self._failed

    def stop(self) -> None:
        """Stop as SIGTERM does: drain, then end."""
        self._stopped.set()

    async def _drain(self) -> None:
        """Report not ready, then accept no more clients, then finish what is in flight.

        This takes at most `drain_ns`, or until a second signal. The cores drain one after the other: the selector of an
        edge serves its frontend until the clients have moved.
        """
        self._stopped.clear()
        self.is_stopping = True
        begin_ns = monotonic_ns()
        until_ns = begin_ns + self.drain_ns
        await self._wait_until(lambda: False, min(until_ns, begin_ns + self.links.settings.notice_ns))
        self.links.stop_listening()
        self.draining.set()
        unfinished = []
        for core in self.core_host:
            if isinstance(core, Drains):
                self.core_host.drain_core(core)
                self._posted.extend(arrival for arrival in self.links.connected_clients() if arrival[0] == core.address)
                self._schedule()
                if not await self._wait_until(partial(self._is_drained, core), until_ns):
                    unfinished.append(core.address)
            if not await self._wait_until(lambda: all(task.done() for task in self._serving), until_ns):
                unfinished.append("HTTP")
        await self._wait_until(lambda: not self.links.connected_clients(), min(until_ns, monotonic_ns() + LAST_READ_NS))
        if unfinished:
            log.info("aborted", unfinished=unfinished)
        else:
            log.info("drained")

    def _is_drained(self, core: Drains) -> bool:
        """Return whether a core has nothing left to do, and knows all of its clients."""
        return not self._posted and core.drained()

    async def _wait_until(self, condition: Callable[[], bool], until_ns: int) -> bool:
        """Wait for a condition until this time or a signal. Return whether it holds."""
        while not condition() and monotonic_ns() < until_ns and not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), DRAIN_POLL_S)
        return condition()

    def _on_task_done(self, task: asyncio.Future[None]) -> None:
        """End the process with the error of a task that has failed."""
        if not task.cancelled() and task.exception():
            self._failed = task.exception()
            self.drain_ns = 0
            self._stopped.set()

    def _on_monitor_readable(self) -> None:
        self.links.read_monitors()
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._signalled = False
        if self._closed or self._paused:
            return
        begin_ns, cpu_ns = monotonic_ns(), self._thread_cpu_ns()
        self._scheduled = True  # messages posted during the turn are handled below
        try:
            more = self._receive_and_run()
            if self._posted:  # an attached function or a thread has replied already
                more |= self._receive_and_run()
            end_ns = monotonic_ns()
            self.core_host.end_turn(end_ns, end_ns - begin_ns + cpu_ns - self._cpu_ns)
            self.links.client_server.end_turn(end_ns, end_ns - begin_ns)
            more = more or bool(self._posted) or self.core_host.has_messages() or self.links.readiness.has_readable()
        except Exception:  # without this, no timer would be set and no socket be read again
            self._pause_after_fault(begin_ns)
            more = True
        finally:
            self._scheduled = False
        self._cpu_ns = self._thread_cpu_ns()
        if more:
            self._schedule()
        self._arm()

    def _receive_and_run(self) -> bool:
        """Run a turn with the messages that were posted or have arrived. Return True if more may have."""
        inbox = [self._posted.popleft() for _ in range(len(self._posted))]
        try:
            return self.links.receive(inbox)
        finally:  # if a link raises, the messages of the others are handled
            self.core_host.run_turn(inbox)

    def _pause_after_fault(self, now_ns: int) -> None:
        """Count and log a turn that has raised, and run no turn for `FAULT_PAUSE_S`.

        An exception that repeats would otherwise occupy the processor and fill the log.
        """
        self.core_host.faults += 1
        self._turn_faults += 1
        if now_ns >= self._fault_log_ns:
            log.exception("turn fault", count=self._turn_faults)
            self._turn_faults, self._fault_log_ns = 0, now_ns + FAULT_LOG_NS
        self._paused = True
        self.links.readiness.pause()
        self.loop.call_later(FAULT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = False
        if self._closed:
            return
        self.links.readiness.resume()
        self._turn()

    def _wakeup_ns(self) -> int:
        at_ns, probe_ns = self.core_host.wakeup_ns(), self.links.wakeup_ns()
        return at_ns if probe_ns is None else min(at_ns, probe_ns)

    def _arm(self) -> None:
        """Set the alarm to the earliest wakeup time, unless it expires before: then it is set again."""
        at_ns = self._wakeup_ns()
        if at_ns < self.alarm.at_ns:
            self.alarm.set(at_ns)

    def _on_alarm(self) -> None:
        if self._wakeup_ns() <= monotonic_ns():
            self._turn()
        else:
            self._arm()
