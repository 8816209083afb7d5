"""The links that one process makes: to the endpoints in its settings, and to those in the Directory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import zmq

from horologe_common.service.log import logger
from horologe_common.transport.peers import Route
from horologe_common.transport.streams import SCHEME, Stream, Streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.transport.heartbeats import Heartbeats
    from horologe_common.transport.peers import Connection
    from horologe_common.transport.socket_readiness import SocketReadiness
    from horologe_common.transport.sockets import Sockets

log = logger("links")
RETRY_S = 1.0
LINKS_S = 1.0
"""Longest time that a new worker waits for its links to holders, which take 8 to 60 ms on a busy machine."""


class OutgoingLinks:
    """A DEALER or a stream per endpoint.

    libzmq connects again after most failures, but not after a protocol error, and it treats a frame for which it has no
    memory as one (session_base.cpp, `engine_error`). A DEALER whose link is lost is therefore replaced by a new one.
    """

    def __init__(self, sockets: Sockets, streams: Streams, heartbeats: Heartbeats, readiness: SocketReadiness) -> None:
        self._sockets = sockets
        self._streams = streams
        self._heartbeats = heartbeats
        self._readiness = readiness
        self._configured, self._bound = sockets.settings.connect, sockets.settings.bind
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._holders: dict[str, None] | None = None
        """Endpoints from the last Directory. None before the first."""

    def open(self) -> None:
        """Connect to the endpoints in the settings. Raises `zmq.ZMQError` for an invalid one."""
        for endpoint in self._configured:
            self._connect(endpoint)

    def is_wanted(self, endpoint: str) -> bool:
        """Return whether a lost link to this endpoint is connected again."""
        return endpoint in self._configured or endpoint in (self._holders or ())

    def is_ready(self, welcomed: dict[Any, Any]) -> bool:
        """Return whether there is a link to every process in the settings. `welcomed`: links with a Welcome."""
        return self._has_links(self._configured, welcomed)

    def is_linked(self, welcomed: dict[Any, Any]) -> bool:
        """Return whether there is a link to every holder in the Directory."""
        return self._holders is not None and self._has_links(self._holders, welcomed)

    def _has_links(self, endpoints: Iterable[str], welcomed: dict[Any, Any]) -> bool:
        linked = [endpoint for endpoint, link in self._links() if link in welcomed]
        return all(endpoint in linked or endpoint in self._bound for endpoint in endpoints)

    def follow_directory(self, endpoints: Sequence[str]) -> None:
        """Connect to the holders of inputs. Those that are not listed any more are not connected to again."""
        self._holders = dict.fromkeys(endpoints)
        for endpoint in endpoints:
            self._try_connect(endpoint)

    def leave_holders(self, refused: Connection) -> None:
        """Give up the links of the Directory if this link to an endpoint in the settings was refused.

        Otherwise one of two processes of the same name could be linked to the controller, and the other to a frontend.
        """
        links = self._links()
        if not any(link is refused and endpoint in self._configured for endpoint, link in links):
            return
        self._holders = {}
        for endpoint, link in links:
            if not self.is_wanted(endpoint):
                self._heartbeats.fail(Route(link, None), "refused")

    def replace(self, sock: zmq.Socket[bytes]) -> None:
        """Close a DEALER, and connect with a new one if its endpoint is still wanted."""
        for endpoint in [endpoint for endpoint, other in self._dealers.items() if other is sock]:
            del self._dealers[endpoint]
            self._readiness.remove(sock)
            self._sockets.close_socket(sock)
            self._try_connect(endpoint)

    def _connect(self, endpoint: str) -> None:
        """Connect to a process, unless there is a connection or it is this process."""
        if endpoint in self._bound or endpoint in self._dealers:
            return
        if endpoint.startswith(SCHEME):
            self._streams.connect(endpoint)
            return
        sock = self._dealers[endpoint] = self._sockets.connect_dealer(endpoint)
        self._heartbeats.add(Route(sock, None))
        self._readiness.watch(sock)

    def _try_connect(self, endpoint: str) -> None:
        """Connect if the endpoint is wanted. If no socket can be created, try again after `RETRY_S`."""
        try:
            if self.is_wanted(endpoint):
                self._connect(endpoint)
        except zmq.ZMQError as error:
            log.error("no socket", endpoint=endpoint, error=str(error))
            asyncio.get_running_loop().call_later(RETRY_S, self._try_connect, endpoint)

    def _links(self) -> list[tuple[str, zmq.Socket[bytes] | Stream]]:
        """Return (endpoint, link) of every connection."""
        streams = [(stream.endpoint, stream) for stream in list(self._streams.open) if not stream.accepted]
        return [*list(self._dealers.items()), *streams]
