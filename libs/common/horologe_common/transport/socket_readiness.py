"""Readiness of ZeroMQ sockets: which of them may have packets, and the descriptors that show it.

The descriptor of a socket is edge-triggered (zmq_getsockopt(3), ZMQ_FD). It becomes readable when a packet arrives, and
not again while packets wait. A send can consume the edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

POLLIN = int(zmq.POLLIN)
"""A plain integer: to combine zmq's enumerations takes longer than the calls that use them."""


class SocketReadiness:
    """Sockets that may have packets. `on_failure` is called with a socket that cannot be asked, and the error."""

    def __init__(self, on_failure: Callable[[zmq.Socket[bytes], zmq.ZMQError], None]) -> None:
        self._on_failure = on_failure
        self.readable: dict[zmq.Socket[bytes], bool] = {}
        """Sockets to read. The others are not looked at, because each look takes 1 to 3 us."""
        self.sent_on: dict[zmq.Socket[bytes], bool] = {}
        """Sockets that have sent since they were last looked at."""

    def has_readable(self) -> bool:
        """Return whether a socket can be read. Looks at the sockets that have sent."""
        for sock in self.sent_on:
            if self.can_read(sock):
                self.readable[sock] = True
        self.sent_on.clear()
        return bool(self.readable)

    def can_read(self, sock: zmq.Socket[bytes]) -> bool:
        """Return whether a packet has arrived."""
        try:
            return bool(int(sock.getsockopt(zmq.EVENTS)) & POLLIN)
        except zmq.ZMQError as error:
            self._on_failure(sock, error)
            return False

    def discard(self, sock: zmq.Socket[bytes]) -> None:
        """Remove the marks of a socket that is empty or closed."""
        self.readable.pop(sock, None)
        self.sent_on.pop(sock, None)


class SocketWatcher:
    """Watches the descriptors of sockets and of their monitors in an asyncio loop.

    Calls `on_readable` when a socket has become readable, after it was marked, and `on_event` when a monitor may have
    an event.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        readiness: SocketReadiness,
        on_readable: Callable[[], None],
        on_event: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._readiness = readiness
        self._on_readable = on_readable
        self._on_event = on_event
        self._descriptors: dict[zmq.Socket[bytes], tuple[int, int]] = {}
        """Descriptors of each socket and of its monitor."""

    def add(self, sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        """Watch a socket and its monitor. Both may have been readable before."""
        pair = self._descriptors[sock] = int(sock.getsockopt(zmq.FD)), int(monitor.getsockopt(zmq.FD))
        self._watch(sock, pair[0])
        self._loop.add_reader(pair[1], self._on_event)
        self._on_event()

    def remove(self, sock: zmq.Socket[bytes]) -> None:
        """Stop watching a socket. Call it before the socket is closed."""
        for descriptor in self._descriptors.pop(sock):
            self._loop.remove_reader(descriptor)

    def close(self) -> None:
        """Stop watching all sockets."""
        for sock in list(self._descriptors):
            self.remove(sock)

    def pause(self) -> None:
        """Report no socket as readable until `resume`. A descriptor stays readable until its socket is read."""
        for descriptor, _ in self._descriptors.values():
            self._loop.remove_reader(descriptor)

    def resume(self) -> None:
        """Watch all sockets again, and mark them as readable."""
        for sock, (descriptor, _) in self._descriptors.items():
            self._watch(sock, descriptor)

    def _watch(self, sock: zmq.Socket[bytes], descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._mark_and_report, sock)
        self._readiness.readable[sock] = True

    def _mark_and_report(self, sock: zmq.Socket[bytes]) -> None:
        self._readiness.readable[sock] = True
        self._on_readable()
