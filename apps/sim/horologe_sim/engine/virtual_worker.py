"""The executors of a simulated worker, in place of the threads and the device of a real one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NEVER_NS, ms
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import Abort, Finished, LaneOperation, not_run
from horologe_sim.engine.simulated_device import LaneInTime, SimulatedDevice
from horologe_sim.engine.traceable_inputs import outputs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_gpu_worker.core.stream_step import Step
    from horologe_sim.engine.noise import Noise
    from horologe_sim.engine.simulated_device import SimModel
    from horologe_sim.engine.simulated_process import Process

SCAN_NS = ms(5)
ON_LOAD_LANE = ("load", "unload")


class Meter(msgspec.Struct):
    """Counts of a worker over all its incarnations."""

    busy_ns: Counter[int] = msgspec.field(default_factory=Counter)
    """EXEC time by share."""
    rows: Counter[tuple[str, int]] = msgspec.field(default_factory=Counter)
    """Number of batches by (model key, rows)."""
    ended: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Operations by (lane, status name)."""
    violations: list[str] = msgspec.field(default_factory=list)
    """Operations that a real device could not run: EXEC of a model that is not loaded, or outside its window."""


class WorkerDevice(SimulatedDevice):
    """The lanes of one worker process. `deliver` is attached to the process at the lanes' address."""

    def __init__(
        self,
        process: Process,
        worker: str,
        models: dict[str, SimModel],
        meter: Meter,
        noise: Noise,
        seed: Sequence[int],
    ) -> None:
        super().__init__(models, noise, seed)
        self.process = process
        self.worker = worker
        self.lanes = "lanes/" + worker.partition("/")[2]
        self.meter = meter
        self.violations = meter.violations
        self.loaded: dict[tuple[int, str], str] = {}
        """(share, model) -> content hash of the loaded copy."""
        self.streams: dict[tuple[int, str, str, int], int] = {}
        """Last step of each open stream, by share, model, owner and number."""
        self._lanes_in_time: dict[tuple[int, str], LaneInTime] = {}

    def inline_io(self, model: str) -> bool:
        """Return whether the model needs no INPUT and OUTPUT lanes."""
        return self.models[model].inline_io

    def holds(self, model: str) -> bool:
        """Return whether the model is loaded on any share."""
        return self.process.alive and any(key == model for _, key in self.loaded)

    def deliver(self, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle a message of the worker's core."""
        in_time = self._lane_of(message.share, message.lane)
        match message:
            case LaneOperation():
                in_time.lane.push(message)
                in_time.resume(self.process.now_ns)
            case Abort():
                if operation := in_time.lane.remove_operation(message.action_id):
                    self._report(not_run(operation, Status.CANCELLED, self.process.now_ns))

    def _lane_of(self, share: int, name: str) -> LaneInTime:
        key = share, "load" if name in ON_LOAD_LANE else name
        in_time = self._lanes_in_time.get(key)
        if in_time is None:
            in_time = self._lanes_in_time[key] = LaneInTime(self._begin, self._expire, self._schedule_lane)
        return in_time

    def _schedule_lane(self, at_ns: int, resume: Callable[[int], None], _: int) -> None:
        """Resume a lane at `at_ns`, or at the end of a stall."""
        self.process.schedule(at_ns, lambda: resume(self.process.now_ns))

    def _expire(self, now_ns: int, late: LaneOperation) -> None:
        self._report(not_run(late, Status.TOO_LATE, now_ns))

    def _begin(self, now_ns: int, todo: LaneOperation) -> int:
        """Start an operation. Its lane is busy until the event of its end."""
        status, reason, content_hash = Status.OK, "", None
        duration_ns = self._duration_ns(todo)
        if not todo.earliest_ns <= now_ns <= todo.latest_ns:
            self.violations.append(f"{self.worker}: {todo.lane} of {todo.model} begun outside its window")
        if todo.lane == "exec":
            content_hash = self.loaded.get((todo.share, todo.model))
            if content_hash is None:
                status, reason, duration_ns = Status.FAILED, f"{todo.model} is not loaded", 0
                self.violations.append(f"{self.worker}: EXEC of {todo.model}, which is not loaded")
            self.meter.rows[todo.model, todo.rows] += 1
            self.meter.busy_ns[todo.share] += duration_ns
        end_ns = now_ns + duration_ns
        begun = Finished(
            todo.action_id,
            todo.lane,
            status,
            now_ns,
            end_ns,
            duration_ns,
            reason=reason,
            content_hash=content_hash or "",
        )
        self.process.schedule(end_ns, self._on_done, todo, begun)
        return NEVER_NS

    def _on_done(self, todo: LaneOperation, begun: Finished) -> None:
        if (now_ns := self.process.now_ns) > begun.end_ns:  # the process stalled meanwhile
            begun = msgspec.structs.replace(begun, end_ns=now_ns, device_ns=now_ns - begun.begin_ns)
        match todo.lane:
            case "load":
                self.loaded[todo.share, todo.model] = self.models[todo.model].report.spec.content_hash
            case "replace" if (todo.share, todo.model) in self.loaded:
                self.loaded[todo.share, todo.model] = self.models[todo.model].report.spec.content_hash
            case "unload":
                self.loaded.pop((todo.share, todo.model), None)
            case "scan":
                reports = [model.report for model in self.models.values() if todo.model in ("", model.report.spec.name)]
                begun = msgspec.structs.replace(begun, models=reports)
            case "input":
                begun = msgspec.structs.replace(begun, staged=todo.inputs)
            case "end":
                self._end_streams(todo)
            case "exec" if begun.status == Status.OK and todo.step is not None:
                begun = self._run_step(todo, todo.step, begun)
            case "exec" if begun.status == Status.OK:
                model = self.models[todo.model]
                outputs = outputs_of(model.report.spec, model.skill, todo.inputs or todo.staged or (), todo.rows)
                field = "outputs" if model.inline_io else "staged"
                begun = msgspec.structs.replace(begun, **{field: outputs})
            case "output":
                begun = msgspec.structs.replace(begun, outputs=todo.staged)
        self._report(begun)
        self._lane_of(todo.share, todo.lane).release(self.process.now_ns)

    def _run_step(self, todo: LaneOperation, step: Step, begun: Finished) -> Finished:
        """Return the end of a step, with its item. A step of a stream that is not open here is LOST."""
        key, model = (todo.share, todo.model, step.owner, step.stream), self.models[todo.model]
        if self.streams.get(key, 0) != step.number - 1:
            return msgspec.structs.replace(begun, status=Status.LOST, reason="its state is not here any more")
        if more := step.number < model.items:
            self.streams[key] = step.number
        else:
            self.streams.pop(key, None)
        outputs = outputs_of(model.report.spec, None, todo.inputs, 1)
        return msgspec.structs.replace(begun, outputs=outputs, more=more)

    def _end_streams(self, todo: LaneOperation) -> None:
        for key in list(self.streams):
            share, model, owner, stream = key
            is_meant = share == todo.share and todo.model in ("", model) and owner == todo.owner
            if is_meant and (not todo.streams or stream in todo.streams):
                del self.streams[key]

    def _report(self, finished: Finished) -> None:
        self.meter.ended[finished.lane, Status(finished.status).name] += 1
        self.process.post(self.lanes, self.worker, finished)

    def _duration_ns(self, todo: LaneOperation) -> int:
        if todo.lane == "scan":
            return SCAN_NS
        if todo.lane in ("unload", "end") or todo.model not in self.models:
            return 0
        match todo.lane:
            case "input":
                return self.input_ns(todo.model, todo.rows)
            case "output":
                return self.output_ns(todo.model, todo.rows)
            case "exec":
                return self.exec_ns(self.process.now_ns, todo.model, todo.batch_size)
            case _:
                return self.load_ns(todo.model)
