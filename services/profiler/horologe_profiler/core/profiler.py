"""The profiler: learns how long requests take when they run alone, off everybody's critical path (ORLOJ, section 3.2).

Sample (from a holder) -> wait -> Submit, best effort and solo -> Outputs (from the worker) say how long it took
-> memory -> now and then Distributions to the controller, and the memory to the store.
Nobody waits for a profiler: what it cannot keep, submit or get back, it forgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.core.staging import StagedInputs
from horologe_common.service.metrics import Stats
from horologe_common.status import Status
from horologe_common.wire import Cancel, Dispatch, Models, Outcome, Outputs, Sample, Submit
from horologe_profiler.core.active_runs import Runs
from horologe_profiler.core.batch_fit import Point
from horologe_profiler.core.histograms import distributions
from horologe_profiler.core.measurements import Key, Memory, Took, bound_of
from horologe_profiler.core.publication import News
from horologe_profiler.core.sample_queue import Task, Waiting
from horologe_profiler.core.sample_rows import first_row, repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_profiler.core.measurements import Kept, Part
    from horologe_profiler.settings import ProfilerSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


class Profiler:
    """Core of the profiler. It puts out a `Kept` for the address `store` when something has been learned."""

    def __init__(self, address: str, settings: ProfilerSettings) -> None:
        self.address = address
        self.store = "store/" + address.partition("/")[2]
        self.settings = settings
        self.out: list[Out] = []
        self.staging = StagedInputs(address, settings.staging_bytes)
        self.memory = Memory(settings)
        self.stats = Stats()
        self._specs: dict[str, ModelSpec] = {}
        self._waiting = Waiting(self.memory.known)
        self._runs = Runs(settings)
        self._news = News(settings.publish_ns)
        self._controller = ""
        self._last_id = 0
        self._handlers: dict[type, Handler] = {
            Sample: self._sample,
            Dispatch: self._ship,
            Outputs: self._outputs,
            Outcome: self._outcome,
            Models: self._announced,
            PeerConnected: self._joined,
            PeerDisconnected: self._gone,
        }

    def restore(self, now_ns: int, kept: Kept, away_ns: int) -> None:
        """What an earlier incarnation had learned `away_ns` ago."""
        self.memory.restore(now_ns, kept, away_ns)
        self._news.again(self.memory.models())

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a holder, a worker, the controller or the loop."""
        if handler := self._handlers.get(type(message)):
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Give up what has not come back, run what may be run, and tell what is new."""
        for overdue in self._runs.overdue(now_ns):
            self.out.append(Out(self._controller, Cancel((overdue.id,))))
            self._runs.failed(now_ns)
            self._ended(overdue, "LOST")
        while self._can_run() and now_ns >= self._runs.free_ns() and (task := self._waiting.take(self._runs.models)):
            self._run(now_ns, task)
        due_ns = self._news.due_ns(self._audience())
        if due_ns is not None and now_ns >= due_ns:
            self._publish(now_ns)

    def wakeup_ns(self) -> int | None:
        times = [self._runs.next_overdue_ns(), self._news.due_ns(self._audience())]
        if self._can_run() and self._waiting.ready(self._runs.models):
            times.append(self._runs.free_ns())
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def pending(self) -> int:
        """Runs under way."""
        return len(self._runs)

    def refresh_stats(self) -> None:
        """Bring what follows from other state up to date, before it is read."""
        self.stats.set("horologe_profiler_waiting", to=len(self._waiting))
        self.stats.set("horologe_profiler_parts", to=len(self.memory))
        self.stats.set("horologe_staged_bytes", to=self.staging.held_bytes)

    def check(self) -> None:
        """Every staged row waits or runs."""
        self.staging.check()
        self.memory.check()
        self._waiting.check()
        self._runs.check()
        assert set(self.staging.ids()) == {task.id for task in (*self._waiting, *self._runs)}

    # samples

    def _sample(self, now_ns: int, sender: str, message: Sample, buffers: Sequence[Buffer]) -> None:
        spec = self._specs.get(message.model)
        if spec is None:
            return
        key = Key(message.model, message.application, bound_of(message.length))
        part, rows = self.memory.sampled(now_ns, key), message.rows if spec.batched else 1
        fate = "taken"
        if not self._wanted(now_ns, part):
            fate = "known"
        elif len(self._waiting) >= self.settings.keys_max or not self._hold(key, message, buffers, rows):
            fate = "no_room"
        self.stats.count("horologe_profiler_samples_total", spec.name, spec.version, fate)

    def _hold(self, key: Key, message: Sample, buffers: Sequence[Buffer], rows: int) -> bool:
        """Stage its first row, which waits from now on; False without room."""
        inputs, row_buffers = first_row(message.inputs, buffers, rows)
        task = Task(self._new_id(), key, message.length, self._last_id)
        if not self.staging.hold(task.id, inputs, row_buffers):
            return False
        if displaced := self._waiting.push(task):
            self.staging.release(displaced.id)
        return True

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _wanted(self, now_ns: int, part: Part) -> bool:
        return len(part.times) < self.settings.enough or now_ns >= part.due_ns

    # runs

    def _can_run(self) -> bool:
        return bool(self._controller) and self._runs.room()

    def _run(self, now_ns: int, task: Task) -> None:
        """Submit it, unless it is not wanted any more or there is no room."""
        part = self.memory.part(task.key)
        if part is None or not (self._wanted(now_ns, part) if task.size == 1 else self._repeat(task)):
            self.staging.release(task.id)
            return
        if task.size == 1:
            part.due_ns = now_ns + self.settings.steady_ns
        self._runs.begin(now_ns, task)
        self.out.append(
            Out(
                self._controller,
                Submit(
                    task.id,
                    task.key.model,
                    self.settings.budget_ns,
                    task.size,
                    self.address,
                    task.id,
                    True,
                    0,
                    task.length,
                    task.key.application,
                    True,
                ),
            )
        )

    def _repeat(self, task: Task) -> bool:
        """Stage the batch instead of its row; False without room."""
        held = self.staging.inputs_of(task.id)
        return held is not None and self.staging.hold(task.id, *repeated(*held, task.size))

    def _outputs(self, now_ns: int, worker: str, message: Outputs, buffers: Sequence[Buffer]) -> None:
        """A run has ended. `end_ns` less `begin_ns` is its EXEC and nothing else's: a solo action has no other rows."""
        for item in message.items:
            if (task := self._runs.get(item.id)) is None:
                continue
            took_ns = message.end_ns - message.begin_ns
            self._runs.took(now_ns, took_ns)
            if item.status == Status.OK and len(message.items) == 1 and took_ns > 0:
                self._learn(now_ns, task, message.batch_size, took_ns)
            self._ended(task, Status(item.status).name)

    def _learn(self, now_ns: int, task: Task, size: int, took_ns: int) -> None:
        model, point = task.key.model, Point(size, task.length, took_ns, task.row)
        if task.size > 1:
            self.memory.tried(now_ns, model, point)
        else:
            self.memory.observe(task.key, Took(now_ns, task.length, took_ns))
            if self.memory.batches_due(now_ns, model):
                self.memory.tried(now_ns, model, point)
                self._try_batches(task, took_ns)
        self._news.learned(model)

    def _try_batches(self, task: Task, took_ns: int) -> None:
        """Have the row run in batches of it alone, next, as far as they cannot take too long."""
        spec, held = self._specs.get(task.key.model), self.staging.inputs_of(task.id)
        if spec is None or held is None or not spec.batched:
            return
        for size in reversed(spec.batch_sizes[1:]):
            if took_ns * size <= self.settings.longest_ns:
                batch = msgspec.structs.replace(task, id=self._new_id(), size=size)
                if self.staging.hold(batch.id, *held):
                    self._waiting.first(batch)

    def _outcome(self, now_ns: int, controller: str, outcome: Outcome, buffers: Sequence[Buffer]) -> None:
        """Refused, lost, failed: another sample will come."""
        if task := self._runs.get(outcome.id):
            self._runs.failed(now_ns)
            self._ended(task, Status(outcome.status).name)

    def _ship(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        self.out.append(self.staging.answer_dispatch(dispatch))

    def _ended(self, task: Task, status: str) -> None:
        """The one end of a run."""
        self._runs.end(task)
        self.staging.release(task.id)
        if spec := self._specs.get(task.key.model):
            self.stats.count("horologe_profiler_runs_total", spec.name, spec.version, status)

    # what is told

    def _audience(self) -> dict[str, ModelSpec]:
        """The models that a controller serves now."""
        return self._specs if self._controller else {}

    def _publish(self, now_ns: int) -> None:
        """To the controller what has changed, to the store everything."""
        models, unsaved = self._news.take(now_ns, self._audience())
        if unsaved:
            self.out.append(Out(self.store, self.memory.stored(now_ns)))
        for model in models:
            spec = self._specs[model]
            message, found = distributions(self.memory, model)
            self.out.append(Out(self._controller, message))
            self.stats.count("horologe_profiler_published_total", spec.name, spec.version)
            if found is not None:
                self.stats.set("horologe_profiler_fit_error", spec.name, spec.version, to=found.median_error)

    # peers

    def _announced(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        """What of a model's rows waits goes with it; runs are answered by the controller."""
        self._specs = {state.spec.key: state.spec for state in message.models if state.state != "UNAVAILABLE"}
        for key, spec in self._specs.items():
            if self.memory.know(key, spec.content_hash):
                self._news.learned(key)
        for task in self._waiting.drop(self._specs):
            self.staging.release(task.id)

    def _joined(self, now_ns: int, sender: str, message: PeerConnected, buffers: Sequence[Buffer]) -> None:
        """A controller, which knows nothing yet."""
        if role(message.address) == "controller":
            self._lost_controller()
            self._controller = message.address
            self._news.again(self.memory.models())

    def _gone(self, now_ns: int, sender: str, message: PeerDisconnected, buffers: Sequence[Buffer]) -> None:
        if message.address == self._controller:
            self._lost_controller()

    def _lost_controller(self) -> None:
        """Its runs are not heard of again: a worker may still end one, whose time is then not taken."""
        self._controller = ""
        for task in self._runs:
            self._ended(task, "LOST")
