"""Settles: the controller asks when all answers that an earlier content of a model may have computed have been sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.wire import Settle, Settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.requests import ClientRequest, OpenRequests


class Settling:
    """Settles that wait for open requests."""

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self.waiting: list[tuple[str, int, list[int]]] = []
        """(controller, id of the Settle, ids of the requests to wait for)."""

    def on_settle(self, now_ns: int, controller: str, message: Settle, buffers: Sequence[Buffer]) -> None:
        """Wait for the requests that may be answered by the content before. `pop_settled` returns the answer.

        A stream that has sent items is not awaited: it may last for ever.
        """
        awaited = [request.id for request in self._requests if _may_answer(request, message)]
        self.waiting.append((controller, message.id, awaited))

    def remove_controller(self, address: str) -> None:
        self.waiting = [entry for entry in self.waiting if entry[0] != address]

    def pop_settled(self) -> Iterator[Out]:
        """Return the answers to the Settles whose requests have all ended."""
        waiting, self.waiting = self.waiting, []
        for controller, settle_id, awaited in waiting:
            while awaited and ((request := self._requests.find_request(awaited[-1])) is None or request.items):
                awaited.pop()
            if awaited:
                self.waiting.append((controller, settle_id, awaited))
            else:
                yield Out(controller, Settled(settle_id))


def _may_answer(request: ClientRequest, message: Settle) -> bool:
    """Return whether the answer may be of an earlier content, or of a version that has lost its requests.

    A request runs on the earlier content only if a worker has its inputs, or if it may share the answer of another
    request. An application or a pipeline may have any models.
    """
    model = request.query.model
    if not model or (message.drained and request.spec.runtime == PIPELINE_RUNTIME):
        return True
    may_have_run = bool(request.worker or request.query.input_hash)
    return model in message.drained or (model in message.models and may_have_run)
