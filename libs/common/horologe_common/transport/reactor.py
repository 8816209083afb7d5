"""The only loop over sockets and the real clock. It drives cores; it decides nothing.

A turn: take everything that has arrived, hand it to the cores, tick each core that got something or whose time has
come, pass on what they put out (to cores of this process without a socket) until all is quiet, and send one packet
to each peer (cores.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import zmq

from horologe_common.clock import NEVER_NS, monotonic_ns
from horologe_common.core.hosting import CoreHost
from horologe_common.service.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from horologe_common.core.protocol import Arrival, Buffer, Core
    from horologe_common.transport.links import Links

log = logger("reactor")

SWITCH_INTERVAL_S = 0.0002
"""Between threads of one interpreter: a busy one delayed a lane by 5.1 ms at the default, 0.28 ms at this."""
IDLE_TURNS = 20
"""Fewer turns than this in a second are pings and timers: nobody waits for what a full collection holds up."""
FULL_EVERY = 10
DRAIN_POLL_S = 0.01


@runtime_checkable
class Drains(Protocol):
    """A core that has something to finish before it stops."""

    def drain(self) -> None:
        """Take nothing new from now on."""

    def drained(self) -> bool:
        """Whether nothing is in flight."""


def log_fault(core: Core | None, message: Any, error: Exception) -> None:
    """Log the exception that a core raised, or that kept a packet from being encoded."""
    if core is None:
        log.exception("packet fault", to=[envelope.to for envelope in message])
    else:
        log.exception("core fault", core=core.address, message=type(message).__name__)


class Reactor:
    """Hosts cores of one process. `start` are coroutines run beside the loop (an HTTP server), cancelled at the end."""

    def __init__(
        self, cores: Sequence[Core], links: Links, start: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    ) -> None:
        self.host = CoreHost(cores, monotonic_ns, links, log_fault)
        self.links = links
        self.start = start
        self.drain_ns = links.settings.drain_ns
        self.turns = 0
        self._posted: deque[Arrival] = deque()
        self._scheduled = False
        self._signalled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._failed: BaseException | None = None

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None:
        """Give everything cores put out for `address` to `deliver`, on the loop's thread."""
        self.host.attached[address] = deliver

    def post(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        """Hand a hosted core a message in the next turn. From the loop's thread."""
        self._posted.append((to, sender, message, buffers))
        self._schedule()

    def post_threadsafe(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        """`post`, from any thread."""
        self._posted.append((to, sender, message, buffers))
        if not self._signalled:
            self._signalled = True
            self.loop.call_soon_threadsafe(self._turn)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then stop. Uses uvloop where it is installed."""
        try:
            import uvloop
        except ImportError:
            asyncio.run(self.serve())
        else:
            uvloop.run(self.serve())

    async def serve(self) -> None:
        """The body of `run`, for a loop that runs already."""
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._stopped.set)
        self.links.on_socket = self._watch
        for sock, monitor in self.links.sockets().items():
            self._watch(sock, monitor)
        self.host.introduce_cores(self.links.host)
        tasks = [asyncio.ensure_future(begin()) for begin in self.start]
        for task in tasks:
            task.add_done_callback(self._ended)
        gc.collect()
        gc.freeze()
        gc.disable()
        self._schedule()
        try:
            await self._until_stopped()
            await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._turn()
            self._closed = True
            for pair in self.links.sockets().items():
                for sock in pair:
                    self.loop.remove_reader(int(sock.getsockopt(zmq.FD)))
            self.links.close()
        if self._failed:
            raise self._failed

    def stop(self) -> None:
        self._stopped.set()

    async def _until_stopped(self) -> None:
        """Wait for a signal, collecting young garbage every second and all of it now and then when idle.

        Every second, for the pause grows with what was made since: 220,000 cache entries in ten seconds took 75 ms.
        """
        turns, young = self.turns, 0
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), 1)
            idle = self.turns - turns < IDLE_TURNS
            turns, young = self.turns, young + 1
            if idle and young >= FULL_EVERY:
                gc.collect()
                young = 0
            else:
                gc.collect(1)

    async def _drain(self) -> None:
        """Take nothing new and finish what is in flight: for `drain_ns`, or until told to stop a second time."""
        self._stopped.clear()
        cores = [core for core in self.host if isinstance(core, Drains)]
        for core in cores:
            core.drain()
        self.host.wake_all()
        self._schedule()
        until_ns = monotonic_ns() + self.drain_ns
        while not all(core.drained() for core in cores) and monotonic_ns() < until_ns and not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), DRAIN_POLL_S)
        log.info("drained" if all(core.drained() for core in cores) else "aborted")

    def _ended(self, task: asyncio.Future[None]) -> None:
        """A side task that fails takes the process down, loudly."""
        if not task.cancelled() and task.exception():
            self._failed = task.exception()
            self.drain_ns = 0
            self._stopped.set()

    def _watch(self, sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        self.loop.add_reader(int(sock.getsockopt(zmq.FD)), self._readable, sock)
        self.links.readable(sock)
        self.loop.add_reader(int(monitor.getsockopt(zmq.FD)), self._monitored)
        self._monitored()

    def _readable(self, sock: zmq.Socket[bytes]) -> None:
        self.links.readable(sock)
        self._turn()

    def _monitored(self) -> None:
        self.links.read_monitors()
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._signalled = False
        if self._closed:
            return
        self.turns += 1
        self._scheduled = True  # what is posted meanwhile is looked at below
        try:
            more = self._pass()
            if self._posted:  # a lane has run something brief, or a thread was quick
                more |= self._pass()
        except Exception:  # or nobody would be heard any more: no timer is armed, what is readable stays unread
            self.host.faults += 1
            log.exception("turn fault")
            more = True
        finally:
            self._scheduled = False
        if more or self._posted or self.host.has_messages() or not self.links.idle():
            self._schedule()
        self._arm()

    def _pass(self) -> bool:
        """Work off what has been posted and what has arrived; True if more may have."""
        inbox = [self._posted.popleft() for _ in range(len(self._posted))]
        more = self.links.receive(inbox)
        self.host.enqueue(inbox)
        self.host.run_turn()
        return more

    def _arm(self) -> None:
        """One timer, at the earliest time any core asks for. One that is due too early only looks again."""
        at_ns = self.host.wakeup_ns()
        if (probe_ns := self.links.wakeup_ns()) is not None:
            at_ns = min(at_ns, probe_ns)
        if at_ns == NEVER_NS or (self._timer is not None and self._timer_ns <= at_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self.loop.call_later(max(0, at_ns - monotonic_ns()) / 1e9, self._timeout)

    def _timeout(self) -> None:
        self._timer = None
        self._turn()
