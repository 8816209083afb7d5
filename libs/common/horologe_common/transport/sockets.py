"""The ZeroMQ sockets of one process: bound or connected, encrypted if there are keys, each with a monitor."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import zmq
from msgspec import Meta

from horologe_common.clock import ms, s
from horologe_common.service.process_limits import at_most
from horologe_common.service.settings import SettingsError
from horologe_common.transport import accept_limit
from horologe_common.transport.accept_limit import AcceptLimit
from horologe_common.transport.keys import KeyHolders, is_local, is_private, load_keys, service_keys, service_public_key
from horologe_common.wire import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMES = ("tcp://", "ipc://", "unix://")
WANTED_ENDPOINT = "tcp://HOST:PORT, ipc://PATH or unix://PATH"
HIGH_WATER = 10_000
CURVE_BYTES = 64
"""libzmq counts the encrypted frame, which has 33 bytes more than its content."""
NO_LISTENERS: Mapping[str, socket.socket] = {}
HEARTBEAT_MS = 1_000
"""ZMTP heartbeats detect clients that are stopped or unreachable. The socket itself detects a peer that dies. Links
between services have heartbeats of their own (heartbeats.py)."""
EVENTS = (
    accept_limit.EVENTS
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connections between processes."""

    bind: tuple[str, ...] = ()
    """Endpoints to which peers connect: tcp://HOST:PORT, ipc://PATH, or unix://PATH without ZeroMQ."""
    connect: tuple[str, ...] = ()
    """Endpoints of the processes that this one uses."""
    advertise: str = ""
    """Endpoint for workers, if this process holds inputs (frontend, profiler). Default: the first of `bind`."""
    keys: str = ""
    """Folder written by `horologe keys`. Empty: no encryption."""
    allow_open: bool = False
    """Allow TCP between services, and TCP for clients on other than loopback addresses, without keys. A program that
    can connect to an open endpoint between services can pose as a worker and give wrong answers."""
    drain_ns: Annotated[int, Meta(ge=0)] = s(10)
    """Maximum time from SIGTERM to the end of the process. Requests that are then in flight are lost."""
    notice_ns: Annotated[int, Meta(ge=0)] = 0
    """Time from SIGTERM, within `drain_ns`, in which the process reports not ready, but accepts connections and works
    as before. Set it to the time that a load balancer needs to detect this."""
    silence_ns: Annotated[int, Meta(ge=ms(10))] = s(1)
    """The link to a peer that sends nothing for this time is lost, and connected again. Heartbeats are sent four
    times as often. Over ZeroMQ, raise it if the largest frame takes longer to transfer."""
    max_frame_bytes: Annotated[int, Meta(ge=16 << 20, le=1 << 40)] = MAX_FRAME_BYTES
    """Longest frame that a process accepts, and maximum size of all tensors of a request or of its outputs. Peers
    exchange it when they connect: larger outputs are answered TOO_LARGE. A longer frame closes its connection."""
    max_connections: int = 1000
    """Maximum number of connections of clients without keys, further ones are closed; and of ZeroMQ connections from
    services and from clients with keys, further ones must wait. If the process may open fewer than eight times as many
    files, the maximum of the latter is lower."""


