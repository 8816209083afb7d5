"""Profiler core: measures how long requests take when they run alone, off the critical path (ORLOJ, section 3.2).

Sample (from a holder) -> queue -> Submit, best effort and solo -> Outputs (from the worker) with the execution time ->
measurements -> periodically Distributions to the controller, and the state to the state file. No client waits for the
profiler: it drops samples that it cannot hold, submit or finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.instruments import ModelCounters, Stats
from horologe_common.core.message_checks import INVALID_MESSAGES, check_range, check_sender
from horologe_common.core.message_order import AnnouncementOrder
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.core.staging import StagedInputs
from horologe_common.status import STATUS_NAMES, InvalidInput, Status
from horologe_common.wire import Cancel, Dispatch, Models, Outcome, Outputs, Sample, Submit
from horologe_profiler.core.batch_fit import SIZE_MAX, TIME_MAX_NS, Point
from horologe_profiler.core.comparisons import Comparisons
from horologe_profiler.core.measurements import MeasurementKey, Measurements, RowTime, length_bound
from horologe_profiler.core.profiling_rules import ProfilingRules
from horologe_profiler.core.profiling_tasks import (
    ActiveRuns,
    BatchTrials,
    ProfilingTask,
    SampleQueue,
    check_sample,
    copy_first_row,
)
from horologe_profiler.core.publication import PublicationSchedule, build_distributions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_profiler.core.measurements import ProfilerState, TimeWindow
    from horologe_profiler.settings import ProfilerSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]
FAILURES = ("FAILED", "REFUSED", "LATE", "LOST")
"""Statuses of failed runs. Their counters start at 0."""
SLOWNESS_MAX = 1e6
RULES = ProfilingRules()


class Profiler:
    """Core of the profiler. Emits a `ProfilerState` for the address `store` when measurements have changed."""

    def __init__(self, address: str, settings: ProfilerSettings, rules: ProfilingRules = RULES) -> None:
        self.address = address
        self.store = "store/" + address.partition("/")[2]
        self.settings = settings
        self.rules = rules
        self.out: list[Out] = []
        self.staging = StagedInputs(address, settings.staging_bytes)
        self.measurements = Measurements(rules)
        self.stats = Stats()
        self._run_counts = ModelCounters(self.stats, "horologe_profiler_runs_total", FAILURES)
        self._specs: dict[str, ModelSpec] = {}
        self._queue = SampleQueue(self.measurements.count_times)
        self._runs = ActiveRuns(settings, rules)
        self._comparisons = Comparisons(rules.comparison_interval_ns, self.staging, self._queue, self._new_id)
        self._batch_trials = BatchTrials(rules.batch_time_max_ns, self.staging, self._queue, self._new_id)
        self._publications = PublicationSchedule(rules.publish_interval_ns)
        self._controller = ""
        self._announcements = AnnouncementOrder()
        self._last_id = 0
        self._handlers: dict[type, Handler] = {
            Sample: self._on_sample,
            Dispatch: self._on_dispatch,
            Outputs: self._on_outputs,
            Outcome: self._on_outcome,
            Models: self._on_models,
            PeerConnected: self._on_peer_connected,
            PeerDisconnected: self._on_peer_disconnected,
        }

    def restore(self, now_ns: int, state: ProfilerState, away_ns: int) -> list[str]:
        """Load the measurements that an earlier incarnation stored `away_ns` ago. Return what is not valid, and why."""
        dropped = self.measurements.restore(now_ns, state, away_ns)
        self._comparisons.verdicts = dict(state.verdicts)
        self._last_id = self.measurements.last_row()  # a new row must not have the number of a stored one
        self._publications.publish_soon(self.measurements.model_keys())
        return dropped

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle one message from a holder, a worker, the controller or the event loop."""
        if handler := self._handlers.get(type(message)):
            try:
                handler(now_ns, sender, message, buffers)
            except InvalidInput:
                self.stats.count(INVALID_MESSAGES, type(message).__name__)

    def tick(self, now_ns: int) -> None:
        """Give up overdue runs, start runs, and publish changed models."""
        for overdue in self._runs.overdue_tasks(now_ns):
            self.out.append(Out(self._controller, Cancel((overdue.id,))))
            self._runs.pause_after_failure(now_ns)
            self._finish_run(now_ns, overdue, "LOST")
        while (
            self._can_run()
            and now_ns >= self._runs.next_start_ns()
            and (task := self._queue.pop_next(self._runs.running_models))
        ):
            self._start_run(now_ns, task)
        due_ns = self._publications.next_publication_ns(self._served_models())
        if due_ns is not None and now_ns >= due_ns:
            self._publish(now_ns)

    def wakeup_ns(self) -> int | None:
        times = [self._runs.next_overdue_ns(), self._publications.next_publication_ns(self._served_models())]
        if self._can_run() and self._queue.has_runnable(self._runs.running_models):
            times.append(self._runs.next_start_ns())
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def pending(self) -> int:
        return len(self._runs)

    def refresh_stats(self) -> None:
        self.stats.set("horologe_profiler_queued_samples", to=len(self._queue))
        self.stats.set("horologe_profiler_keys", to=len(self.measurements))
        self.stats.set("horologe_staged_bytes", to=self.staging.held_bytes)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. Every staged row is queued, runs or is compared."""
        self.staging.check()
        self.measurements.check()
        self._queue.check()
        self._runs.check()
        tasks = (*self._queue, *self._runs, *self._comparisons.staged_tasks())
        assert set(self.staging.ids()) == {task.id for task in tasks}

    def _on_sample(self, now_ns: int, sender: str, message: Sample, buffers: Sequence[Buffer]) -> None:
        spec = self._specs.get(message.model)
        if spec is None:
            return
        check_sample(spec, message, buffers)
        key = MeasurementKey(message.model, message.application, length_bound(message.length))
        window, rows = self.measurements.record_sample(now_ns, key), message.rows if spec.batched else 1
        fate = "queued"
        if not self._needs_run(now_ns, key, window):
            fate = "not_needed"
        elif len(self._queue) >= self.rules.keys_max or not self._stage_row(key, message, buffers, rows):
            fate = "dropped"
        self.stats.count("horologe_profiler_samples_total", spec.name, spec.version, fate)

    def _stage_row(self, key: MeasurementKey, message: Sample, buffers: Sequence[Buffer], rows: int) -> bool:
        """Stage the first row of the sample and queue it. Return False if the staging memory is full."""
        inputs, row_buffers = copy_first_row(message.inputs, buffers, rows)
        task = ProfilingTask(self._new_id(), key, message.length, self._last_id)
        if not self.staging.hold(task.id, inputs, row_buffers):
            return False
        if displaced := self._queue.push(task):
            self.staging.release(displaced.id)
        return True

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _needs_run(self, now_ns: int, key: MeasurementKey, window: TimeWindow) -> bool:
        return (
            len(window.times) < self.rules.initial_runs
            or now_ns >= window.next_run_ns
            or self._comparisons.wants_row(now_ns, key.model)
        )

    def _can_run(self) -> bool:
        return bool(self._controller) and self._runs.has_room()

    def _start_run(self, now_ns: int, task: ProfilingTask) -> None:
        """Submit the task. Drop it if its run is no longer needed or the staging memory is full."""
        window = self.measurements.get_window(task.key)
        if window is None or not self._is_wanted(now_ns, task, window):
            self.staging.release(task.id)
            self._comparisons.drop_task(now_ns, task)
            return
        if task.size == 1:
            window.next_run_ns = now_ns + self.rules.rerun_interval_ns
        self._runs.start_run(now_ns, task)
        key, first_wait_ns = task.key, self.settings.first_wait_ns if self._is_first(task.key.model) else 0
        submit = Submit(
            task.id,
            key.model,
            self.rules.budget_ns,
            task.size,
            self.address,
            task.id,
            best_effort=True,
            length=task.length,
            application=key.application,
            solo=True,
            urgent_after_ns=first_wait_ns,
        )
        self.out.append(Out(self._controller, submit))

    def _is_first(self, model: str) -> bool:
        """Return whether a run of the model is one of the first: its inputs have not been compared."""
        return bool(self.rules.comparison_interval_ns) and self._comparisons.is_open(model)

    def _is_wanted(self, now_ns: int, task: ProfilingTask, window: TimeWindow) -> bool:
        """Return whether the task still has to run, with its inputs staged."""
        if task.size > 1:
            return self._batch_trials.stage_batch(task)
        return task.round > 0 or self._needs_run(now_ns, task.key, window)

    def _on_outputs(self, now_ns: int, worker: str, message: Outputs, buffers: Sequence[Buffer]) -> None:
        """Record the execution time of a run, on the fastest device: `end_ns` - `begin_ns`, as no other rows ran."""
        check_sender(worker, "worker")
        took_ns = self._checked_time(message)
        for item in message.items:
            if (task := self._runs.get(item.id)) is None:
                continue
            self._runs.charge_device_time(now_ns, took_ns, self._is_first(task.key.model))
            solo = item.status == Status.OK and len(message.items) == 1 and took_ns > 0 and message.batch_size > 0
            if solo and self._is_served_content(task.key.model, message.content_hash):
                took_alone_ns = min(max(1, int(took_ns / message.slowness)), TIME_MAX_NS)
                self._record_run(now_ns, task, Point(message.batch_size, task.length, took_alone_ns, task.row))
            self._finish_run(now_ns, task, STATUS_NAMES[item.status])

    def _checked_time(self, message: Outputs) -> int:
        """Return the execution time; 0, which is not recorded, if it or what divides it is out of range."""
        took_ns = message.end_ns - message.begin_ns
        try:
            check_range("end_ns - begin_ns", took_ns, 0, TIME_MAX_NS)
            check_range("slowness", message.slowness, 1 / SLOWNESS_MAX, SLOWNESS_MAX)
            check_range("batch_size", message.batch_size, 0, SIZE_MAX)
        except InvalidInput:
            self.stats.count(INVALID_MESSAGES, "Outputs")
            return 0
        return took_ns

    def _is_served_content(self, model: str, content_hash: str) -> bool:
        """Return False for a run on another content of the model, which measurements must not mix. Empty: not known."""
        return content_hash in ("", self.measurements.contents.get(model, ""))

    def _record_run(self, now_ns: int, task: ProfilingTask, point: Point) -> None:
        model, took_ns = task.key.model, point.took_ns
        if task.size > 1:
            self.measurements.record_batch_time(now_ns, model, point)
        else:
            if not task.round and self.measurements.record_row_time(task.key, RowTime(now_ns, task.length, took_ns)):
                self._comparisons.compare_soon(model)
            self._comparisons.record_run(now_ns, task, took_ns)
            if self.measurements.claim_batch_trial(now_ns, model):
                self.measurements.record_batch_time(now_ns, model, point)
                if spec := self._specs.get(model):
                    self._batch_trials.queue_batches(task, spec, took_ns)
        self._publications.mark_changed(model)

    def _on_outcome(self, now_ns: int, controller: str, outcome: Outcome, buffers: Sequence[Buffer]) -> None:
        check_sender(controller, "controller")
        if task := self._runs.get(outcome.id):
            self._runs.pause_after_failure(now_ns)
            self._finish_run(now_ns, task, STATUS_NAMES[outcome.status])

    def _on_dispatch(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        self.out.extend(self.staging.answer_dispatch(dispatch))

    def _finish_run(self, now_ns: int, task: ProfilingTask, status: str) -> None:
        """Finish a run: release its inputs and count its status. Each run is finished exactly once."""
        self._runs.finish_run(task)
        self.staging.release(task.id)
        if status != "OK":
            self._comparisons.drop_task(now_ns, task)
        if spec := self._specs.get(task.key.model):
            self._run_counts.count(spec.name, spec.version, status)

    def _served_models(self) -> dict[str, ModelSpec]:
        """Return the models that a controller serves; none if no controller is connected."""
        return self._specs if self._controller else {}

    def _publish(self, now_ns: int) -> None:
        """Send changed distributions to the controller, and all measurements to the state file."""
        models, unsaved = self._publications.pop_due(now_ns, self._served_models())
        if unsaved:
            self.out.append(Out(self.store, self.measurements.to_state(now_ns, self._comparisons.verdicts)))
        for model in models:
            spec = self._specs[model]
            dynamic = self._comparisons.is_dynamic(model)
            message, fitted = build_distributions(self.measurements, model, dynamic=dynamic)
            self.out.append(Out(self._controller, message))
            self.stats.count("horologe_profiler_published_total", spec.name, spec.version)
            if fitted is not None:
                self.stats.set("horologe_profiler_fit_error", spec.name, spec.version, to=fitted.median_error)

    def _on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        """Update the served models, and drop the queued rows of other models. Runs in flight still end.

        The content of a model that no worker has read yet is not known: what was measured stays valid until it is.
        """
        check_sender(controller, "controller")
        if not self._announcements.accept(controller, message.number):
            return
        available = {state.spec.key: state.spec for state in message.models if state.state != "UNAVAILABLE"}
        announced = {key: spec for key, spec in available.items() if spec.has_signature}
        earlier = {key: spec for key, spec in self._specs.items() if message.incomplete or key in available}
        self._specs = earlier | announced
        self._run_counts.announce(self._specs.values())
        for key, spec in self._specs.items():
            if self.measurements.set_content(key, spec.content_hash):
                self._publications.mark_changed(key)
                self._comparisons.discard_model(key)
        for task in self._queue.drop_other_models(self._specs):
            self.staging.release(task.id)
        self._comparisons.keep_models(available | self._specs)

    def _on_peer_connected(self, now_ns: int, sender: str, peer: PeerConnected, buffers: Sequence[Buffer]) -> None:
        """Publish all measurements to a controller that connects, and ship what has waited for a worker."""
        if role(peer.address) == "controller":
            self._drop_controller(now_ns)
            self._controller = peer.address
            self._announcements.connect(peer.address)
            self._publications.publish_soon(self.measurements.model_keys())
        elif role(peer.address) == "worker":
            self.out.extend(self.staging.add_worker(peer.address, peer.max_frame_bytes))

    def _on_peer_disconnected(self, now_ns: int, sender: str, peer: PeerDisconnected, _: Sequence[Buffer]) -> None:
        self.staging.remove_worker(peer.address)
        if peer.address == self._controller:
            self._drop_controller(now_ns)

    def _drop_controller(self, now_ns: int) -> None:
        """Finish all runs as LOST: a new controller does not know them. A worker's late result is ignored."""
        self._announcements.disconnect(self._controller)
        self._controller = ""
        for task in self._runs:
            self._finish_run(now_ns, task, "LOST")
