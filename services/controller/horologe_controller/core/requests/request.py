"""A request as the controller holds it, from its Submit until it is finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from horologe_common.status import Status

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec
    from horologe_common.wire import StreamStep
    from horologe_controller.core.cluster.share import Share

UNPLACED, FINISHED = 0, -1
"""Values of `action_id` for a request that belongs to no action."""


class Request:
    """An open request. Its EXEC must end by `deadline_ns`.

    `cost_ns` is its part of the time that its queue needs: work ahead of other requests, and demand for its model.
    """

    def __init__(
        self,
        id: int,
        submitter: str,
        submit_id: int,
        spec: ModelSpec,
        model: str,
        rows: int,
        holder: str,
        input_id: int,
        arrival_ns: int,
        deadline_ns: int,
        best_effort: bool,
        shape_key: int = 0,
        length: int = 0,
        application: str = "",
        solo: bool = False,
        traceparent: str = "",
        budget_ns: int = 0,
        client: str = "",
        urgent_ns: int | None = None,
        step: StreamStep | None = None,
    ) -> None:
        self.id = id
        self.submitter = submitter
        self.submit_id = submit_id
        self.spec = spec
        self.model = model
        self.rows = rows
        self.holder = holder
        self.input_id = input_id
        self.arrival_ns = arrival_ns
        self.deadline_ns = deadline_ns
        """Earlier than the client's deadline by `MessageLatency.reserved_ns`."""
        self.best_effort = best_effort
        self.shape_key = shape_key
        self.length = length
        self.application = application
        self.solo = solo
        self.traceparent = traceparent
        """Trace and span of the request at the frontend, if it is traced."""
        self.budget_ns = budget_ns
        """Time from the arrival to the client's deadline."""
        self.client = client
        """Client that sent it, for the order between clients."""
        self.turn = 0
        """See `ClientOrder`."""
        self.urgent_ns = urgent_ns
        """When the request goes before all others; None: never."""
        self.step = step
        """The step of a stream that it is. None: it is none."""
        self.share: Share | None = None
        """The only share that may run it, because that keeps the state of its stream. None: any may."""
        self.action_id = UNPLACED
        self.attempts = 0
        """Number of failed attempts."""
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
