"""Links: packets in and out over sockets, and the sockets and connections to look at.

A process binds one ROUTER for its peers, and a frontend another for clients (router_connections.py). It opens a DEALER
to each process that it uses (outgoing_links.py). Between processes of one machine, streams take the place of both
(streams.py). The cores behind each connection: peers.py. What they may send: incoming_packets.py. Which sockets can be
read: socket_readiness.py. A lost link is connected again (heartbeats.py).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from horologe_common.core.protocol import PeerConnected
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import Status
from horologe_common.transport.awaited_peers import AWAIT_S
from horologe_common.transport.clients.client_connection import ClientConnection
from horologe_common.transport.clients.client_server import BACKLOG, ClientLimits, ClientServer, listen
from horologe_common.transport.heartbeats import Heartbeats
from horologe_common.transport.incoming_packets import IncomingPackets
from horologe_common.transport.outgoing_links import LINKS_S, OutgoingLinks
from horologe_common.transport.peers import Peers, Route, stream_route
from horologe_common.transport.router_connections import RouterConnections
from horologe_common.transport.socket_readiness import POLLIN, SocketReadiness
from horologe_common.transport.sockets import LinkSettings, Sockets
from horologe_common.transport.streams import SCHEME, Stream, Streams
from horologe_common.wire import AnyMessage, Envelope, Rejected
from horologe_common.wire.frames import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival, Buffer

log = logger("links")
COPY_BELOW = 64 << 10
PACKETS_PER_TURN = 4096
"""What is not read waits unseen in the socket. With 256, an edge that was offered 30,000 requests/s answered 1,500/s in
time, with all of them read 20,000/s."""
NOBLOCK, SEND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain integers: to combine zmq's enumerations takes longer than the calls that use them."""