class Sockets:
    """Creates and closes sockets. Their ZeroMQ identity, by which bound sockets of peers route, is `process` and a
    secret: a peer that knew the identity of another one could take over its connection.
    """

    def __init__(self, process: str, settings: LinkSettings) -> None:
        self.process = process
        self._secret = secrets.token_hex(8)
        self.settings = settings
        self.monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        """Every socket, with the monitor that reports its new and lost connections."""
        self._opened: zmq.Context[zmq.Socket[bytes]] | None = None
        self.key_holders: KeyHolders | None = None
        """Set if a bound socket is encrypted."""
        self._ipc_paths: dict[zmq.Socket[bytes], list[str]] = {}
        """Bound socket -> the files of its ipc endpoints."""
        self._accept_limits: dict[zmq.Socket[bytes], AcceptLimit] = {}

    def open(self) -> None:
        """Create the context. Call it before any other method."""
        self._context = self._opened = zmq.Context()

    def close(self) -> None:
        """Close all sockets and the context."""
        for sock in list(self.monitors):
            self.close_socket(sock, linger_ms=200)
        if self.key_holders:
            self.key_holders.stop()
        self._context.term()

    def abandon(self) -> None:
        """Close all sockets at once, after an error before the process has started."""
        if self.key_holders:
            self.key_holders.stop()
        if self._opened is not None:
            self._opened.destroy(linger=0)

    def close_socket(self, sock: zmq.Socket[bytes], linger_ms: int = 0) -> None:
        """Close a socket and its monitor. Messages that are not sent within `linger_ms` are lost."""
        monitor = self.monitors.pop(sock)
        if limit := self._accept_limits.pop(sock, None):
            limit.close()
        sock.disable_monitor()
        monitor.close(linger=0)
        sock.close(linger=linger_ms)

    def check_encryption(self, clients: Sequence[str]) -> None:
        """Raise `SettingsError` for an endpoint that needs keys without them, unless `allow_open` is set.

        Between services, every TCP endpoint needs keys: any program that connects to an open one can answer requests.
        For `clients`, endpoints beyond this machine need keys.
        """
        settings = self.settings
        for field in ("bind", "connect", "advertise"):
            value = getattr(settings, field)
            for endpoint in (value,) * bool(value) if isinstance(value, str) else value:
                if not endpoint.startswith(SCHEMES):
                    raise SettingsError(f"setting links.{field}: got {endpoint!r}, wanted {WANTED_ENDPOINT}")
        for endpoint in clients:
            if not endpoint.startswith(("tcp://", "ipc://")):
                raise SettingsError(f"setting frontend.clients: got {endpoint!r}, wanted tcp://HOST:PORT or ipc://PATH")
        if settings.keys or settings.allow_open:
            return
        exposed = [endpoint for endpoint in (*settings.bind, *settings.connect) if not is_private(endpoint)]
        exposed += [endpoint for endpoint in clients if not is_local(endpoint)]
        if exposed:
            raise SettingsError(
                f"links: {exposed[0]} needs keys, because others can connect to it; run `horologe keys DIR` and set "
                "links.keys, or use unix://PATH on one machine, or set links.allow_open = true to run without keys"
            )

    def bind_router(
        self, domain: str, endpoints: Sequence[str], listeners: Mapping[str, socket.socket] = NO_LISTENERS
    ) -> zmq.Socket[bytes]:
        """Return a bound ROUTER. `domain` selects the accepted keys: those of `internal` peers or of `clients`.

        `listeners`: the sockets of endpoints that are bound already.
        """
        sock = self._socket(zmq.ROUTER)
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if domain == "internal":
            sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self.settings.keys:
            folder = Path(self.settings.keys)
            self.key_holders = self.key_holders or KeyHolders(self._context, folder)
            sock.curve_publickey, sock.curve_secretkey = service_keys(folder)
            sock.curve_server = True
            sock.zap_domain = domain.encode()
        self._accept_limits[sock] = AcceptLimit(at_most(self.settings.max_connections, 1))
        for endpoint in endpoints:
            sock.setsockopt(zmq.USE_FD, listeners[endpoint].detach() if endpoint in listeners else -1)
            sock.bind(endpoint)
            if endpoint.startswith("ipc://"):
                self._ipc_paths.setdefault(sock, []).append(endpoint.removeprefix("ipc://"))
            if domain == "internal" and endpoint.startswith("ipc://") and is_private(endpoint):
                os.chmod(endpoint.removeprefix("ipc://"), 0o600)
        return sock

    def stop_listening(self, sock: zmq.Socket[bytes]) -> None:
        """Accept no more connections on a bound socket. Those that are open are not affected."""
        self._accept_limits[sock].stop_accepting()
        for path in self._ipc_paths.pop(sock, ()):
            Path(path).unlink(missing_ok=True)

    def count_connection(self, sock: zmq.Socket[bytes], event: Any) -> bool:
        """Count the connections of a bound socket. Return True if this is all that the event of its monitor is for."""
        if limit := self._accept_limits.get(sock):
            limit.on_event(event)
        return bool(event["event"] & accept_limit.EVENTS)

    def connect_dealer(self, endpoint: str) -> zmq.Socket[bytes]:
        """Return a connected DEALER. Raises `zmq.ZMQError` if that is not possible."""
        sock = self._socket(zmq.DEALER)
        try:
            self._connect(sock, endpoint)
        except BaseException:
            self.close_socket(sock)
            raise
        return sock

    def _connect(self, sock: zmq.Socket[bytes], endpoint: str) -> None:
        sock.setsockopt(zmq.IDENTITY, f"{self.process}#{self._secret}".encode())
        sock.setsockopt(zmq.IMMEDIATE, 1)
        sock.setsockopt(zmq.RECONNECT_IVL, 20)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        if self.settings.keys:
            folder, role = Path(self.settings.keys), self.process.partition("/")[0]
            sock.curve_publickey, sock.curve_secretkey = load_keys(folder / "peers" / f"{role}.key_secret")
            sock.curve_serverkey = service_public_key(folder)
        sock.connect(endpoint)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.setsockopt(zmq.SNDHWM, HIGH_WATER)
        sock.setsockopt(zmq.RCVHWM, HIGH_WATER)
        sock.setsockopt(zmq.LINGER, 200)
        sock.setsockopt(zmq.MAXMSGSIZE, self.settings.max_frame_bytes + CURVE_BYTES)
        sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        try:
            self.monitors[sock] = sock.get_monitor_socket(EVENTS)
        except BaseException:
            sock.close(linger=0)
            raise
        return sock
