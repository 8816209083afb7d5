"""Questions of clients that the controller answers: about the cluster, or to admit a model. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.core import Deadlines, Out
from horologe_common.status import Status
from horologe_common.wire import Admit, Describe, Description, Models

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ask(msgspec.Struct, frozen=True):
    """Who asked, under which id, and what."""

    client: str
    client_id: int
    message: Admit | Describe


class Asks:
    """Open questions by an id of ours. Each is answered once: by the controller, or when its time is up."""

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self.deadlines = Deadlines()
        self._asks: dict[int, Ask] = {}
        self._last_id = 0

    def ask(self, now_ns: int, client: str, message: Admit | Describe, controller: str) -> Out:
        """Pass a question on; without a controller there is an answer at once."""
        if not controller:
            return Out(client, _unanswered(message.id, message))
        self._last_id += 1
        self._asks[self._last_id] = Ask(client, message.id, message)
        self.deadlines.arm(self._last_id, now_ns + self.limit_ns)
        return Out(controller, msgspec.structs.replace(message, id=self._last_id))

    def told(self, message: Models | Description) -> Iterator[Out]:
        """The controller's answer, for whoever asked."""
        if ask := self._asks.pop(message.id, None):
            self.deadlines.cancel(message.id)
            yield Out(ask.client, msgspec.structs.replace(message, id=ask.client_id))

    def expired(self, now_ns: int) -> Iterator[Out]:
        """Answers to what the controller has not answered in time."""
        for key in self.deadlines.due(now_ns):
            ask = self._asks.pop(key)
            yield Out(ask.client, _unanswered(ask.client_id, ask.message))


def _unanswered(client_id: int, message: Admit | Describe) -> Models | Description:
    if isinstance(message, Admit):
        return Models(client_id, (), int(Status.LOST), "the controller did not answer")
    return Description(client_id, (), "", 0)
