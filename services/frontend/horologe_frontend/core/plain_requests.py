"""Plain requests: for a model without cache and streams. They need no selector, and go to the controller directly.

    Submit to the controller -> Outputs from the worker, or an Outcome from the controller

The id of the Submit is that of the request and of its inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import Out, role
from horologe_common.core.return_latency import ReturnLatency
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.status import Status
from horologe_common.wire import Answer, Outcome, Submit
from horologe_common.wire.frames import split_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Outputs, Pong, RowStatus, Tensor
    from horologe_frontend.core.requests import ClientRequest, OpenRequests

OK = int(Status.OK)
ANSWERED_WITHOUT_OUTPUTS = frozenset({int(Status.FAILED), int(Status.TOO_LARGE)})
"""Final statuses of rows that a worker has run."""

PlainAnswer = tuple["ClientRequest", Answer, "Sequence[Buffer]"]


class PlainRequests:
    """Writes the Submits of plain requests, and finds the answers to them in Outputs and Outcomes."""

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self.latency = ReturnLatency()
        """Its `inner_ns` is the part of a budget that the controller cannot see."""

    def on_pong(self, now_ns: int, peer: str, pong: Pong, _: Sequence[Buffer]) -> None:
        """Measure the latency of the links. Pings are sent with Submits only: without requests, nothing is measured."""
        self.latency.on_pong(now_ns, peer, pong)
        if role(peer) == "controller":
            self.latency.update_paths(now_ns)

    def submit(self, now_ns: int, request: ClientRequest, holder: str) -> Out:
        """Return the Submit of a request to its `receiver`, the controller, with the time that is left."""
        query = request.query
        submit = Submit(
            request.id,
            query.model,
            max(0, request.deadline_ns - now_ns - self.latency.inner_ns),
            query.rows,
            holder,
            request.id,
            query.best_effort,
            query.shape_key,
            query.length,
            query.application,
            traceparent=query.traceparent,
            client=query.client,
        )
        return Out(request.receiver, submit)

    def read_outputs(self, now_ns: int, message: Outputs, buffers: Sequence[Buffer]) -> Iterator[PlainAnswer]:
        """Yield the answer of each row of a batch whose request is open."""
        counts = [item.rows for item in message.items if item.status == OK]
        groups = split_batch(message.outputs, buffers, counts)
        for item in message.items:
            parts = next(groups) if item.status == OK else ()
            request = self._requests.find_request(item.id)
            if request is not None and request.is_plain:
                if item.status == OK:
                    answer = _ok_answer(now_ns, request, message, tuple([part[0] for part in parts]))
                    yield request, answer, [part[1] for part in parts]
                elif item.status in ANSWERED_WITHOUT_OUTPUTS:
                    yield request, _failed_answer(request, item), ()

    def read_outcome(self, controller: str, outcome: Outcome) -> PlainAnswer | None:
        """Return the answer to a request that has failed. None: it is not open, or another controller has it."""
        request = self._requests.find_request(outcome.id)
        if request is None or not request.is_plain or request.receiver != controller:
            return None
        return request, _failed_answer(request, outcome), ()


def is_plain(spec: ModelSpec) -> bool:
    """Return whether requests for a model need no selector."""
    return not (spec.cache or spec.streams or spec.runtime == PIPELINE_RUNTIME)


def _ok_answer(now_ns: int, request: ClientRequest, message: Outputs, outputs: tuple[Tensor, ...]) -> Answer:
    name, _, version = request.query.model.partition("/")
    exec_ns = message.end_ns - message.begin_ns
    queue_ns = max(0, now_ns - request.arrival_ns - exec_ns)
    answer = Answer(request.id, OK, outputs, "", 0, name, version, queue_ns, exec_ns, message.batch_size)
    if request.query.content_hash:
        answer = msgspec.structs.replace(answer, content_hashes=(message.content_hash,))
    return answer


def _failed_answer(request: ClientRequest, end: Outcome | RowStatus) -> Answer:
    name, _, version = request.query.model.partition("/")
    answer = Answer(request.id, int(end.status), (), end.reason, 0, name, version)
    if not isinstance(end, Outcome):
        return answer
    times = {"retry_after_ns": end.retry_after_ns, "refuses_ns": end.refuses_ns, "place_ns": end.place_ns}
    return msgspec.structs.replace(answer, **times)
