"""Accepts HTTP connections, and refuses those beyond the limits before they take memory or stay open."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_frontend.http.connection import encode_head
from horologe_frontend.http.http_responses import failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_frontend.http.accounts import Account, ClientAccounts

ACCEPTS = 8
"""Maximum number of connections per iteration of the loop: about 2 ms."""
PAUSE_S = 0.1
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logger("http")


class Acceptor:
    """Accepts the connections of a listening socket."""

    def __init__(
        self, listener: socket.socket, clients: ClientAccounts, connect: Callable[[Account], asyncio.Protocol]
    ) -> None:
        self._listener = listener
        self._clients = clients
        self._connect = connect
        self._starting: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections from now on. Call it in the loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more connections, and close the listening socket."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self._pause(error)
                return
            sock.setblocking(False)
            account = self._clients.add_connection(address[0])
            if account is None:
                _refuse(sock)
            else:
                task = self._loop.create_task(self._open(sock, account))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)

    async def _open(self, sock: socket.socket, account: Account) -> None:
        """Create the transport. If that fails, the client is gone."""
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(lambda: self._connect(account), sock)
        except OSError:
            self._clients.remove_connection(account)
            sock.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: without descriptors, the listening socket stays readable."""
        log.warning("no connection accepted", reason=error.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._resume = self._loop.call_later(PAUSE_S, self.start)


def _refuse(sock: socket.socket) -> None:
    """Send the refusal if the socket takes it at once, and close."""
    response = failure(503, "too many connections", ((b"retry-after", b"1"),))
    with sock, suppress(OSError):
        sock.send(encode_head(response, b"close") + response.body)
