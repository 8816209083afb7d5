"""A session's connection for one thread: whoever waits for an answer reads the socket itself."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import zmq

from horologe_common.clock import ms

if TYPE_CHECKING:
    from horologe.core.call import Sink
    from horologe.core.outbox import Packet
    from horologe.core.session import Session
    from horologe.transport.dealer import Dealer

SLICE_MS = 50
"""While waiting, a lost connection is looked for this often (and the close of the client by another thread)."""
IDLE_NS = ms(10)
"""A frontend takes longer than this to come back, so within it of the last packet there is nothing to look for."""
DRAIN_EVERY = 32


class BlockingLink:
    """Moves packets between a session and its socket. The lock is free unless two threads share a handle."""

    def __init__(self, session: Session, dealer: Dealer, context: zmq.Context[Any]) -> None:
        self.session = session
        self.dealer = dealer
        self.lock = threading.RLock()
        self._context = context
        self._unsent: list[Packet] = []
        self._seen_ns = 0
        self._posts = 0
        self._slice_ms = -1
        self._closed = False

    def open(self) -> None:
        self.dealer.open(self._context)

    def close(self) -> None:
        """End what is open with `Cancelled`. From another thread: waits for that one to notice."""
        self.session.close()  # whoever waits sees this within a slice and gives the lock back
        with self.lock:
            self._closed = True
            self.session.close()
            self.dealer.close()

    def __del__(self) -> None:  # the thread this belonged to has ended
        if hasattr(self.dealer, "socket"):
            self.dealer.close()

    def post(self, now_ns: int) -> None:
        """Send what the session has, if it can be sent now; answers are read in between, lest they pile up."""
        if self._closed:
            return
        if now_ns - self._seen_ns > IDLE_NS:
            self._look(now_ns)
        self._flush(now_ns)
        self._posts += 1
        if self._posts % DRAIN_EVERY == 0:
            self._drain(now_ns)

    def wait(self, sink: Sink) -> None:
        """Read until this request has ended: by its deadline and grace at the latest."""
        while not sink.done():
            if self._unsent or not self.session.handshake.ready:
                self._turn()
            else:
                self._receive()

    def _flush(self, now_ns: int) -> None:
        if not self._unsent and self.session.mail(now_ns):
            self._unsent = self.session.packets(now_ns)
        while self._unsent and self.dealer.send(self._unsent[0]):
            del self._unsent[0]

    def _receive(self) -> None:
        """The usual wait: one blocking read, no poll."""
        wait_ms = self._wait_ms(time.monotonic_ns())
        if wait_ms != self._slice_ms:
            self.dealer.socket.setsockopt(zmq.RCVTIMEO, wait_ms)
            self._slice_ms = wait_ms
        try:
            frames = self.dealer.receive(0)
        except zmq.Again:
            now_ns = time.monotonic_ns()
            self._look(now_ns)
            self.session.expire(now_ns)
        else:
            now_ns = self._seen_ns = time.monotonic_ns()
            self.session.receive(now_ns, frames)
        self._flush(now_ns)

    def _turn(self) -> None:
        """The wait for a connection, a welcome, or room in a full one."""
        poller = zmq.Poller()
        poller.register(self.dealer.socket, zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0))
        poller.register(self.dealer.monitor, zmq.POLLIN)
        poller.poll(self._wait_ms(time.monotonic_ns()))
        now_ns = time.monotonic_ns()
        self._drain(now_ns)
        self._look(now_ns)
        self.session.expire(now_ns)
        self._flush(now_ns)

    def _wait_ms(self, now_ns: int) -> int:
        at_ns = self.session.next_ns()
        if at_ns is None or at_ns - now_ns > ms(SLICE_MS):
            return SLICE_MS
        return max(1, -(-(at_ns - now_ns) // ms(1)))

    def _drain(self, now_ns: int) -> None:
        while self.dealer.events() & zmq.POLLIN:
            self._seen_ns = now_ns
            self.session.receive(now_ns, self.dealer.receive())

    def _look(self, now_ns: int) -> None:
        """Follow the connection's fate. Answers that came before it broke are answers."""
        if self.session.handshake.refusal is not None:
            self.dealer.retry(now_ns)
        if not self.dealer.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            return
        self._drain(now_ns)
        was_ready = self.session.handshake.ready
        self.dealer.follow(self.session, now_ns)
        if was_ready and not self.session.handshake.ready:
            self._unsent.clear()  # packets of the connection that broke
