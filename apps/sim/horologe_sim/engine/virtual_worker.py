"""The executors of a simulated worker: the lanes (`Lane`) of the real one, in virtual time.

A duration is the model's profile with noise by seed. If a model has an input and an output of equal datatype and shape,
the output returns the rows of the input, so that tests detect swapped answers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms
from horologe_common.models import DTYPES, nbytes
from horologe_common.status import Status
from horologe_common.wire import ModelReport, Tensor
from horologe_gpu_worker.core.lanes import Abort, Finished, Lane, Operation, not_run
from horologe_sim.engine.noise import Draws
from horologe_sim.engine.traceable_inputs import LABEL, labels, zeros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.interference.colocation import CoLocatedModel
    from horologe_sim.engine.noise import Noise
    from horologe_sim.engine.simulated_process import Process
    from horologe_sim.engine.traceable_inputs import Skill

SCAN_NS = ms(5)
ON_LOAD_LANE = ("load", "unload")
CO_LOCATED_LANES = ("input", "exec", "output")


class SimModel(msgspec.Struct, frozen=True):
    """A model with the times of its simulated device. Transfers are per row. If they are 0, EXEC includes them."""

    report: ModelReport
    input_ns: int = 0
    output_ns: int = 0
    base_ns: int = 0
    """Dynamic models: time of a batch without its rows."""
    skill: Skill | None = None
    """Classifiers, whose output is `LABEL`: their accuracy."""
    noise: Noise | None = None
    """Noise of its EXECs. None: the noise of the device."""
    co_located: CoLocatedModel | None = None
    """Its times on a share of a device, with noise of their own. None: the times of the profile."""

    @property
    def inline_io(self) -> bool:
        return not (self.input_ns or self.output_ns or self.co_located)


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


class Runner:
    """A lane, and whether it runs an operation."""

    __slots__ = ("busy", "lane", "wake", "wake_ns")

    def __init__(self) -> None:
        self.lane = Lane()
        self.busy = False
        self.wake: int | None = None
        self.wake_ns = 0


class Device:
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
        self.process = process
        self.worker = worker
        self.lanes = "lanes/" + worker.partition("/")[2]
        self.models = models
        self.meter = meter
        self.loaded: dict[tuple[int, str], str] = {}
        """(share, model) -> content hash of the loaded copy."""
        self.slowness = 1.0
        """Factor on all durations."""
        self._draws = Draws(noise, seed)
        self._own = {
            key: Draws(one.noise, [*seed, number]) for number, (key, one) in enumerate(models.items()) if one.noise
        }
        self._runners: dict[tuple[int, str], Runner] = {}

    def inline_io(self, model: str) -> bool:
        """Return whether the model needs no INPUT and OUTPUT lanes."""
        return self.models[model].inline_io

    def holds(self, model: str) -> bool:
        """Return whether the model is loaded on any share."""
        return self.process.alive and any(key == model for _, key in self.loaded)

    def deliver(self, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle a message of the worker's core."""
        match message:
            case Operation():
                runner = self._runner(message)
                runner.lane.push(message)
                self._start_next(runner)
            case Abort():
                runner = self._runner(message)
                if operation := runner.lane.remove_operation(message.action_id):
                    self._report(not_run(operation, Status.CANCELLED, self.process.now_ns))

    def _runner(self, message: Operation | Abort) -> Runner:
        lane = "load" if message.lane in ON_LOAD_LANE else message.lane
        runner = self._runners.get((message.share, lane))
        if runner is None:
            runner = self._runners[message.share, lane] = Runner()
        return runner

    def _start_next(self, runner: Runner) -> None:
        """Start the next operation, or set a timer for it."""
        if runner.busy:
            return
        now_ns = self.process.now_ns
        while (late := runner.lane.pop_expired(now_ns)) is not None:
            self._report(not_run(late, Status.TOO_LATE, now_ns))
        todo = runner.lane.pop_startable(now_ns)
        if isinstance(todo, Operation):
            runner.busy = True
            begun = self._begin(todo, now_ns)
            self.process.schedule(begun.end_ns, self._on_done, runner, todo, begun)
        elif todo is not None:
            self._set_timer(runner, now_ns + todo)

    def _set_timer(self, runner: Runner, at_ns: int) -> None:
        if runner.wake is not None and runner.wake_ns == at_ns:
            return
        if runner.wake is not None:
            self.process.world.events.cancel(runner.wake)
        runner.wake_ns = at_ns
        runner.wake = self.process.schedule(at_ns, self._on_timer, runner)

    def _on_timer(self, runner: Runner) -> None:
        runner.wake = None
        self._start_next(runner)

    def _begin(self, todo: Operation, now_ns: int) -> Finished:
        """Start an operation and return its result."""
        status, reason, content_hash = Status.OK, "", None
        duration_ns = self._duration_ns(todo)
        if not todo.earliest_ns <= now_ns <= todo.latest_ns:
            self.meter.violations.append(f"{self.worker}: {todo.lane} of {todo.model} begun outside its window")
        if todo.lane == "exec":
            content_hash = self.loaded.get((todo.share, todo.model))
            if content_hash is None:
                status, reason, duration_ns = Status.FAILED, f"{todo.model} is not loaded", 0
                self.meter.violations.append(f"{self.worker}: EXEC of {todo.model}, which is not loaded")
            self.meter.rows[todo.model, todo.rows] += 1
            self.meter.busy_ns[todo.share] += duration_ns
        return Finished(
            todo.action_id, todo.lane, status, now_ns, now_ns + duration_ns, duration_ns, reason=reason,
            content_hash=content_hash or "",
        )  # fmt: skip

    def _on_done(self, runner: Runner, todo: Operation, begun: Finished) -> None:
        runner.busy = False
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
            case "exec" if begun.status == Status.OK:
                model = self.models[todo.model]
                outputs = outputs_of(model, todo)
                field = "outputs" if model.inline_io else "staged"
                begun = msgspec.structs.replace(begun, **{field: outputs})
            case "output":
                begun = msgspec.structs.replace(begun, outputs=todo.staged)
        self._report(begun)
        self._start_next(runner)

    def _report(self, finished: Finished) -> None:
        self.meter.ended[finished.lane, Status(finished.status).name] += 1
        self.process.post(self.lanes, self.worker, finished)

    def _duration_ns(self, todo: Operation) -> int:
        model = self.models.get(todo.model)
        profile = model.report.profile if model else None
        if model is None or profile is None or todo.lane in ("unload", "scan"):
            return SCAN_NS if todo.lane == "scan" else 0
        if model.co_located and todo.lane in CO_LOCATED_LANES:
            return round(self.slowness * co_located_ns(model.co_located, todo, self.process.now_ns))
        seed_ns = {
            "load": profile.load_ns,
            "replace": profile.load_ns,
            "input": todo.rows * model.input_ns,
            "output": todo.rows * model.output_ns,
        }.get(todo.lane)
        if seed_ns is None:
            seed_ns = profile.exec_ns[todo.batch_size]
        draws = self._own.get(todo.model, self._draws) if todo.lane == "exec" else self._draws
        return round(self.slowness * draws.noisy(seed_ns, todo.lane))


