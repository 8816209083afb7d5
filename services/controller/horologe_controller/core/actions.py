"""Pending actions: the messages that start them, their results and their metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.instruments import ModelCounters
from horologe_common.core.protocol import Out
from horologe_common.status import STATUS_NAMES
from horologe_common.wire import Cancel, Dispatch, Infer, Load, Row, Unload
from horologe_controller.core.cluster.dynamic_pace import profiled_slowness
from horologe_controller.core.cluster.lane import ACTION_GRACE_NS, Action
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE
from horologe_controller.core.scheduling.decisions import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from horologe_common.core.instruments import Histogram, Stats
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Register, Result
    from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
    from horologe_controller.core.cluster.lane import Lane
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.decisions import Batch, Decisions


def error_side(error_ns: int) -> str:
    """Return `over` if the prediction was too long or exact, `under` if too short (Clockwork section 6.5)."""
    return "over" if error_ns <= 0 else "under"


class Actions:
    """Pending actions by id. A request belongs to the action that its `action_id` names."""

    def __init__(self, address: str, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pending: dict[int, Action] = {}
        self._last_id = _first_id(address)

    def __iter__(self) -> Iterator[Action]:
        return iter(self._pending.values())

    def open_requests(self) -> list[Request]:
        """Return the requests that wait for an action."""
        return [request for action in self._pending.values() for request in action.open_requests()]

    def carry_out(self, now_ns: int, plan: Decisions, out: list[Out]) -> None:
        """Add the messages to workers and holders for a plan to `out`, in its order, and update the mirror."""
        out += [self._unload(share, model) for share, model in plan.unload]
        out += [self.load_model(now_ns, share, model) for share, model in plan.load]
        for batch in plan.start:
            out += self._start_batch(now_ns, batch)

    def adopt_loads(self, now_ns: int, worker: WorkerMirror, message: Register) -> None:
        """Adopt LOADs that a previous controller started: the worker sends their Results to this one."""
        for report in message.shares:
            share = worker.shares[report.share]
            pending = (*share.load.pending.values(), *share.beside.pending.values())
            pending_models = {action.model for action in pending}
            for model, action_id in report.loading:
                if model in share.loading and model not in pending_models:
                    expected_ns = share.predict(now_ns, model, LOAD_SIZE) if share.find_estimate(model) else 0
                    self._append_load(action_id, now_ns, share, model, now_ns, expected_ns)

    def unload_unservable(self, unservable: Iterable[tuple[Share, str]]) -> Iterator[Out]:
        """Yield UNLOADs of models that their share cannot run. INFERs that arrive after them are planned again."""
        for share, model in unservable:
            if not share.is_lost and share.find_estimate(model) is None:
                yield self._unload(share, model)

    def unload_models(self, models: Iterable[str]) -> Iterator[Out]:
        """Yield UNLOADs of models on all shares where they are resident."""
        for model in models:
            for share, resident in list(self._cluster.residency.shares_of.get(model, {}).items()):
                if resident:
                    yield self._unload(share, model)

    def finish_action(self, now_ns: int, sender: str, result: Result) -> tuple[Action, int] | None:
        """Return the action of a Result and its end in the controller's clock; None if it is not pending there."""
        action = self._pending.get(result.action_id)
        if action is None or action.share.worker != sender:
            return None
        del self._pending[action.id]
        end_ns = min(now_ns, result.end_ns - self._cluster.workers[sender].offset_ns())
        _lane(action).finish_action(action, end_ns)
        self._cluster.changes.mark_share(action.share)
        return action, end_ns

    def drop_worker(self, worker: str) -> list[Request]:
        """Drop the actions of a worker that has disconnected, and return their open requests."""
        dropped = [action for action in self._pending.values() if action.share.worker == worker]
        for action in dropped:
            del self._pending[action.id]
        return [request for action in dropped for request in action.open_requests()]

    def find_overdue(self, now_ns: int) -> tuple[list[Request], list[Out]]:
        """Return the open requests of shares whose oldest action is overdue, and Cancels for their workers.

        The lanes stay busy: nothing is planned there until a Result arrives. A worker that waits for inputs of a lost
        holder drops the action on Cancel. Otherwise it would wait until the window closes.
        """
        requests, outs = [], []
        for worker in self._cluster.workers.values():
            for share in worker.shares.values():
                if share.exec.is_overdue(now_ns):
                    for action in share.exec.pending.values():
                        requests += action.open_requests()
                    outs.append(Out(worker.address, Cancel(tuple(share.exec.pending))))
        return requests, outs

    def _start_batch(self, now_ns: int, batch: Batch) -> list[Out]:
        """Return an INFER for the worker, and for each holder a Dispatch of the inputs that it has to ship."""
        share, action = batch.share, self._append_infer(now_ns, batch)
        share.mark_used(batch.model)
        if batch.requests[0].step is not None:
            share.last_step_ns[batch.model] = now_ns
        parties: dict[str, int] = {}
        rows = []
        inputs: dict[str, list[int]] = {}
        for request in batch.requests:
            request.action_id = action.id
            address, input_id, step = request.holder, request.input_id, request.step
            stream, number = (step.stream, step.number) if step is not None else (0, 0)
            if number <= 1:  # later steps of a stream have no inputs
                if (input_ids := inputs.get(address)) is None:
                    input_ids = inputs[address] = []
                input_ids.append(input_id)
            holder = parties.setdefault(address, len(parties))
            submitter = parties.setdefault(request.submitter, len(parties))
            rows.append(Row(holder, input_id, submitter, request.submit_id, request.rows, stream, number))
        offset_ns = self._cluster.workers[share.worker].offset_ns()
        infer = Infer(
            action.id,
            share.number,
            batch.model,
            batch.batch_size,
            tuple(rows),
            tuple(parties),
            now_ns + offset_ns,
            batch.latest_ns + offset_ns,
            batch.expected_ns,
            self._slowness(batch),
        )
        outs = [Out(share.worker, infer)]
        for address, input_ids in inputs.items():
            outs.append(Out(address, Dispatch(action.id, share.worker, tuple(input_ids))))
        return outs

    def _slowness(self, batch: Batch) -> float:
        """Return `Infer.slowness`: distributions, which the profiler makes of such runs, are of the fastest share."""
        share = batch.share
        if not batch.requests[0].solo or batch.model not in share.estimates:
            return 1.0
        return profiled_slowness(self._cluster, share, batch.requests[0].spec)

    def load_model(self, now_ns: int, share: Share, model: str) -> Out:
        """Return a LOAD, and reserve the model's pages."""
        share.reserve_pages(model, self._cluster.specs[model].pages, loading=True)
        expected_ns = share.predict(now_ns, model, LOAD_SIZE)
        start_ns = share.loads_free_at(now_ns)
        action = self._append_load(self._next_id(), now_ns, share, model, start_ns, expected_ns)
        worker = self._cluster.workers[share.worker]
        earliest_ns = now_ns + worker.offset_ns()
        latest_ns = earliest_ns + (action.promised_ns - now_ns) + ACTION_GRACE_NS
        load = Load(action.id, share.number, model, earliest_ns, latest_ns, expected_ns, worker.last_register)
        return Out(share.worker, load)

    def _unload(self, share: Share, model: str) -> Out:
        """Return an UNLOAD. It is not pending: its pages are free at once."""
        share.unload_model(model)
        registration = self._cluster.workers[share.worker].last_register
        return Out(share.worker, Unload(self._next_id(), share.number, model, registration))

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _append_infer(self, now_ns: int, batch: Batch) -> Action:
        share, size, estimate = batch.share, batch.batch_size, batch.share.estimates.get(batch.model)
        slack_ns = estimate.slack_ns(size) if estimate else 0
        action = Action(
            self._next_id(),
            share,
            batch.model,
            size,
            batch.requests,
            now_ns,
            batch.start_ns,
            batch.expected_ns,
            slack_ns,
        )
        self._append(action)
        return action

    def _append_load(
        self, action_id: int, now_ns: int, share: Share, model: str, start_ns: int, expected_ns: int
    ) -> Action:
        spec = self._cluster.specs.get(model)
        is_beside = spec is not None and spec.loads_beside
        action = Action(action_id, share, model, LOAD_SIZE, [], now_ns, start_ns, expected_ns, is_beside=is_beside)
        self._append(action)
        return action

    def _append(self, action: Action) -> None:
        """Put an action in a lane of its share, and await its Result."""
        self._pending[action.id] = action
        _lane(action).append_action(action)


