"""Every connection: the handshake and the header of a tensor."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

MAX_FRAME_BYTES = 256 << 20
"""Default of `links.max_frame_bytes`, and the limit of peers that do not report theirs."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base class of all messages: encoded as `[tag, field, ...]`."""


class Tensor(Message, frozen=True):
    """Header of a tensor. Its `nbytes` bytes (little-endian, row-major) follow in the body of the packet."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


class Hello(Message, frozen=True, tag=10):
    """First message on a connection from the side that connects, also after a reconnect."""

    protocol: int
    addresses: tuple[str, ...]
    """Addresses of the sender's cores."""
    host: str = ""
    """Boot id of the sender's machine: processes with equal ids share a monotonic clock."""
    endpoint: str = ""
    """Endpoint at which workers can connect to this process; empty if it holds no inputs."""
    capabilities: tuple[str, ...] = ()
    max_frame_bytes: int = MAX_FRAME_BYTES
    """Longest frame that the sender accepts."""


class Welcome(Message, frozen=True, tag=11):
    """Answer to Hello: the addresses of the cores at this end. To a client, `addresses` is empty."""

    protocol: int
    addresses: tuple[str, ...]
    host: str = ""
    capabilities: tuple[str, ...] = ()
    max_frame_bytes: int = MAX_FRAME_BYTES
    """As in Hello."""


class Directory(Message, frozen=True, tag=12):
    """Endpoints of all holders. From the controller. A process with a worker connects to those that are new to it."""

    endpoints: tuple[str, ...]


class Rejected(Message, frozen=True, tag=13):
    """The handshake or the packet was not accepted. No other answer follows."""

    status: int
    """PROTOCOL: another version. REFUSED: another process uses the name. LOST: no heartbeat came. Other: the packet."""
    reason: str = ""


ConnectionMessage: TypeAlias = Hello | Welcome | Directory | Rejected