def co_located_ns(times: CoLocatedModel, todo: Operation, now_ns: int) -> int:
    """Return the time of an INPUT, EXEC or OUTPUT on a share of a device."""
    if todo.lane == "exec":
        return times.begin_exec(now_ns, todo.batch_size)
    return times.input_ns(todo.rows) if todo.lane == "input" else times.output_ns(todo.rows)


def outputs_of(model: SimModel, todo: Operation) -> list[tuple[Tensor, Buffer]]:
    """Return header and bytes of each output: a label, or an input of equal datatype and shape, else zeros."""
    spec, inputs = model.report.spec, todo.inputs or todo.staged or ()
    if model.skill:
        predicted = labels(spec.name, model.skill, b"".join(inputs[0][1]))
        return [(Tensor(LABEL.name, LABEL.datatype, inputs[0][0].shape, len(predicted)), predicted)]
    outputs: list[tuple[Tensor, Buffer]] = []
    for output in spec.outputs:
        for spec_input, (tensor, parts) in zip(spec.inputs, inputs, strict=False):
            if (spec_input.datatype, spec_input.shape) == (output.datatype, output.shape):
                joined = parts[0] if len(parts) == 1 else b"".join(parts)
                outputs.append((Tensor(output.name, tensor.datatype, tensor.shape, len(joined)), joined))
                break
        else:
            outputs.append(_zero(output.name, output.datatype, _shape(output.shape, todo.rows, spec.batched)))
    return outputs


def _shape(shape: tuple[int, ...], rows: int, batched: bool) -> tuple[int, ...]:
    rest = tuple(1 if dim < 0 else dim for dim in shape[1 if batched else 0 :])
    return (rows, *rest) if batched else rest


def _zero(name: str, datatype: str, shape: tuple[int, ...]) -> tuple[Tensor, Buffer]:
    size = nbytes(datatype, shape) if datatype in DTYPES else 4 * nbytes("UINT8", shape)
    return Tensor(name, datatype, shape, size), zeros(size)
