"""Requests whose outputs come as a stream of items: what passes between client and selector before the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.core.protocol import Out
from horologe_common.status import InvalidInput
from horologe_common.wire import STREAM_IDLE_NS, ItemsTaken, StreamLimits
from horologe_frontend.core.answers import select_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import StagedInputs
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.core.requests import ClientRequest, OpenRequests
    from horologe_frontend.settings import FrontendSettings


def stream_limits(message: Predict, spec: ModelSpec) -> StreamLimits:
    """Return the deadlines of the items of a model that streams: those of the request, else of the model.

    Raise `InvalidInput` if the request is for one answer, or has negative times. A request for a stream of a model
    that does not stream gets its one answer.
    """
    if (wanted := message.stream) is None:
        raise InvalidInput(f"model {spec.name!r}: got a request for one answer, wanted one for a stream")
    if wanted.first_ns < 0 or wanted.gap_ns < 0:
        raise InvalidInput(f"stream: got {wanted}, wanted times of at least 0")
    first_ns, gap_ns = wanted.first_ns or spec.first_ns, wanted.gap_ns or spec.gap_ns
    return StreamLimits(min(first_ns, NEVER_NS >> 1), min(gap_ns, NEVER_NS >> 1))


class StreamedRequests:
    """Forwards items to clients, and what they have taken to selectors.

    A stream without a deadline of its own stays open as long as it moves. The selector ends a stream that is late or
    that nobody reads; the timer of the frontend is for a selector that does not.
    """

    def __init__(self, requests: OpenRequests, staging: StagedInputs, settings: FrontendSettings) -> None:
        self._requests = requests
        self._staging = staging
        self._settings = settings

    def forward_item(self, now_ns: int, request: ClientRequest, item: Answer, buffers: Sequence[Buffer]) -> Out:
        """Return the item for the client. The inputs are not needed after the first one."""
        request.items += 1
        self._staging.release(request.id)
        self._renew(now_ns, request)
        if request.outputs:
            item, buffers = select_outputs(item, buffers, request.outputs)
        return Out(request.client, msgspec.structs.replace(item, id=request.client_id), buffers)

    def forward_taken(self, now_ns: int, client: str, message: ItemsTaken) -> list[Out]:
        """Return what the selector of the stream gets. Items of an unknown request are ignored."""
        request = self._requests.find_by_client_id(client, message.id)
        if request is None or request.query.stream is None or not request.receiver:
            return []
        self._renew(now_ns, request)
        return [Out(request.receiver, ItemsTaken(request.id, message.items))]

    def _renew(self, now_ns: int, request: ClientRequest) -> None:
        """Move the deadline of a stream that has none as a whole, and the time to give it up."""
        limits = request.query.stream
        assert limits is not None
        longest_ns = max(limits.first_ns, limits.gap_ns, self._settings.best_effort_ns, STREAM_IDLE_NS)
        if request.query.best_effort:
            request.deadline_ns = now_ns + longest_ns
        request.give_up_ns = min(request.deadline_ns, now_ns + longest_ns) + self._settings.grace_ns