class Links:
    """All links of one process. Not thread-safe; the reactor owns it."""

    def __init__(
        self,
        name: str,
        host: str,
        settings: LinkSettings,
        clients: Sequence[str] = (),
        client_limits: ClientLimits | None = None,
    ) -> None:
        self.settings = settings
        self.incarnation = secrets.token_hex(4)
        self.host = host
        self.clients = clients
        self.dropped = 0
        """Messages in packets that could not be sent because the peer is lost or does not read, and odd packets."""
        self._heartbeats = heartbeats = Heartbeats(self._send_heartbeat, self._on_link_lost)
        self._sockets = Sockets(f"{name}#{self.incarnation}", settings)
        self.readiness = SocketReadiness(self._sockets.monitors, self._on_socket_failed)
        self.streams = Streams(
            settings.max_frame_bytes, self._on_stream_connected, self._on_stream_lost, self._on_stream_packets
        )
        self.outgoing = OutgoingLinks(self._sockets, self.streams, heartbeats, self.readiness)
        self.streams.is_wanted = self.outgoing.is_wanted
        self.peers = Peers(
            host,
            self._send_message,
            heartbeats.add,
            self._on_refused,
            self._follow_directory,
            self._await_peer,
            self._send_packet,
        )
        self.peers.max_frame_bytes = settings.max_frame_bytes
        self.peers.is_linked = lambda: self.outgoing.is_linked(self.peers.welcomed)
        self.route = self.peers.routes.__getitem__
        """Return the route to a core or a client; None if it is not connected, unless it is awaited."""
        self._connections = RouterConnections(self._sockets, self._send_heartbeat)
        self._packets = IncomingPackets(self._connections, self.peers, heartbeats, self._send_message)
        self.client_server = ClientServer(client_limits or ClientLimits(), self.peers)
        """Clients without keys."""
        self._arrived: list[Arrival] = []
        """Packets that have arrived over streams since the last `receive`."""
        self._internal: zmq.Socket[bytes] | None = None
        self._public: zmq.Socket[bytes] | None = None
        self.on_arrival: Callable[[], None] = lambda: None
        """Function to call when something has arrived over a stream, or a link was lost."""

    def address(self, role: str, number: str = "0") -> str:
        """Return the address of a core of this process."""
        return f"{role}/{number}#{self.incarnation}"

    def open(self, addresses: Sequence[str], client_core: str = "", follows_directory: bool = False) -> None:
        """Bind and connect. Messages of clients are for `client_core`. Raises `SettingsError`."""
        try:
            self._open(addresses, client_core, follows_directory)
        except zmq.ZMQError as error:
            raise SettingsError(f"links.bind, links.connect, frontend.clients: {error}") from error

    def _open(self, addresses: Sequence[str], client_core: str, follows_directory: bool) -> None:
        settings, peers = self.settings, self.peers
        self._sockets.check_encryption(self.clients)
        peers.addresses, peers.follows_directory = tuple(addresses), follows_directory
        self._packets.client_core = client_core
        if any(address.startswith(("frontend/", "selector/", "profiler/")) for address in addresses):
            peers.endpoint = settings.advertise or next(iter(settings.bind), "")
        self._sockets.open()
        streams = [endpoint for endpoint in settings.bind if endpoint.startswith(SCHEME)]
        if endpoints := [endpoint for endpoint in settings.bind if endpoint not in streams]:
            self._internal = self._sockets.bind_router("internal", endpoints)
        for endpoint in streams:
            self.streams.bind(endpoint)
        if self.clients and settings.keys:
            self._public = self._packets.public = self._bind_clients()
        elif self.clients:
            self.client_server.bind(self.clients)
        self.outgoing.open()

    async def keep_alive(self) -> None:
        """Send heartbeats and connect lost links again, until cancelled."""
        await self._heartbeats.run(self.settings.silence_ns)

    def connected_clients(self) -> list[Arrival]:
        """Return a PeerConnected of each client for the core that serves them."""
        clients = [address for address in self.peers.routes if address.startswith(("client/", "user/"))]
        return [(self._packets.client_core, client, PeerConnected(client), ()) for client in clients]

    def stop_listening(self) -> None:
        """Accept no more clients. Peers may still connect: requests in flight need them."""
        self.client_server.stop_listening()
        if self._public:
            self._sockets.stop_listening(self._public)

    def close(self) -> None:
        self.client_server.close()
        self.streams.close()
        self._sockets.close()

    def abandon(self) -> None:
        """Close everything at once, after an error before the process has started."""
        self.client_server.close()
        self.streams.close()
        self._sockets.abandon()

    def is_ready(self) -> bool:
        """Return whether there is a link to every process that the settings name."""
        return self.outgoing.is_ready(self.peers.welcomed)

    def read_monitors(self) -> None:
        """Handle new and lost connections. Call this when a monitor can be read."""
        for sock, monitor in list(self._sockets.monitors.items()):
            while int(monitor.getsockopt(zmq.EVENTS)) & POLLIN:
                event = recv_monitor_message(monitor, NOBLOCK)
                if not self._sockets.count_connection(sock, event):
                    self._on_monitor_event(sock, event)

    def receive(self, inbox: list[Arrival]) -> bool:
        """Append what has arrived, at most `PACKETS_PER_TURN` packets per socket. Return True if there may be more."""
        more = self.client_server.receive(inbox, self._packets.unpack)
        inbox.extend(self._arrived)
        self._arrived.clear()
        more |= sum(self._drain(sock, inbox) for sock in list(self.readiness.readable)) > 0
        self._connections.probe_suspects()
        if self.peers.events:
            self._packets.append_peer_events(inbox)
        return more

    def wakeup_ns(self) -> int | None:
        """Return when to call `receive` without a packet: while the loss of a peer is not certain, or clients pause."""
        return self._connections.wakeup_ns() or self.client_server.wakeup_ns

    def send(self, route: Route, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Send one packet. Never wait: drop and count it if the peer is lost or does not read."""
        if not self._send(route, envelopes, buffers):
            self.dropped += sum(len(envelope.messages) for envelope in envelopes)

    def _bind_clients(self) -> zmq.Socket[bytes]:
        """Return the socket of clients with keys. libzmq cannot share a port, but takes a socket that does."""
        shared = self.clients if self.client_server.limits.reuse_port else ()
        listeners = {endpoint: listen(endpoint, True) for endpoint in shared if endpoint.startswith("tcp://")}
        for listener in listeners.values():
            listener.listen(BACKLOG)
        return self._sockets.bind_router("clients", self.clients, listeners)

    def _drain(self, sock: zmq.Socket[bytes], inbox: list[Arrival]) -> bool:
        routed, unpack, can_read = self._is_router(sock), self._packets.unpack, self.readiness.can_read
        for _ in range(PACKETS_PER_TURN):
            if not can_read(sock):
                self.readiness.discard(sock)
                return False
            identity = sock.recv(NOBLOCK) if routed else None
            frames = [sock.recv(NOBLOCK, copy=False)]  # `more` of a frame is cheap, that of a socket takes 1 to 3 us
            while frames[-1].more:
                frames.append(sock.recv(NOBLOCK, copy=False))
            route = Route(sock, identity)
            if identity is not None and route not in self._connections:
                if not self._connections.add(sock, identity, frames[0], sock is self._public):
                    self.dropped += 1
                    continue
                if client := self._connections.clients.get(route):
                    self.peers.routes[client] = route
            unpack(route, [frame.buffer for frame in frames], inbox)
        return True

    def _send(self, route: Route, envelopes: list[Envelope], buffers: Sequence[Buffer]) -> bool:
        sock = route.socket
        if buffers and isinstance(sock, ClientConnection):
            envelopes, buffers = sock.fit_answers(envelopes, buffers)
        return self._send_packet(route, pack(envelopes, buffers))

    def _send_packet(self, route: Route, frames: Sequence[Buffer]) -> bool:
        """Send the frames of a packet. Return False if they could not be sent."""
        sock = route.socket
        if not isinstance(sock, zmq.Socket):
            return sock.send(frames)
        self.readiness.sent_on[sock] = True
        try:
            if route.identity is not None:
                sock.send(route.identity, SEND_MORE)
            for frame in frames[:-1]:
                sock.send(frame, SEND_MORE, copy=len(frame) < COPY_BELOW)
            sock.send(frames[-1], NOBLOCK, copy=len(frames[-1]) < COPY_BELOW)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._heartbeats.remove(route)
                self.peers.on_router_disconnected(route)
            elif error.errno != zmq.EAGAIN:
                self._fail_link(route, error)
            return False
        return True

    def _send_heartbeat(self, route: Route) -> bool:
        """Send a packet without messages. Return False if it could not be sent."""
        return self._send(route, [], ())

    def _send_message(self, route: Route, message: AnyMessage) -> None:
        self._send(route, [Envelope("", "", [message])], ())

    def _on_link_lost(self, route: Route, reason: str) -> None:
        """Disconnect the cores behind a link, and connect again if this process has made it."""
        sock = route.socket
        if isinstance(sock, ClientConnection):
            sock.abort()
        elif isinstance(sock, Stream):
            self._on_stream_lost(sock, reason)
            sock.abort()
        elif route.identity is not None:
            self.peers.on_router_disconnected(route, reason)
            if reason == "silent":  # its ZeroMQ thread may run although its loop does not
                self._send_message(route, Rejected(int(Status.LOST), "no heartbeat in links.silence_ns"))
        elif isinstance(sock, zmq.Socket):
            self.peers.on_dealer_disconnected(sock, reason)
            self.readiness.discard(sock)
            self.outgoing.replace(sock)
        self.on_arrival()

    def _follow_directory(self, endpoints: Sequence[str]) -> None:
        self.outgoing.follow_directory(endpoints)
        asyncio.get_running_loop().call_later(LINKS_S, self.peers.introduce_controllers)

    def _await_peer(self, address: str) -> None:
        asyncio.get_running_loop().call_later(AWAIT_S, self._give_up, address)

    def _give_up(self, address: str) -> None:
        """Drop what was kept for a peer that has not connected."""
        self.dropped += self.peers.awaited.give_up(address)

    def _on_refused(self, route: Route, reason: str) -> None:
        self._heartbeats.fail(route, reason)
        if reason == "refused":
            self.outgoing.leave_holders(route.socket)

    def _on_socket_failed(self, sock: zmq.Socket[bytes], error: zmq.ZMQError) -> None:
        """Replace a DEALER. A ROUTER has other peers: raise the error."""
        if self._is_router(sock):
            raise error
        self._fail_link(Route(sock, None), error)

    def _fail_link(self, route: Route, error: zmq.ZMQError) -> None:
        log.error("socket failed", error=str(error))
        self._heartbeats.fail(route, "failed")

    def _on_stream_connected(self, stream: Stream) -> None:
        self._heartbeats.add(stream_route(stream))
        if not stream.accepted:
            self.peers.on_dealer_connected(stream)

    def _on_stream_lost(self, stream: Stream, reason: str = "closed") -> None:
        route = stream_route(stream)
        self._heartbeats.remove(route)
        if stream.accepted:
            self.peers.on_router_disconnected(route, reason)
        else:
            self.peers.on_dealer_disconnected(stream, reason)
        self.on_arrival()

    def _on_stream_packets(self, stream: Stream, packets: list[list[memoryview]]) -> None:
        route = stream_route(stream)
        if not packets:
            self._heartbeats.record(route)
            return
        for frames in packets:
            self._packets.unpack(route, frames, self._arrived)
        self.on_arrival()

    def _is_router(self, sock: zmq.Socket[bytes]) -> bool:
        """Return whether the socket is a ROUTER, which has many peers."""
        return sock is self._internal or sock is self._public

    def _on_monitor_event(self, sock: zmq.Socket[bytes], event: Any) -> None:
        kind, routed = event["event"], self._is_router(sock)
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if not routed:
                self.peers.on_dealer_connected(sock)
        elif kind != zmq.EVENT_DISCONNECTED:
            self.peers.on_handshake_failed(zmq.Event(kind).name or "unknown")
        elif routed:
            self._connections.on_disconnected(sock, int(event["value"]))
        else:
            self._heartbeats.hasten(Route(sock, None))
            self.peers.on_dealer_disconnected(sock)
