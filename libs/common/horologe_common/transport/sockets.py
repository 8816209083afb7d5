"""The sockets of one process: bound or connected, encrypted where there are keys, each with its monitor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from horologe_common.clock import s
from horologe_common.service.settings import SettingsError
from horologe_common.transport.keys import Authenticator, is_loopback, service_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

HIGH_WATER = 10_000
HEARTBEAT_MS = 1_000
"""ZMTP heartbeats find peers that are stopped or cut off; a peer that dies is noticed at once by its socket."""


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this process reaches the others."""

    bind: tuple[str, ...] = ()
    """Endpoints for peers to connect to."""
    connect: tuple[str, ...] = ()
    """Endpoints of the processes this one needs."""
    advertise: str = ""
    """Where workers reach this process if it holds tensors (frontend, selector); default: the first of `bind`."""
    keys: str = ""
    """Folder made by `horologe keys`; empty: no encryption."""
    allow_open: bool = False
    """Permit TCP beyond loopback without keys."""
    drain_ns: int = s(10)
    """At a stop: how long to finish what is in flight."""
    max_frame_bytes: int = 256 << 20
    """A longer frame closes the connection it came on."""


class Sockets:
    """Makes them and closes them. `process` is the identity under which bound sockets of others know us."""

    def __init__(self, process: str, settings: LinkSettings) -> None:
        self.process = process
        self.settings = settings
        self.monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        """Every socket with what tells of its connections made and lost."""

    def open(self) -> None:
        """To be called first."""
        self._context = zmq.Context()
        self._authenticator = Authenticator(self._context, Path(self.settings.keys)) if self.settings.keys else None

    def close(self) -> None:
        for sock in [*self.monitors.values(), *self.monitors]:
            sock.close(linger=200)
        if self._authenticator:
            self._authenticator.stop()
        self._context.term()

    def refuse_open(self, endpoints: Sequence[str]) -> None:
        """Raise `SettingsError` where traffic would leave the machine unencrypted without having been asked to."""
        for endpoint in endpoints:
            if not (is_loopback(endpoint) or self.settings.keys or self.settings.allow_open):
                raise SettingsError(
                    f"links: {endpoint} is not loopback and no keys are set; run `horologe keys DIR` and set "
                    "links.keys, or set links.allow_open = true to run without authentication"
                )

    def bound(self, domain: str, endpoints: Sequence[str]) -> zmq.Socket[bytes]:
        """A ROUTER. `domain`: whose keys it lets in, those of `internal` peers or of `clients`."""
        sock = self._socket(zmq.ROUTER)
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if domain == "internal":
            sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self._authenticator:
            sock.curve_publickey, sock.curve_secretkey = service_keys(Path(self.settings.keys))
            sock.curve_server = True
            sock.zap_domain = domain.encode()
        for endpoint in endpoints:
            sock.bind(endpoint)
        return sock

    def connected(self, endpoint: str) -> zmq.Socket[bytes]:
        """A DEALER."""
        sock = self._socket(zmq.DEALER)
        sock.setsockopt(zmq.IDENTITY, self.process.encode())
        sock.setsockopt(zmq.IMMEDIATE, 1)
        sock.setsockopt(zmq.RECONNECT_IVL, 20)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if self._authenticator:
            public, sock.curve_secretkey = service_keys(Path(self.settings.keys))
            sock.curve_publickey = sock.curve_serverkey = public  # one pair for all services
        sock.connect(endpoint)
        return sock

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.setsockopt(zmq.SNDHWM, HIGH_WATER)
        sock.setsockopt(zmq.RCVHWM, HIGH_WATER)
        sock.setsockopt(zmq.LINGER, 200)
        sock.setsockopt(zmq.MAXMSGSIZE, self.settings.max_frame_bytes)
        sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        self.monitors[sock] = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        return sock
