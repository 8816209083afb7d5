"""The socket of a client: a DEALER with its monitor and CURVE keys, used by one thread at a time."""

from __future__ import annotations

import contextlib
import secrets
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq
import zmq.auth
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from horologe_common.clock import ms, s
from horologe_common.status import HorologeError, InvalidInput, ProtocolMismatch, Unauthenticated
from horologe_common.transport.keys import load_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe.core.outbox import Packet
    from horologe.core.session import Session

HIGH_WATER = 10_000
MAX_FRAME_BYTES = 1 << 30
"""A longer frame closes the connection: `links.max_frame_bytes` keeps a server from sending one."""
HEARTBEAT_MS = 1_000
"""A frontend that is unreachable is detected after three heartbeats, one that dies at once. A frame that takes longer
than that to transfer looks the same."""
COPY_BELOW = 64 << 10
HANDSHAKES = 3
"""After this many failed handshakes without a reason in a row, the server does not accept the key. Without keys, and
with keys that the server has accepted before, a proxy has closed the connection because the server is not running: a
server that wants keys gives a reason."""
RETRY_NS, NEXT_NS = s(1), ms(500)
"""Interval of attempts to connect again, and to connect to the next of several endpoints."""
UNKNOWN_KEYS = (zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class Keys(NamedTuple):
    """CURVE keys as Z85 text (40 characters each): the server's public key, and the client's pair."""

    server: bytes
    public: bytes
    secret: bytes


def curve_keys(
    server_key: str | bytes | None, client_key: str | bytes | None, folder: str | Path | None
) -> Keys | None:
    """Return the keys; None: no encryption. `folder` was written by `horologe keys`; `client_key` is a secret key.

    The client uses the key for management if the folder contains it, else `clients/client.key_secret`.

    Without `client_key` a new pair is made, for a server that accepts any key. Raises `InvalidInput` or
    `SettingsError` for invalid keys.
    """
    server, secret = _key("server_key", server_key), _key("client_key", client_key)
    if folder is not None:  # a client's machine needs only these two files of it
        server = server or _server_key(Path(folder) / "service" / "service.key")
        manager = Path(folder) / "management" / "manager.key_secret"
        own = manager if manager.exists() else Path(folder) / "clients" / "client.key_secret"
        secret = secret or load_keys(own)[1]
    if server is None:
        return None
    public, secret = (zmq.curve_public(secret), secret) if secret else zmq.curve_keypair()
    return Keys(server, public, secret)


def _key(name: str, key: str | bytes | None) -> bytes | None:
    if key is None:
        return None
    raw = key.encode() if isinstance(key, str) else key
    try:
        valid = len(raw) == 40 and len(z85.decode(raw)) == 32
    except (KeyError, ValueError, struct.error):
        valid = False
    if not valid:  # not shown, because it may be a secret key
        raise InvalidInput(f"{name}: got {len(raw)} characters, wanted the 40 of a CURVE key in Z85")
    return raw


def _server_key(file: Path) -> bytes:
    try:
        return zmq.auth.load_certificate(file)[0]
    except (OSError, ValueError) as error:
        raise InvalidInput(f"keys: {file}: {error}") from error


class Dealer:
    """Connects to one of `endpoints`, and passes the events of the connection to a session.

    libzmq reconnects by itself, but not after a protocol error. While `is_lost`, call `reconnect` every `retry_ns`. It
    connects to the next endpoint, if there are several.
    """

    def __init__(self, endpoints: Sequence[str], keys: Keys | None, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.endpoints = tuple(endpoints)
        self._max_frame_bytes = max_frame_bytes
        self.keys = keys
        self._silent_failures = 0
        self._was_accepted = False
        """Whether a server has accepted the keys. The frontends of an installation have the same keys."""
        self.is_lost = len(endpoints) > 1
        self.retry_ns = NEXT_NS if len(endpoints) > 1 else RETRY_NS
        self._retried_ns = 0
        self._connection = 0
        """Number of the connection in the session."""

    @property
    def endpoint(self) -> str:
        """Return the endpoint in use."""
        return self.endpoints[0]

    def open(self, context: zmq.Context[Any]) -> None:
        """Start to connect. Raises `zmq.ZMQError` for an invalid endpoint or key."""
        self._context, self._retried_ns = context, time.monotonic_ns()
        sock = self.socket = context.socket(zmq.DEALER)
        self.monitor = sock.get_monitor_socket(EVENTS)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, self._max_frame_bytes),
            (zmq.RECONNECT_IVL, 20),
            (zmq.RECONNECT_IVL_MAX, 200),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS),
        ):
            sock.setsockopt(option, value)
        try:
            if self.keys:
                sock.curve_serverkey, sock.curve_publickey, sock.curve_secretkey = self.keys
            sock.connect(self.endpoint)
        except BaseException:
            self.close()
            raise

    def leave(self, packet: Packet) -> Dealer:
        """Send a last packet. Return an open dealer that connects to the next endpoint."""
        successor = Dealer(self._next_endpoints(), self.keys, self._max_frame_bytes)
        successor._was_accepted = self._was_accepted
        successor.open(self._context)
        self.send(packet)
        return successor

    def _next_endpoints(self) -> tuple[str, ...]:
        return (*self.endpoints[1:], self.endpoints[0])

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)

    def send(self, packet: Packet) -> bool:
        """Send a packet. Return False, having sent nothing, if there is no connection or its queue is full."""
        send, last = self.socket.send, len(packet) - 1
        try:
            for at, frame in enumerate(packet):
                flags = zmq.NOBLOCK | zmq.SNDMORE if at < last else zmq.NOBLOCK
                send(frame, flags, copy=len(frame) < COPY_BELOW)
        except zmq.Again:  # raised only by the first frame: packets are atomic
            return False
        return True

    def receive(self, flags: int = zmq.NOBLOCK) -> list[memoryview]:
        """Return the frames of the next packet without copying. Raises `zmq.Again` if there is none."""
        receive = self.socket.recv
        frame = receive(flags, copy=False)
        frames = [frame.buffer]
        while frame.more:
            frame = receive(flags, copy=False)
            frames.append(frame.buffer)
        return frames

    def event_mask(self) -> int:
        return int(self.socket.getsockopt(zmq.EVENTS))

    def process_events(self, session: Session, now_ns: int) -> None:
        """Pass new and lost connections to the session. Call it after reading what has arrived."""
        while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            match event["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._silent_failures, self._was_accepted, self.is_lost = 0, True, False
                    self._connection = session.on_connected(now_ns)
                case zmq.EVENT_DISCONNECTED:
                    self._lose(now_ns)
                    session.on_disconnected(now_ns, self._connection)
                    if len(self.endpoints) > 1:
                        self._connect_next()
                case failure:
                    if error := self._failed(failure, event["value"], now_ns):
                        session.refuse(error)

    def has_ended(self, session: Session, now_ns: int) -> bool:
        """Return whether the connection that the session has left is lost. Call it after reading what has arrived."""
        while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            if recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"] == zmq.EVENT_DISCONNECTED:
                session.on_disconnected(now_ns, self._connection)
                return True
        return False

    def _failed(self, failure: int, code: int, now_ns: int) -> HorologeError | None:
        if failure == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._silent_failures += 1
            if self.keys is None or self._was_accepted or self._silent_failures < HANDSHAKES:
                return None
        else:
            self._lose(now_ns)
        if failure == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and code not in UNKNOWN_KEYS:
            return ProtocolMismatch(f"{self.endpoint}: got something else, wanted a Horologe frontend")
        return Unauthenticated(f"{self.endpoint}: the server does not accept this client's keys")

    def _lose(self, now_ns: int) -> None:
        self.is_lost, self._retried_ns = True, now_ns

    def reconnect(self, now_ns: int) -> None:
        """Reconnect at most once per `retry_ns` if libzmq has not: the server may accept the key later."""
        if self.is_lost and now_ns - self._retried_ns >= self.retry_ns:
            self._retried_ns = now_ns
            self._connect_next()

    def _connect_next(self) -> None:
        with contextlib.suppress(zmq.ZMQError):  # libzmq may have dropped the endpoint
            self.socket.disconnect(self.endpoint)
        self.endpoints = self._next_endpoints()
        self.socket.connect(self.endpoint)


def parse_endpoints(endpoint: str) -> list[str]:
    """Return the endpoints of a list with commas, from a random one on: clients spread over the frontends."""
    endpoints = [text.strip() for text in endpoint.split(",")]
    first = secrets.randbelow(len(endpoints))
    return endpoints[first:] + endpoints[:first]
