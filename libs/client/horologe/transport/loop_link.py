"""The connection of a session in an event loop, asyncio or uvloop, which sends one packet per turn.

The loop watches ZeroMQ's file descriptor. It is edge-triggered and shows only that EVENTS may have changed. Therefore
everything must be read before returning to the loop, also after every send (zmq_getsockopt(3)).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from horologe.core.outbox import Packet
    from horologe.core.session import Session
    from horologe.transport.dealer import Dealer

DRAIN = 256
"""Packets read before other callbacks of the loop run."""
EARLY_S = 0.0005
"""uvloop's timers fire up to 0.3 ms early (decisions.md)."""


class LoopLink:
    """Moves packets between a session and its socket. Belongs to the loop that first used it."""

    def __init__(self, session: Session, dealer: Dealer) -> None:
        self.session = session
        self.dealer = dealer
        self.loop: asyncio.AbstractEventLoop | None = None
        self._context: zmq.Context[Any] | None = None
        self._left: list[Dealer] = []
        """Connections to frontends that drain. Their last answers still arrive."""
        self._unsent: list[Packet] = []
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._retry: asyncio.TimerHandle | None = None

    def attach(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. The first call opens the connection. Raises `RuntimeError` on another loop."""
        loop = asyncio.get_running_loop()
        if self.loop is None:
            self._context = zmq.Context()
            try:
                self.dealer.open(self._context)
            except BaseException:
                self._context.term()
                raise
            self.loop = loop
            self._watch(loop)
        elif loop is not self.loop:
            raise RuntimeError("this AsyncClient belongs to another event loop; make one per loop")
        return loop

    def close(self) -> None:
        if self.loop is None or self._context is None:
            return
        for timer in (self._timer, self._retry):
            if timer:
                timer.cancel()
        for dealer in (self.dealer, *self._left):
            self._close_dealer(self.loop, dealer)
        self._context.term()
        self._context = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self.dealer.socket.fd, self._on_readable)
        loop.add_reader(self.dealer.monitor.fd, self._on_monitor_readable)
        loop.call_soon(self._on_monitor_readable)

    @staticmethod
    def _close_dealer(loop: asyncio.AbstractEventLoop, dealer: Dealer) -> None:
        loop.remove_reader(dealer.socket.fd)
        loop.remove_reader(dealer.monitor.fd)
        dealer.close()

    def post(self) -> None:
        """Send the packets of the session at the end of this turn of the loop."""
        if not self._flushing and self.loop is not None:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._context is None:
            return
        now_ns = time.monotonic_ns()
        if not self._unsent and self.session.has_packets(now_ns):
            self._unsent = self.session.packets(now_ns)
        while self._unsent and self.dealer.send(self._unsent[0]):
            del self._unsent[0]
        if self.session.is_moving and not self._unsent and self.loop is not None:
            self._left.append(self.dealer)
            self.dealer = self.dealer.leave(self.session.leave())
            self._watch(self.loop)
            self._schedule_retry()
            self.loop.call_soon(self._on_readable)  # the last packet was sent, and answers may have arrived meanwhile
        self._arm(now_ns)
        if self.dealer.event_mask() & zmq.POLLIN:
            self._on_readable()

    def _on_readable(self) -> None:
        if self._context is None:
            return
        now_ns = time.monotonic_ns()
        dealer, session = self.dealer, self.session
        for _ in range(DRAIN):
            if not dealer.event_mask() & zmq.POLLIN:
                break
            session.receive(now_ns, dealer.receive())
        else:
            asyncio.get_running_loop().call_soon(self._on_readable)
        if self._left:
            self._read_left(now_ns)
        if self._unsent or session.is_moving or session.has_packets(now_ns):
            self.post()

    def _read_left(self, now_ns: int) -> None:
        """Read the last answers of frontends that drain, and close the connections that these have ended."""
        for dealer in list(self._left):
            while dealer.event_mask() & zmq.POLLIN:
                self.session.receive(now_ns, dealer.receive())
            if dealer.has_ended(self.session, now_ns) and self.loop is not None:
                self._left.remove(dealer)
                self._close_dealer(self.loop, dealer)

    def _on_monitor_readable(self) -> None:
        if self._context is None:
            return
        self._on_readable()  # read the answers that arrived before the loss first
        now_ns = time.monotonic_ns()
        was_ready = self.session.handshake.is_ready
        self.dealer.process_events(self.session, now_ns)
        if was_ready and not self.session.handshake.is_ready:
            self._unsent.clear()  # packets for the lost connection
        self._schedule_retry()
        self.post()

    def _schedule_retry(self) -> None:
        if self.dealer.is_lost and self._retry is None and self.loop is not None:
            self._retry = self.loop.call_later(self.dealer.retry_ns / 1e9 + EARLY_S, self._reconnect)

    def _reconnect(self) -> None:
        self._retry = None
        self._on_monitor_readable()  # it may have connected
        self.dealer.reconnect(time.monotonic_ns())
        self._schedule_retry()

    def _arm(self, now_ns: int) -> None:
        """Set one timer for the earliest deadline. Replace it only by an earlier one."""
        at_ns = self.session.next_ns()
        if at_ns is None or (self._timer is not None and self._timer_ns <= at_ns) or self.loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self.loop.call_later(max(0, at_ns - now_ns) / 1e9 + EARLY_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._context is None:
            return
        self._on_readable()  # an answer that is not read yet is in time
        self.session.expire(time.monotonic_ns())
        self.post()
