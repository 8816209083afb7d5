"""The open requests of the controller: each from its Submit until it is finished."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Submit
    from horologe_controller.core.cluster.share import Share


class Request:
    """An open request. Its EXEC must end by `deadline_ns`.

    `cost_ns` is its part of the time that its queue needs: work ahead of other requests, and demand for its model.
    """

    def __init__(
        self, id: int, submitter: str, submit: Submit, spec: ModelSpec, arrival_ns: int, deadline_ns: int
    ) -> None:
        """`deadline_ns` is earlier than the client's deadline by `MessageLatency.reserved_ns`."""
        self.id = id
        self.submitter = submitter
        self.submit_id = submit.id
        self.spec = spec
        self.model = submit.model
        self.rows = submit.rows
        self.holder = submit.holder
        self.input_id = submit.input_id
        self.arrival_ns = arrival_ns
        self.deadline_ns = deadline_ns
        self.best_effort = submit.best_effort
        self.solo = submit.solo
        self.shape_key = -id if submit.solo else submit.shape_key
        """Requests of one batch have the same. That of a solo request is unique."""
        self.length = submit.length
        self.application = submit.application
        self.traceparent = submit.traceparent
        """Trace and span of the request at the frontend, if it is traced."""
        self.client = submit.client
        """Client that sent it, for the order between clients."""
        self.step = submit.step
        """The step of a stream that it is. None: it is none."""
        self.urgent_ns: int | None = None
        """When the request goes before all others; None: never."""
        if submit.urgent_after_ns and submit.solo and submit.best_effort:
            self.urgent_ns = arrival_ns + submit.urgent_after_ns
        self.turn = 0
        """See `ClientOrder`."""
        self.share: Share | None = None
        """The only share that may run it, because that keeps the state of its stream. None: any may."""
        self.action_id = 0
        """0: it belongs to no action."""
        self.attempts = 0
        """Number of failed attempts."""
        self.attempt_reason = ""
        """Reason of the worker for the last failed attempt; empty if it gave none."""
        self.failure = Status.REFUSED
        """Answer if it is not run again: REFUSED promises that no worker ran it. LOST or LATE after a worker that was
        given the request has disconnected or hangs."""
        self.queued = False
        self.admitted = False
        self.cost_ns = 0
        self.check_ns: int | None = None
        """When the queued request must be checked for being too late; None: not again."""

    def withdraw_attempt(self) -> None:
        """Discount an attempt: its action was overdue, and the worker has cancelled it before the EXEC began.

        The inputs may not have reached the worker. The deadline limits such attempts.
        """
        self.attempts -= 1
        if not self.attempts:
            self.failure = Status.REFUSED

    __hash__: ClassVar[Any] = object.__hash__  # compiled, a class with `__lt__` has no other hash

    def __lt__(self, other: Request) -> bool:
        """Order requests by arrival, so that they can be keys of an `IndexedHeap`."""
        return self.id < other.id


class RequestTable:
    """Open requests, by submitter and its id of the request."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, Request]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[Request]:
        """Iterate over copies: the exporter's thread counts the requests."""
        return chain.from_iterable([list(requests.values()) for requests in list(self._of.values())])

    def create_request(
        self, sender: str, submit: Submit, spec: ModelSpec, arrival_ns: int, deadline_ns: int
    ) -> Request:
        """Return a new request. The caller adds it to the open requests of the submitter."""
        self._last_id += 1
        return Request(self._last_id, sender, submit, spec, arrival_ns, deadline_ns)

    def of_submitter(self, submitter: str) -> dict[int, Request]:
        """Return the open requests of a submitter by its ids."""
        requests = self._of.get(submitter)
        return self._of.setdefault(submitter, {}) if requests is None else requests

    def remove_request(self, request: Request) -> None:
        del self._of[request.submitter][request.submit_id]

    def discard_submitter(self, submitter: str) -> None:
        """Drop the table of a submitter that has disconnected and has no open request."""
        if not self._of.get(submitter, True):
            del self._of[submitter]

    def queued_for(self, models: Mapping[str, bool]) -> list[Request]:
        """Return the queued requests for these models, in the order of arrival."""
        queued = [request for request in self if request.queued and request.model in models]
        return sorted(queued)

    def check(self, placed: Sequence[Request], queued: int) -> None:
        """Assert that every open request is queued or in exactly one pending action."""
        assert len(placed) == len({request.id for request in placed})
        open_ids = {request.id for request in self}
        assert all(request.id in open_ids for request in placed)
        assert len(self) == len(placed) + queued
