"""Simulated clients as cores: one sends requests to a frontend, one to the controller.

Both count one final status per request. A request without an answer becomes LOST by the client's timer, as in the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    Cancel,
    Dispatch,
    Outcome,
    Outputs,
    Predict,
    Ship,
    Shipped,
    Submit,
)
from horologe_sim.engine.traceable_inputs import LABEL, echoes, inputs_of, mark, right
from horologe_sim.report.tally import OpenRequest, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor
    from horologe_sim.scenario.workload import PlannedRequest, ScenarioLoad

BEST_EFFORT_NS = s(30)


class SimulatedClient:
    """The base of both clients: sends the requests of the load, and ends them by an answer or a timer.

    `specs`: the specification by the name of the model or application. `patience_ns`: time after its deadline at which
    a request is LOST. Requests stay unsent until the peer connects.
    """

    recorded = False
    """The recorder ignores it: it is not part of the system under test."""

    def __init__(
        self,
        address: str,
        demand: ScenarioLoad,
        specs: dict[str, ModelSpec],
        tally: Tally,
        patience_ns: int,
        begin_ns: int,
        loaded: Callable[[str], bool],
    ) -> None:
        self.address = address
        self.out: list[Out] = []
        self.open: dict[int, OpenRequest] = {}
        self._demand = demand
        self._specs = specs
        self._tally = tally
        self._patience_ns = patience_ns
        self._begin_ns = begin_ns
        self._loaded = loaded
        self._peer = ""
        self._unsent: list[OpenRequest] = []
        self._limits: IndexedHeap[Any, int] = IndexedHeap()
        self._cancels: IndexedHeap[Any, int] = IndexedHeap()
        self._last_id = 0

    def tick(self, now_ns: int) -> None:
        """Send and cancel requests by the load, and end requests whose timer has expired."""
        for ask in self._demand.pop_due(now_ns - self._begin_ns):
            self._ask(now_ns, ask)
        if self._peer and self._unsent:
            unsent, self._unsent = self._unsent, []
            for request in unsent:
                if request.id in self.open and now_ns <= (request.deadline_ns or now_ns):
                    self._send(now_ns, request)
        for request_id in self._cancels.pop_up_to(now_ns):
            if cancelled := self.open.get(request_id):
                if self._peer:
                    self.out.append(Out(self._peer, Cancel((request_id,))))
                self._end(now_ns, cancelled, Status.CANCELLED)
        for request_id in self._limits.pop_up_to(now_ns):
            if lost := self.open.get(request_id):
                self._end(now_ns, lost, Status.LOST)

    def wakeup_ns(self) -> int | None:
        demand_ns = self._demand.next_ns()
        times = (
            self._limits.smallest_priority(),
            self._cancels.smallest_priority(),
            None if demand_ns is None else demand_ns + self._begin_ns,
        )
        return min((at for at in times if at is not None), default=None)

    def check(self) -> None:
        """Check that every request is open or has ended once."""
        assert self._tally.sent_total == self._tally.ended_total + len(self.open)

    def _ask(self, now_ns: int, ask: PlannedRequest) -> None:
        self._last_id += 1
        budget_ns = self._budget_ns(ask)
        request = OpenRequest(
            self._last_id, ask, now_ns, now_ns + budget_ns if budget_ns else 0, not self._loaded(ask.name)
        )
        self.open[request.id] = request
        self._limits.push(request.id, now_ns + (budget_ns or BEST_EFFORT_NS) + self._patience_ns)
        if ask.cancel_ns:
            self._cancels.push(request.id, now_ns + ask.cancel_ns)
        self._tally.count_sent(request)
        self._unsent.append(request)

    def _budget_ns(self, ask: PlannedRequest) -> int:
        return 0 if ask.best_effort else ask.slo_ns or self._specs[ask.name].slo_ns

    def _send(self, now_ns: int, request: OpenRequest) -> None:
        raise NotImplementedError

    def _answered(self, now_ns: int, request_id: int, status: int) -> OpenRequest | None:
        request = self.open.get(request_id)
        if request is None:
            self._tally.count_stray(request_id, status)
        else:
            self._end(now_ns, request, status)
        return request

    def _end(self, now_ns: int, request: OpenRequest, status: int) -> None:
        """End a request."""
        del self.open[request.id]
        self._limits.remove(request.id)
        self._cancels.remove(request.id)
        self._tally.count_end(now_ns, request, status)
        self._demand.schedule_next(now_ns - self._begin_ns, request.ask.loop)

    def _inspect(self, request: OpenRequest, outputs: Sequence[Tensor], buffers: Sequence[Buffer], rows: int) -> None:
        """Record outputs that belong to another request. `rows`: number of rows received."""
        spec = self._specs[request.ask.name]
        echo = echoes(spec)
        right = len(outputs) == len(spec.outputs) == len(buffers) and rows == request.ask.rows
        if not right or (echo is not None and bytes(buffers[echo]) != mark(request.id, rows)):
            self._tally.swapped.append(request.id)


class FrontendClient(SimulatedClient):
    """Sends requests to a frontend, as the SDK does. At an `http/` address it is a gateway for several clients."""

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle an answer or a peer event."""
        match message:
            case Answer():
                request = self._answered(now_ns, message.id, message.status)
                if request is not None and request.ask.application:
                    self._judge(request, message, buffers)
                elif request is not None and message.status == Status.OK:
                    rows = message.outputs[0].shape[0] if message.outputs else 0
                    self._inspect(request, message.outputs, buffers, rows)
            case PeerConnected() if role(message.address) == "frontend":
                self._peer = message.address
            case PeerDisconnected() if message.address == self._peer:
                self._peer = ""

    def _send(self, now_ns: int, request: OpenRequest) -> None:
        ask = request.ask
        inputs, buffers = inputs_of(self._specs[ask.name], request.id, ask.rows)
        waited = ask.slo_ns or now_ns > request.sent_ns  # else the frontend applies the model's SLO
        budget_ns = max(1, request.deadline_ns - now_ns) if request.deadline_ns and waited else 0
        predict = Predict(
            request.id,
            ask.model,
            "",
            budget_ns,
            inputs,
            application=ask.application,
            context=ask.context,
            sent_ns=now_ns,
            client=ask.client,
        )
        self.out.append(Out(self._peer, predict, buffers))

    def _judge(self, request: OpenRequest, answer: Answer, buffers: Sequence[Buffer]) -> None:
        """Count the correct rows of an application's answer and its missing models."""
        true = None
        if answer.status == Status.OK and self._specs[request.ask.name].outputs == (LABEL,):
            true = right(request.id, buffers[0])
        self._tally.count_quality(request, answer, true)


