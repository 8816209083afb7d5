"""Questions of clients passed on to the controller or the selector, and their answers brought back. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.core.timers import Timers
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    ApplicationInfo,
    Applications,
    Declare,
    Describe,
    Description,
    Models,
    Rollback,
    Withdraw,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

Question: TypeAlias = Admit | Describe | Declare | Withdraw | Rollback | ApplicationInfo
Told: TypeAlias = Models | Description | Applications


class Relayed(msgspec.Struct, frozen=True):
    """Who asked whom, under which id, and what."""

    client: str
    client_id: int
    message: Question
    to: str


class Relay:
    """Open questions by an id of ours. Each is answered once: by whom it was put to, or when its time is up.

    At most `limit` are open, each for `limit_ns` at most.
    """

    def __init__(self, limit_ns: int, limit: int) -> None:
        self.limit_ns = limit_ns
        self.limit = limit
        self.deadlines = Timers()
        self._open: dict[int, Relayed] = {}
        self._last_id = 0

    def ask(self, now_ns: int, client: str, message: Question, to: str) -> Out:
        """Pass a question on; where there is nobody to answer it, that is the answer, at once."""
        if not to:
            return Out(client, _unanswered(message.id, message, "is away"))
        if len(self._open) >= self.limit:
            return Out(client, _unanswered(message.id, message, f"has {self.limit} questions open already"))
        self._last_id += 1
        self._open[self._last_id] = Relayed(client, message.id, message, to)
        self.deadlines.arm(self._last_id, now_ns + self.limit_ns)
        return Out(to, msgspec.structs.replace(message, id=self._last_id))

    def told(self, message: Told) -> Iterator[Out]:
        """The answer, for whoever asked."""
        if relayed := self._open.pop(message.id, None):
            self.deadlines.cancel(message.id)
            yield Out(relayed.client, msgspec.structs.replace(message, id=relayed.client_id))

    def expired(self, now_ns: int) -> Iterator[Out]:
        """Answers to what was not answered in time."""
        for key in self.deadlines.pop_expired(now_ns):
            relayed = self._open.pop(key)
            yield Out(relayed.client, _unanswered(relayed.client_id, relayed.message, "did not answer"))

    def gone(self, address: str) -> Iterator[Out]:
        """Answers to what this one will not answer any more."""
        for key in [key for key, relayed in self._open.items() if relayed.to == address]:
            self.deadlines.cancel(key)
            relayed = self._open.pop(key)
            yield Out(relayed.client, _unanswered(relayed.client_id, relayed.message, "went away"))


def _unanswered(client_id: int, message: Question, what: str) -> Told:
    match message:
        case Admit():
            return Models(client_id, (), int(Status.LOST), f"the controller {what}")
        case Describe():
            return Description(client_id, (), "", 0)
        case _:
            return Applications(client_id, (), int(Status.LOST), f"the selector {what}")
