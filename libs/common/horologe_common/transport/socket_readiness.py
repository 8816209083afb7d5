"""Readiness of ZeroMQ sockets: which of them may have packets, and the descriptors that show it.

The descriptor of a socket is edge-triggered (zmq_getsockopt(3), ZMQ_FD). It becomes readable when a packet arrives, and
not again while packets wait. A send can consume the edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

POLLIN = int(zmq.POLLIN)
"""A plain integer: to combine zmq's enumerations takes longer than the calls that use them."""


class SocketReadiness:
    """Sockets that may have packets. `on_failure` is called with a socket that cannot be asked, and the error.

    `monitors`: every socket with its monitor. From `start` on, the descriptors of both are watched.
    """

    def __init__(
        self,
        monitors: Mapping[zmq.Socket[bytes], zmq.Socket[bytes]],
        on_failure: Callable[[zmq.Socket[bytes], zmq.ZMQError], None],
    ) -> None:
        self._monitors = monitors
        self._on_failure = on_failure
        self._is_watching = False
        self._descriptors: dict[zmq.Socket[bytes], tuple[int, int]] = {}
        """Descriptors of each socket that is watched, and of its monitor."""
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

    def start(
        self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None], on_event: Callable[[], None]
    ) -> None:
        """Watch all sockets.

        Calls `on_readable` when a socket has become readable, after it was marked, and `on_event` when a monitor may
        have an event.
        """
        self._loop, self._on_readable, self._on_event = loop, on_readable, on_event
        self._is_watching = True
        for sock in list(self._monitors):
            self.watch(sock)

    def watch(self, sock: zmq.Socket[bytes]) -> None:
        """Watch a socket and its monitor. Both may have been readable before. Before `start`: do nothing."""
        if self._is_watching:
            monitor_descriptor = int(self._monitors[sock].getsockopt(zmq.FD))
            self._descriptors[sock] = int(sock.getsockopt(zmq.FD)), monitor_descriptor
            self._add_reader(sock)
            self._loop.add_reader(monitor_descriptor, self._on_event)
            self._on_event()

    def remove(self, sock: zmq.Socket[bytes]) -> None:
        """Stop watching a socket. Call it before the socket is closed."""
        for descriptor in self._descriptors.pop(sock, ()):
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
        for sock in self._descriptors:
            self._add_reader(sock)

    def _add_reader(self, sock: zmq.Socket[bytes]) -> None:
        self._loop.add_reader(self._descriptors[sock][0], self._mark_and_report, sock)
        self.readable[sock] = True

    def _mark_and_report(self, sock: zmq.Socket[bytes]) -> None:
        self.readable[sock] = True
        self._on_readable()