class Submitter(SimulatedClient):
    """Sends requests to the controller in the place of frontend and selector. It also holds the inputs."""

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle an Outcome, Outputs, a Dispatch or a peer event."""
        match message:
            case Outputs():
                self._outputs(now_ns, message, buffers)
            case Outcome():
                self._answered(now_ns, message.id, message.status)
            case Dispatch():
                self._ship(message)
            case PeerConnected() if role(message.address) == "controller":
                self._peer = message.address
                self._unsent = list(self.open.values())
            case PeerDisconnected() if message.address == self._peer:
                self._peer = ""

    def _send(self, now_ns: int, request: OpenRequest) -> None:
        ask = request.ask
        end_ns = request.deadline_ns or request.sent_ns + BEST_EFFORT_NS
        spec = self._specs[ask.name]
        budget_ns, best_effort = max(1, end_ns - now_ns), not request.deadline_ns
        submit = Submit(
            request.id, spec.key, budget_ns, ask.rows, self.address, request.id, best_effort, client=ask.client
        )
        self.out.append(Out(self._peer, submit))

    def _ship(self, dispatch: Dispatch) -> None:
        items, missing = [], []
        buffers: list[Buffer] = []
        for input_id in dispatch.input_ids:
            if request := self.open.get(input_id):
                inputs, parts = inputs_of(self._specs[request.ask.name], input_id, request.ask.rows)
                items.append(Shipped(input_id, inputs))
                buffers.extend(parts)
            else:
                missing.append(input_id)
        ship = Ship(dispatch.action_id, self.address, tuple(items), tuple(missing))
        self.out.append(Out(dispatch.worker, ship, buffers))

    def _outputs(self, now_ns: int, message: Outputs, buffers: Sequence[Buffer]) -> None:
        total, at = sum(item.rows for item in message.items), 0
        for item in message.items:
            if item.status not in (Status.OK, Status.FAILED):
                continue  # the controller decides what happens to this row
            request = self._answered(now_ns, item.id, item.status)
            if request is not None and item.status == Status.OK:
                mine = [_part(buffer, at, item.rows, total) for buffer in buffers]
                self._inspect(request, message.outputs, mine, item.rows)
            at += item.rows


def _part(buffer: Buffer, at: int, rows: int, total: int) -> Buffer:
    size = len(buffer) // max(1, total)
    return memoryview(buffer)[at * size : (at + rows) * size]
