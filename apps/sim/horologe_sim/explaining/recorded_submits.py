"""Submits of recorded requests: the work ahead of each at the controller, and the actions that ran it."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from horologe_common.core.hosting import CoreObserver
from horologe_common.core.protocol import PeerDisconnected, instance
from horologe_common.models import FIRST_STEP, NEXT_STEP
from horologe_common.status import STATUS_NAMES
from horologe_common.wire import Cancel, Infer, Outcome, Pong, Result, Submit
from horologe_controller.core.cluster.prediction_source import PredictionSource
from horologe_controller.core.controller import Controller
from horologe_sim.explaining.recorded_loads import RecordedLoads
from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory, Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_controller.core.cluster.lane import Action

RECENT_ACTIONS = 4096


class ControllerObserver(CoreObserver):
    """Follows the Submits of requests through a controller. `targets`: request and stage by holder and id of inputs."""

    def __init__(self, targets: Mapping[tuple[str, int], tuple[RequestHistory, str]]) -> None:
        self._targets = targets
        self._open: dict[tuple[str, int], SubmitHistory] = {}
        self._new: list[SubmitHistory] = []
        self._actions: dict[int, list[tuple[int, SubmitHistory, Attempt]]] = {}
        """Row in the INFER, Submit and attempt by action id."""
        self._ended: deque[tuple[str, int, Action, int, int]] = deque(maxlen=RECENT_ACTIONS)
        """Worker, share, action, begin and end of recent INFERs."""
        self._loads = RecordedLoads()
        self._answered_ns: dict[str, int] = {}
        """When the last Ping was sent that a worker has answered."""

    def begin_recording(self) -> None:
        """Discard the recent INFERs: the next recording may contain them again."""
        self._ended.clear()

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Note the Submits of the requests, every Result, and workers that are lost or answer a Ping."""
        if not isinstance(core, Controller):
            return
        if isinstance(message, PeerDisconnected):
            self._on_loss(now_ns, instance(message.address))
        elif isinstance(message, Result):
            self._on_result(now_ns, core, sender, message)
        elif isinstance(message, Pong):
            self._answered_ns[instance(sender)] = message.sent_ns
        elif isinstance(message, Submit) and (target := self._targets.get((message.holder, message.input_id))):
            self._on_submit(now_ns, sender, message, *target)

    def _on_submit(self, now_ns: int, sender: str, message: Submit, request: RequestHistory, stage: str) -> None:
        submit = SubmitHistory(sender, message.id, message.model, now_ns, now_ns + message.budget_ns)
        submit.rows = message.rows
        submit.step = 0 if message.step is None else message.step.number
        submit.stage, submit.request_id = stage, f"{instance(message.holder)}:{message.input_id}"
        key = sender, message.id, now_ns  # the later of two recordings contains more of the request
        others = [s for s in request.submits if (s.submitter, s.submit_id, s.arrived_ns) != key]
        request.submits = [*others, submit]
        self._open[sender, message.id] = submit
        self._new.append(submit)

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Note what is ahead of new requests, the INFERs that run them, and their Outcomes."""
        if not isinstance(core, Controller):
            return
        for submit in self._new:
            describe_queue(now_ns, core, submit)
        self._new.clear()
        self._loads.observe_outs(now_ns, outs)
        if not self._open:
            return
        for out in outs:
            message = out.message
            if isinstance(message, Infer):
                self._on_infer(now_ns, core, out.to, message)
            elif isinstance(message, Cancel):
                self._on_hang(now_ns, core, out.to, message)
            elif isinstance(message, Outcome) and (ended := self._open.pop((out.to, message.id), None)):
                ended.status, ended.reason = STATUS_NAMES[message.status], message.reason
                ended.missing_ns, ended.ended_ns = message.retry_after_ns, now_ns
                if ended.is_too_long:
                    predict_alone(now_ns, core, ended)  # it may have waited for an action that did not run
                elif message.retry_after_ns and now_ns > ended.arrived_ns:
                    ended.missing_ns = max(ended.missing_ns, find_missing_time(now_ns, core, ended))
                self._add_work_executed(ended)
                if not ended.resident and not ended.attempts:
                    ended.load = self._loads.find_load(ended.model, ended.arrived_ns, now_ns)

    def _on_infer(self, now_ns: int, core: Controller, worker: str, infer: Infer) -> None:
        for number, row in enumerate(infer.rows):
            submit = self._open.get((infer.parties[row.submitter], row.submit_id))
            if submit is None:
                continue
            action = core.cluster.workers[worker].shares[infer.share].exec.pending.get(infer.action_id)
            end_ns = action.promised_ns if action else now_ns + infer.expected_ns
            attempt = Attempt(
                infer.action_id,
                instance(worker),
                infer.share,
                infer.batch_size,
                len(infer.rows),
                now_ns,
                infer.expected_ns,
                end_ns - infer.expected_ns,
                end_ns,
            )
            estimate = core.cluster.workers[worker].shares[infer.share].find_estimate(infer.model)
            if estimate is not None and attempt.expected_ns == estimate.predict(now_ns, infer.batch_size):
                attempt.source = estimate.source(now_ns, infer.batch_size)
            elif infer.model in core.cluster.distributions:
                attempt.source = PredictionSource("distribution")
            if not submit.resident and not submit.attempts:
                submit.load = self._loads.find_load(infer.model, submit.arrived_ns, now_ns, attempt.worker)
            submit.attempts.append(attempt)
            self._actions.setdefault(infer.action_id, []).append((number, submit, attempt))

    def _on_result(self, now_ns: int, core: Controller, worker: str, result: Result) -> None:
        mirror = core.cluster.workers.get(worker)
        if mirror is None:
            return
        lanes = chain.from_iterable((share.exec, share.load) for share in mirror.shares.values())
        action = next((lane.pending[result.action_id] for lane in lanes if result.action_id in lane.pending), None)
        if action is None:
            return
        end_ns = min(now_ns, result.end_ns - mirror.offset_ns())
        begin_ns = end_ns - (result.end_ns - result.begin_ns)
        rows = {row.id: (row.status, row.reason) for row in result.rows}
        for number, submit, attempt in self._actions.pop(result.action_id, ()):
            status, reason = rows.get(number, (result.status, result.reason))
            attempt.begin_ns, attempt.end_ns = begin_ns, end_ns
            attempt.status, attempt.reason = STATUS_NAMES[status], reason
            self._add_work_before(submit, attempt, worker)
        if action.kind == "load":
            self._loads.end_load(worker, action.id, begin_ns, end_ns, STATUS_NAMES[result.status])
        else:
            self._ended.append((worker, action.share.number, action, begin_ns, end_ns))

    def _on_hang(self, now_ns: int, core: Controller, worker: str, cancel: Cancel) -> None:
        """Note that the first of these actions hangs, and that the others wait behind it.

        A worker that answers pings while the action is overdue does not hang: the model does.
        """
        mirror = core.cluster.workers[worker]
        pending = chain.from_iterable(share.exec.pending.values() for share in mirror.shares.values())
        first = next((action for action in pending if action.id == cancel.ids[0]), None)
        answers = first is not None and self._answered_ns.get(instance(worker), 0) > first.promised_ns
        for action_id, attempt in self._open_attempts(instance(worker)):
            if not attempt.status and action_id in cancel.ids:
                attempt.status, attempt.failed_ns = "HUNG", now_ns
                attempt.hung_model = first.model if first is not None and answers else ""

    def _on_loss(self, now_ns: int, worker: str) -> None:
        for _, attempt in self._open_attempts(worker):
            if not attempt.status:
                attempt.status, attempt.failed_ns = "LOST", now_ns

    def _open_attempts(self, worker: str) -> Iterator[tuple[int, Attempt]]:
        """Yield the attempts on a worker that have no Result, with the ids of their actions."""
        for action_id, rows in self._actions.items():
            for _, _, attempt in rows:
                if attempt.worker == worker:
                    yield action_id, attempt

    def _add_work_executed(self, submit: SubmitHistory) -> None:
        works: dict[str, Work] = {}
        for _, _, action, begin_ns, end_ns in self._ended:
            if end_ns > submit.arrived_ns:
                took_ns = end_ns - max(begin_ns, submit.arrived_ns)
                add_work(works, action.model, len(action.requests), took_ns, batches=1)
        submit.executed = most_work_first(works)

    def _add_work_before(self, submit: SubmitHistory, attempt: Attempt, worker: str) -> None:
        works: dict[str, Work] = {}
        for *share, action, begin_ns, end_ns in self._ended:
            if share == [worker, attempt.share] and end_ns > submit.arrived_ns and begin_ns < attempt.begin_ns:
                took_ns = end_ns - max(begin_ns, submit.arrived_ns)
                add_work(works, action.model, len(action.requests), took_ns, batches=1)
                attempt.overrun_ns += max(0, end_ns - begin_ns - action.expected_ns)
        attempt.before = most_work_first(works)


def describe_queue(now_ns: int, core: Controller, submit: SubmitHistory) -> None:
    """Note the state of the cluster that a new request meets, and the work that is ahead of it."""
    cluster, model = core.cluster, submit.model
    shares = [share for share in cluster.shares() if share.find_estimate(model) is not None]
    submit.shares = len(shares)
    submit.resident = sum(model in share.resident for share in shares)
    requests = list(core.open_requests())
    own = next((r for r in requests if (r.submitter, r.submit_id) == (submit.submitter, submit.submit_id)), None)
    if own is not None:
        submit.deadline_ns = own.deadline_ns
    predict_alone(now_ns, core, submit)
    queued: dict[str, Work] = {}
    for request in requests:
        is_ahead = request.queued and request.deadline_ns <= submit.deadline_ns and not request.best_effort
        if request is not own and is_ahead:
            add_work(queued, request.model, 1, request.cost_ns)
    running: dict[str, Work] = {}
    for share in shares:
        for action in share.exec.pending.values():
            if all(request is not own for request in action.requests):
                rest_ns = min(action.expected_ns, max(0, action.end_ns - now_ns))
                add_work(running, action.model, len(action.requests), rest_ns, batches=1)
    submit.queued, submit.running = most_work_first(queued), most_work_first(running)


def predict_alone(now_ns: int, core: Controller, submit: SubmitHistory) -> None:
    """Note how long the request would take alone, on the fastest share that can run its model."""
    cluster, model = core.cluster, submit.model
    sizes = (cluster.specs[model].batch_sizes if model in cluster.specs else ()) or (1,)
    size = next((size for size in sizes if size >= submit.rows), sizes[-1])
    if submit.step:
        size = FIRST_STEP if submit.step == 1 else NEXT_STEP
    predictions = [share.estimates[model] for share in cluster.shares() if model in share.estimates]
    if predictions:
        fastest = min(predictions, key=lambda estimate: estimate.predict(now_ns, size))
        submit.expected_ns, submit.source = fastest.predict(now_ns, size), fastest.source(now_ns, size)
        submit.shorter = {smaller: fastest.predict(now_ns, smaller) for smaller in sizes if smaller < size}
    submit.dispatch_ns = cluster.latency.dispatch_ns


def find_missing_time(now_ns: int, core: Controller, submit: SubmitHistory) -> int:
    """Return how much later the deadline of a request that has just been refused would have had to be.

    It is refused when it could not be in time even if it began now, although its turn has not come.
    """
    shares = [share for share in core.cluster.shares() if share.find_estimate(submit.model) is not None]
    free_ns = min([share.exec.free_at(now_ns) for share in shares], default=now_ns)
    ahead = [r.cost_ns for r in core.open_requests() if r.queued and r.deadline_ns <= submit.deadline_ns]
    return free_ns + sum(ahead) // max(1, len(shares)) + submit.expected_ns - submit.deadline_ns


def add_work(works: dict[str, Work], model: str, requests: int, work_ns: int, batches: int = 0) -> None:
    """Add requests to the work for a model."""
    work = works.setdefault(model, Work(model))
    work.requests += requests
    work.batches += batches
    work.work_ns += work_ns


def most_work_first(works: dict[str, Work]) -> list[Work]:
    """Return the entries, the one with the most work first."""
    return sorted(works.values(), key=lambda work: (-work.work_ns, work.model))
