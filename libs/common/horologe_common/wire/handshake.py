"""Links: the handshake of every connection, and the directory workers follow."""

from __future__ import annotations

from horologe_common.wire.message import Message


class Hello(Message, frozen=True, tag=10):
    """First message of whoever connects, and again after every reconnect."""

    protocol: int
    addresses: tuple[str, ...]
    host: str = ""
    endpoint: str = ""
    """Where holders may be connected to, if this process is one."""
    capabilities: tuple[str, ...] = ()


class Welcome(Message, frozen=True, tag=11):
    protocol: int
    addresses: tuple[str, ...]
    host: str = ""
    capabilities: tuple[str, ...] = ()


class Directory(Message, frozen=True, tag=12):
    """Endpoints of all holders; whoever hosts a worker connects to those it does not know yet."""

    endpoints: tuple[str, ...]


class Rejected(Message, frozen=True, tag=13):
    """The handshake or the packet could not be accepted; the sender says no more than this."""

    status: int
    reason: str = ""
