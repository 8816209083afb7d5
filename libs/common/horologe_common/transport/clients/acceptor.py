"""Accepts the connections of a listening socket: a few per iteration of the loop, and refuses those beyond a limit."""

from __future__ import annotations

import asyncio
import errno
import socket
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from horologe_common.service.log import logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

ACCEPTS, REFUSALS = 8, 32
"""Maximum number of connections per iteration of the loop, and of those refused: about 1 ms. libuv would accept all
that wait."""
REST, ITERATIONS = 2, 3
"""While other clients send requests, as many connections are followed by a rest: this many times as long as the next
iterations take, in which they are opened and their first bytes are read."""
PAUSE_S = 0.1
"""Pause without descriptors. The listening socket stays readable."""
HANDSHAKE_S = 10.0
"""Longest time of a TLS handshake. The connection counts for its client from the beginning."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LAST_ACCEPTS = 256
"""Calls of `_accept_some` at the end: `ACCEPTS` times as many are more connections than a backlog holds."""
P = TypeVar("P", bound=asyncio.Protocol)
log = logger("acceptor")


class Acceptor(Generic[P]):
    """Accepts connections. `admit` gets the address of a peer and returns the protocol of its connection, or None.

    `refuse` then gets its socket, which is closed afterwards. `abandon` gets a protocol whose peer has left already, or
    did not complete the TLS handshake. `find_context` returns the TLS context of a new connection. None: no TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        admit: Callable[[str], P | None],
        refuse: Callable[[socket.socket], None],
        abandon: Callable[[P], None],
        is_contended: Callable[[], bool] = lambda: False,
        find_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._listener = listener
        self._admit = admit
        self._refuse = refuse
        self._abandon = abandon
        self._is_contended = is_contended
        self._find_context = find_context
        self._accepted = 0
        """Connections since the last rest."""
        self._starting: set[asyncio.Task[None]] = set()
        self._resume: asyncio.Handle | None = None

    def start(self) -> None:
        """Accept connections from now on. Call it in the loop."""
        self._loop, self._resume = asyncio.get_running_loop(), None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def stop(self) -> None:
        """Accept the connections that wait already, then close the listening socket."""
        if self._listener.fileno() < 0:
            return
        for _ in range(LAST_ACCEPTS):  # the kernel resets those that are not accepted
            if not self._accept_some():
                break
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        """Accept the next connections, and rest after `ACCEPTS` while other clients send requests."""
        began_s = monotonic()
        self._accepted += self._accept_some()
        if self._accepted >= ACCEPTS and self._resume is None:
            self._accepted = 0
            if self._is_contended():
                self._loop.remove_reader(self._listener.fileno())
                self._rest(began_s, ITERATIONS)

    def _rest(self, began_s: float, iterations: int) -> None:
        """Let some iterations of the loop pass, then accept nothing for a time that grows with their duration."""
        if iterations:
            self._resume = self._loop.call_soon(self._rest, began_s, iterations - 1)
        else:
            self._resume = self._loop.call_later(REST * (monotonic() - began_s), self.start)

    def _accept_some(self) -> int:
        """Accept connections that wait. Return how many."""
        accepted = refused = 0
        while accepted < ACCEPTS and refused < REFUSALS:
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self._pause(error)
                break
            sock.setblocking(False)
            protocol = self._admit(address[0] if isinstance(address, tuple) else "")
            if protocol is None:
                refused += 1
                with sock:
                    self._refuse(sock)
            else:
                accepted += 1
                task = self._loop.create_task(self._open(sock, protocol))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
        return accepted

    async def _open(self, sock: socket.socket, protocol: P) -> None:
        """Create the transport. If that fails, the peer has disconnected."""
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._find_context is None:
                await self._loop.connect_accepted_socket(lambda: protocol, sock)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: protocol, sock, ssl=self._find_context(), ssl_handshake_timeout=HANDSHAKE_S
                )
        except OSError:
            self._abandon(protocol)
            sock.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment."""
        log.warning("no connection accepted", reason=error.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._resume = self._loop.call_later(PAUSE_S, self.start)
