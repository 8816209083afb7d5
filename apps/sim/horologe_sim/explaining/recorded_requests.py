"""Finds a request in recordings: a replay of the frontend gives its times, one of the controller the work around it."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from horologe_common.core.hosting import CoreObserver
from horologe_common.core.protocol import PeerDisconnected, instance
from horologe_common.status import STATUS_NAMES
from horologe_common.wire import Answer, Cancel, Infer, Outcome, Predict, Result, Submit
from horologe_controller.core.controller import Controller
from horologe_frontend.core.frontend import Frontend
from horologe_sim.explaining.recorded_loads import RecordedLoads
from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory, Work
from horologe_sim.replay import replay_recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_controller.core.cluster.lane import Action

MATCHES_MAX = 20
"""Requests of different clients may have the same id. Further ones are not followed."""
RECENT_ACTIONS = 4096


def find_requests(recordings: Iterable[Path], request_id: str) -> list[RequestHistory]:
    """Return the requests with this id in recordings of frontends and controllers, in the order of their arrival.

    Recordings of one process may overlap: a request in several of them is returned once.
    `request_id`: the `id` of an HTTP request, the number of its response header, that of an SDK reply or exception, or
    `CLIENT:NUMBER`. Raises `SettingsError` for a file that is not a recording. Damaged parts are left out.
    """
    files = list(recordings)
    frontends = FrontendObserver(request_id)
    for file in files:
        replay_recording(file, "frontend", observer=frontends)
    controllers = ControllerObserver(frontends.found)
    if controllers.targets:
        for file in files:
            controllers.begin_recording()
            replay_recording(file, "controller", observer=controllers)
    return frontends.found


class FrontendObserver(CoreObserver):
    """Follows the requests with an id through a frontend."""

    def __init__(self, request_id: str) -> None:
        self.found: list[RequestHistory] = []
        self._client, _, number = request_id.rpartition(":")
        self._number = int(number) if number.isdecimal() else -1
        self._name = request_id
        self._open: dict[tuple[str, str, int], RequestHistory] = {}
        """Unanswered requests by frontend, client and its id."""
        self._new: list[RequestHistory] = []
        self._known: dict[tuple[str, str, int, int], RequestHistory] = {}
        """By frontend, client, its id, and arrival."""

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Note a Predict with the id. The frontend handles it after this call."""
        if isinstance(core, Frontend):
            self._read_new(core)
            if isinstance(message, Predict) and self._matches(sender, message) and len(self.found) < MATCHES_MAX:
                self._follow(now_ns, core, sender, message)

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Note the answers."""
        if not isinstance(core, Frontend):
            return
        self._read_new(core)
        for out in outs:
            if isinstance(out.message, Answer):
                request = self._open.pop((core.address, out.to, out.message.id), None)
                if request is not None:
                    request.answered_ns, request.reason = now_ns, out.message.reason
                    request.status = STATUS_NAMES[out.message.status]

    def _follow(self, now_ns: int, core: Core, client: str, message: Predict) -> None:
        """Follow a request, unless an earlier recording has its answer."""
        key = core.address, client, message.id, now_ns
        request = self._known.get(key)
        if request is None:
            model = message.model or message.application
            request = self._known[key] = RequestHistory(client, message.id, message.name, model, now_ns, core.address)
            self.found.append(request)
        if not request.status:
            self._new.append(request)
            self._open[core.address, client, message.id] = request

    def _matches(self, client: str, message: Predict) -> bool:
        if self._client:
            return message.id == self._number and client.startswith(self._client)
        return message.id == self._number or (bool(message.name) and message.name == self._name)

    def _read_new(self, core: Frontend) -> None:
        for history in self._new:
            request = core.find_open(history.client, history.client_id)
            if request is not None:
                history.request_id, history.deadline_ns = request.id, request.deadline_ns
                history.best_effort = request.query.best_effort
        self._new.clear()


class ControllerObserver(CoreObserver):
    """Follows the Submits of requests through a controller."""

    def __init__(self, requests: Iterable[RequestHistory]) -> None:
        self.targets = {(request.holder, request.request_id): request for request in requests if request.request_id}
        self._open: dict[tuple[str, int], SubmitHistory] = {}
        self._new: list[SubmitHistory] = []
        self._actions: dict[int, tuple[SubmitHistory, Attempt]] = {}
        self._ended: deque[tuple[str, int, Action, int, int]] = deque(maxlen=RECENT_ACTIONS)
        """Worker, share, action, begin and end of recent INFERs."""
        self._loads = RecordedLoads()

    def begin_recording(self) -> None:
        """Discard the recent INFERs: the next recording may contain them again."""
        self._ended.clear()

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Note the Submits of the requests, every Result, and lost workers."""
        if not isinstance(core, Controller):
            return
        if isinstance(message, PeerDisconnected):
            self._on_failure(now_ns, instance(message.address), "LOST")
        elif isinstance(message, Result):
            self._on_result(now_ns, core, sender, message)
        elif isinstance(message, Submit) and (request := self.targets.get((message.holder, message.input_id))):
            submit = SubmitHistory(sender, message.id, message.model, now_ns, now_ns + message.budget_ns)
            submit.rows = message.rows
            submit.step = 0 if message.step is None else message.step.number
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
                self._on_failure(now_ns, instance(out.to), "HUNG", message.ids)
            elif isinstance(message, Outcome) and (ended := self._open.pop((out.to, message.id), None)):
                ended.status, ended.reason = STATUS_NAMES[message.status], message.reason
                ended.missing_ns, ended.ended_ns = message.retry_after_ns, now_ns
                if message.retry_after_ns and now_ns > ended.arrived_ns:
                    ended.missing_ns = max(ended.missing_ns, find_missing_time(now_ns, core, ended))
                self._add_work_executed(ended)
                if not ended.resident and not ended.attempts:
                    ended.load = self._loads.find_load(ended.model, ended.arrived_ns, now_ns)

    def _on_infer(self, now_ns: int, core: Controller, worker: str, infer: Infer) -> None:
        for row in infer.rows:
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
            attempt.samples = estimate.samples(now_ns, infer.batch_size) if estimate else []
            if not submit.resident and not submit.attempts:
                submit.load = self._loads.find_load(infer.model, submit.arrived_ns, now_ns, attempt.worker)
            submit.attempts.append(attempt)
            self._actions[infer.action_id] = submit, attempt

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
        if found := self._actions.pop(result.action_id, None):
            submit, attempt = found
            attempt.begin_ns, attempt.end_ns, attempt.status = begin_ns, end_ns, STATUS_NAMES[result.status]
            self._add_work_before(submit, attempt, worker)
        if action.kind == "load":
            self._loads.end_load(worker, action.id, begin_ns, end_ns, STATUS_NAMES[result.status])
        else:
            self._ended.append((worker, action.share.number, action, begin_ns, end_ns))

    def _on_failure(self, now_ns: int, worker: str, status: str, ids: Sequence[int] | None = None) -> None:
        """Note that a worker is lost or hangs with these actions, or with all of its actions."""
        for action_id, (_, attempt) in self._actions.items():
            if attempt.worker == worker and not attempt.status and (ids is None or action_id in ids):
                attempt.status, attempt.failed_ns = status, now_ns

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
    sizes = (cluster.specs[model].batch_sizes if model in cluster.specs else ()) or (1,)
    size = next((size for size in sizes if size >= submit.rows), sizes[-1])
    predictions = [share.estimates[model] for share in shares if model in share.estimates]
    if predictions:
        fastest = min(predictions, key=lambda estimate: estimate.predict(now_ns, size))
        submit.expected_ns, submit.samples = fastest.predict(now_ns, size), fastest.samples(now_ns, size)
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
