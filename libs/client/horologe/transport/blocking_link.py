"""The connections of a blocking client: one for each thread that uses it, which reads it while it waits."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import zmq

from horologe_common.clock import ms
from horologe_common.status import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe.core.outbox import Packet
    from horologe.core.session import Session
    from horologe.transport.dealer import Dealer

SLICE_MS = 50
"""Interval, while waiting, of checks for a lost connection and for a `close` by another thread."""
IDLE_NS = ms(10)
"""A frontend takes longer than this to restart, so the connection is not checked so soon after a packet."""
DRAIN_EVERY = 32


class BlockingLink:
    """Moves packets between a session and its socket. Threads contend for the lock only if they share a handle."""

    def __init__(self, session: Session, dealer: Dealer, context: zmq.Context[Any]) -> None:
        self.session = session
        self.dealer = dealer
        self.lock = threading.RLock()
        self._context = context
        self._left: list[Dealer] = []
        """Connections to frontends that drain. Their last answers still arrive."""
        self._unsent: list[Packet] = []
        self._seen_ns = 0
        self._posts = 0
        self._slice_ms = -1
        self._closed = False

    def open(self) -> None:
        self.dealer.open(self._context)

    def close(self) -> None:
        """End pending requests with `Cancelled`. Another thread that calls this waits for the lock of the first."""
        self.session.close()  # a waiting thread sees this within SLICE_MS and releases the lock
        with self.lock:
            self._closed = True
            self.session.close()
            self._close_dealers()

    def __del__(self) -> None:  # called when the thread has ended
        self._close_dealers()

    def _close_dealers(self) -> None:
        for dealer in (self.dealer, *self._left):
            if hasattr(dealer, "socket"):
                dealer.close()

    def post(self, now_ns: int) -> None:
        """Send the packets of the session that can be sent now. Read answers every `DRAIN_EVERY` calls."""
        if self._closed:
            return
        if now_ns - self._seen_ns > IDLE_NS:
            self._check_connection(now_ns)
        self._flush(now_ns)
        self._posts += 1
        if self._posts % DRAIN_EVERY == 0:
            self._drain(now_ns)

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Read until a request has ended, or has an item: at most until its deadline and grace."""
        while not is_over():
            if self._unsent or self._left or not self.session.handshake.is_ready:
                self._turn()
            else:
                self._receive()

    def _flush(self, now_ns: int) -> None:
        if not self._unsent and self.session.has_packets(now_ns):
            self._unsent = self.session.packets(now_ns)
        while self._unsent and self.dealer.send(self._unsent[0]):
            del self._unsent[0]
        if self.session.is_moving and not self._unsent:
            self._left.append(self.dealer)
            self.dealer = self.dealer.leave(self.session.leave())
            self._slice_ms = -1

    def _receive(self) -> None:
        wait_ms = self._wait_ms(time.monotonic_ns())
        if wait_ms != self._slice_ms:
            self.dealer.socket.setsockopt(zmq.RCVTIMEO, wait_ms)
            self._slice_ms = wait_ms
        try:
            frames = self.dealer.receive(0)
        except zmq.Again:
            now_ns = time.monotonic_ns()
            self._check_connection(now_ns)
            self.session.expire(now_ns)
        else:
            now_ns = self._seen_ns = time.monotonic_ns()
            self.session.receive(now_ns, frames)
        self._flush(now_ns)

    def _turn(self) -> None:
        """Wait for the connection, the Welcome, or until the socket can send."""
        poller = zmq.Poller()
        poller.register(self.dealer.socket, zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0))
        for sock in (self.dealer.monitor, *(sock for left in self._left for sock in (left.socket, left.monitor))):
            poller.register(sock, zmq.POLLIN)
        poller.poll(self._wait_ms(time.monotonic_ns()))
        now_ns = time.monotonic_ns()
        self._drain(now_ns)
        self._check_connection(now_ns)
        self.session.expire(now_ns)
        self._flush(now_ns)

    def _wait_ms(self, now_ns: int) -> int:
        at_ns = self.session.next_ns()
        if at_ns is None or at_ns - now_ns > ms(SLICE_MS):
            return SLICE_MS
        return max(1, -(-(at_ns - now_ns) // ms(1)))

    def _drain(self, now_ns: int) -> None:
        for dealer in (self.dealer, *self._left):
            while dealer.event_mask() & zmq.POLLIN:
                self._seen_ns = now_ns
                self.session.receive(now_ns, dealer.receive())

    def _check_connection(self, now_ns: int) -> None:
        """Handle a new or lost connection. Read the answers first that arrived before the loss."""
        for left in list(self._left):
            if left.has_ended(self.session, now_ns):
                self._left.remove(left)
                left.close()
        self._check_current(now_ns)
        self.dealer.reconnect(now_ns)

    def _check_current(self, now_ns: int) -> None:
        if not self.dealer.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            return
        self._drain(now_ns)
        was_ready = self.session.handshake.is_ready
        self.dealer.process_events(self.session, now_ns)
        if was_ready and not self.session.handshake.is_ready:
            self._unsent.clear()  # packets for the lost connection


class Handle:
    """A submitted request. It belongs to the thread that submitted it."""

    __slots__ = ("_done", "_error", "_link", "_result", "request_id")

    def __init__(self, link: BlockingLink) -> None:
        self._link = link
        self._done = False
        self._error: BaseException | None = None
        self._result: Any = None
        self.request_id = 0

    def done(self) -> bool:
        """Return whether the answer was read. Only `result` and other calls of the client read answers."""
        return self._done

    def result(self) -> Any:
        """Wait for the `Reply`, at most until deadline and grace. Raises what `Client.predict` does."""
        if not self.wait() and self._error is not None:
            raise self._error
        return self._result

    def wait(self) -> bool:
        """Wait as `result` does. Return whether the request has a result, and no error."""
        if not self._done:
            with self._link.lock:
                self._link.wait(self.done)
        return self._error is None

    def cancel(self) -> bool:
        """Cancel the request, also at the server. Return False if it has ended."""
        with self._link.lock:
            if self._done:
                return False
            self._link.session.cancel(self.request_id)
            self.set_exception(Cancelled("cancelled by the caller"))
            self._link.post(time.monotonic_ns())
            return True

    def set_result(self, result: Any, /) -> None:
        self._done, self._result = True, result

    def set_exception(self, exception: BaseException, /) -> None:
        self._done, self._error = True, exception


class ThreadLinks:
    """Opens a connection for a thread when the thread first needs one. A link ends with its thread."""

    def __init__(self, new_session: Callable[[], Session], new_dealer: Callable[[], Dealer]) -> None:
        self._new_session = new_session
        self._new_dealer = new_dealer
        self._closed = False
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        """Start without links. ZeroMQ's sockets of a parent process would block for ever."""
        self._local = threading.local()
        self._links: weakref.WeakSet[BlockingLink] = weakref.WeakSet()
        self._opening = threading.Lock()
        self._context: zmq.Context[Any] | None = None

    def current(self) -> BlockingLink:
        """Return the link of the calling thread. Raises `Cancelled` after `close`."""
        if self._closed:
            raise Cancelled("the client is closed")
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._open()
        return link

    def close(self) -> None:
        """Close the links of all threads. Pending requests end with `Cancelled`."""
        with self._opening:
            self._closed = True
            links, context, self._context = list(self._links), self._context, None
        for link in links:
            link.close()
        if context is not None:
            context.term()

    def reset_after_fork(self) -> None:
        """End the requests of the parent process in this one, and start without links."""
        for link in self._links:
            link.session.close()
        self._reset()

    def _open(self) -> BlockingLink:
        with self._opening:
            if self._closed:
                raise Cancelled("the client is closed")
            if self._context is None:
                self._context = zmq.Context()
            link = BlockingLink(self._new_session(), self._new_dealer(), self._context)
            link.open()
            self._links.add(link)
            return link


_instances: weakref.WeakSet[ThreadLinks] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for links in _instances:
        links.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