def _first_id(address: str) -> int:
    """Return a first action id that depends on the incarnation: workers may still hold actions of an earlier one."""
    return int(address.partition("#")[2] or "0", 16) << 31


def _lane(action: Action) -> Lane:
    if action.is_beside:
        return action.share.beside
    return action.share.exec if action.kind == "infer" else action.share.load


class ModelTotals:
    """Executed work of a model since the start. `batch_rows` counts the batches by their rows."""

    def __init__(self, batch_rows: Histogram) -> None:
        self.batch_rows = batch_rows
        self.exec_ns = 0
        self.expected_ns = 0


class ActionMetrics:
    """Counts of actions and requests. Totals per model are plain numbers until `publish` turns them into metrics."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._models: dict[tuple[str, str], ModelTotals] = {}
        self.refusals = ModelCounters(stats, "horologe_refused_total", tuple(Reason))
        failures = "REFUSED", "FAILED", "TOO_LATE", "MISSING_INPUT"
        stats.create_counters("horologe_actions_total", ("load", "infer"), failures)
        self.admission_slack = stats.create_histogram("horologe_admission_slack_seconds")

    def record_result(self, action: Action, result: Result, took_ns: int, end_ns: int) -> None:
        """Count an action that ended at `end_ns` in the controller's clock, and the errors of its predictions."""
        stats = self._stats
        stats.count("horologe_actions_total", action.kind, STATUS_NAMES[result.status])
        if result.status:
            return
        if not result.rows:  # with missing rows, a smaller batch ran than the one predicted
            error_ns, late_ns = took_ns - action.expected_ns, end_ns - action.promised_ns
            side = error_side(error_ns)
            stats.observe("horologe_prediction_error_seconds", action.kind, side, value=abs(error_ns))
            side = error_side(late_ns)
            stats.observe("horologe_completion_error_seconds", action.kind, side, value=abs(late_ns))
        if action.requests:
            spec = action.requests[0].spec
            labels = spec.name, spec.version
            rows = sum([request.rows for request in action.requests])
            if result.rows:
                rows -= sum([action.requests[row.id].rows for row in result.rows])
            if spec.streams:
                rows = len(action.requests)  # a first step counts as two rows
            totals = self._models.get(labels)
            if totals is None:
                batch_rows = stats.create_histogram("horologe_batch_rows", *labels)
                totals = self._models[labels] = ModelTotals(batch_rows)
            totals.batch_rows.observe(rows)
            totals.exec_ns += took_ns
            totals.expected_ns += action.expected_ns

    def publish(self, specs: Iterable[ModelSpec]) -> None:
        """Set the metrics of executed work, and create the counters of refusals of the models."""
        stats = self._stats
        self.refusals.announce(specs)
        for labels, totals in list(self._models.items()):
            self.refusals.create(*labels)
            stats.set("nv_inference_exec_count", *labels, to=totals.batch_rows.total)
            stats.set("nv_inference_count", *labels, to=totals.batch_rows.sum)
            stats.set("nv_inference_compute_infer_duration_us", *labels, to=totals.exec_ns // 1000)
            stats.set("horologe_exec_seconds_total", *labels, to=totals.exec_ns / 1e9)
            stats.set("horologe_expected_exec_seconds_total", *labels, to=totals.expected_ns / 1e9)
