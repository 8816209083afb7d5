"""The handshake of a connection: Hello until there is a Welcome, or the reason why there will be none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe.core.outbox import message_packet
from horologe_common import wire
from horologe_common.clock import NEVER_NS, s

if TYPE_CHECKING:
    from horologe.core.outbox import Packet
    from horologe_common.status import HorologeError

HELLO_NS = s(1)
"""A Hello that brought nothing within this time is said again."""


class Handshake:
    """`ready`: the frontend has welcomed this connection. `refusal`: requests fail with it until there is a new one."""

    def __init__(self) -> None:
        self.ready = False
        self.refusal: HorologeError | None = None
        self.due_ns = NEVER_NS
        """When to say Hello next."""

    def connected(self, now_ns: int) -> None:
        """A connection stands."""
        self.ready, self.refusal, self.due_ns = False, None, now_ns

    def disconnected(self) -> None:
        self.ready, self.due_ns = False, NEVER_NS

    def refuse(self, error: HorologeError) -> None:
        """There will be no welcome."""
        self.ready, self.refusal, self.due_ns = False, error, NEVER_NS

    def hello(self, now_ns: int) -> list[Packet]:
        """The Hello to send now, if it is due."""
        if now_ns < self.due_ns:
            return []
        self.due_ns = now_ns + HELLO_NS
        return [message_packet(wire.Hello(wire.PROTOCOL, ()))]

    def welcomed(self) -> bool:
        """Whether a Welcome is the answer to our Hello: then the connection is ready."""
        if self.ready or self.due_ns == NEVER_NS:
            return False
        self.ready, self.due_ns = True, NEVER_NS
        return True
