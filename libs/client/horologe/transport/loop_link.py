"""A session's connection under an event loop: ZeroMQ's file descriptor is read by the loop, one packet leaves a turn.

Works with asyncio and uvloop. ZeroMQ's descriptor is edge-triggered and says only that EVENTS may have changed:
everything must be read before returning to the loop, and every send may have eaten the edge (zmq_getsockopt(3)).
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
"""Packets read before other callbacks of the loop get their turn."""
EARLY_S = 0.0005
"""uvloop's timers fire up to 0.3 ms early (decisions.md)."""


class LoopLink:
    """Moves packets between a session and its socket. Belongs to the loop that first used it."""

    def __init__(self, session: Session, dealer: Dealer) -> None:
        self.session = session
        self.dealer = dealer
        self.loop: asyncio.AbstractEventLoop | None = None
        self._context: zmq.Context[Any] | None = None
        self._unsent: list[Packet] = []
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def attach(self) -> asyncio.AbstractEventLoop:
        """The running loop; opens the connection the first time. Raises `RuntimeError` on any other loop."""
        loop = asyncio.get_running_loop()
        if self.loop is None:
            self._context = zmq.Context()
            try:
                self.dealer.open(self._context)
            except BaseException:
                self._context.term()
                raise
            self.loop = loop
            loop.add_reader(self.dealer.socket.fd, self._readable)
            loop.add_reader(self.dealer.monitor.fd, self._followable)
            loop.call_soon(self._followable)
        elif loop is not self.loop:
            raise RuntimeError("this AsyncClient belongs to another event loop; make one per loop")
        return loop

    def close(self) -> None:
        if self.loop is None or self._context is None:
            return
        if self._timer:
            self._timer.cancel()
        self.loop.remove_reader(self.dealer.socket.fd)
        self.loop.remove_reader(self.dealer.monitor.fd)
        self.dealer.close()
        self._context.term()
        self._context = None

    def post(self) -> None:
        """Send what the session has, once everything that is ready in this turn of the loop has run."""
        if not self._flushing and self.loop is not None:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._context is None:
            return
        now_ns = time.monotonic_ns()
        if self.session.handshake.refusal is not None:
            self.dealer.retry(now_ns)
        if not self._unsent and self.session.mail(now_ns):
            self._unsent = self.session.packets(now_ns)
        while self._unsent and self.dealer.send(self._unsent[0]):
            del self._unsent[0]
        self._arm(now_ns)
        if self.dealer.events() & zmq.POLLIN:
            self._readable()

    def _readable(self) -> None:
        if self._context is None:
            return
        now_ns = time.monotonic_ns()
        dealer, session = self.dealer, self.session
        for _ in range(DRAIN):
            if not dealer.events() & zmq.POLLIN:
                break
            session.receive(now_ns, dealer.receive())
        else:
            asyncio.get_running_loop().call_soon(self._readable)
        if self._unsent or session.mail(now_ns):
            self.post()

    def _followable(self) -> None:
        if self._context is None:
            return
        self._readable()  # answers that came before the connection broke are answers
        now_ns = time.monotonic_ns()
        was_ready = self.session.handshake.ready
        self.dealer.follow(self.session, now_ns)
        if was_ready and not self.session.handshake.ready:
            self._unsent.clear()  # packets of the connection that broke
        self.post()

    def _arm(self, now_ns: int) -> None:
        """One timer, for the earliest deadline; it is moved only to come earlier."""
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
        self._readable()  # an answer that waits to be read is in time
        self.session.expire(time.monotonic_ns())
        self.post()
