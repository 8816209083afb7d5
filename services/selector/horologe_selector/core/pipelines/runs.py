"""Queries of pipelines: each is a run of its driver, whose calls are predictions of models (InferLine section 2).

A run begins with a Submit of this selector to itself, and ends with Outputs or an Outcome to itself, as if it were a
controller with a worker. Cache, coalescing, applications and cancellation therefore work as for models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out
from horologe_common.models import check_tensor
from horologe_common.status import HorologeError, InvalidInput, Status
from horologe_common.wire import Dispatch, EndRun, ItemsTaken, Outcome, Outputs, RowStatus, StartRun
from horologe_selector.core.pipelines.calls import OpenCall, PipelineCalls
from horologe_selector.core.pipelines.run_trace import RunTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import CallTaken, DriverReady, ModelCall, RunDone, RunItem, Ship, Submit, Tensor
    from horologe_selector.core.pipelines.pipeline_registry import Pipeline, PipelineRegistry
    from horologe_selector.core.shared_parts import SharedParts
    from horologe_selector.driver import DriverEnded

OK = int(Status.OK)
ATTEMPTS = 2
"""Maximum number of executions of a run. It is executed again if its driver ended for another reason."""
DROPS = frozenset(map(int, (Status.REFUSED, Status.LATE, Status.LOST)))


class PipelineRun(msgspec.Struct, eq=False):
    """An open query of a pipeline. `inputs` is None until its holder has shipped them."""

    submit: Submit
    pipeline: Pipeline
    begin_ns: int
    deadline_ns: int
    path: tuple[str, ...]
    """The pipelines that called one another up to this one, the first one first."""
    trace: RunTrace
    inputs: tuple[Tensor, ...] | None = None
    buffers: Sequence[Buffer] = ()
    attempts: int = 0
    """Number of times that the driver has started the run."""
    calls: dict[int, OpenCall] = {}
    items: int = 0
    """Items that the driver has yielded: they are not made again."""
    exec_ns: int = 0
    """Execution time of its calls."""
    device_ns: int = 0
    """Device time of its calls of models: of each batch, the call's part."""

    @property
    def id(self) -> int:
        return self.submit.id


class PipelineRuns:
    """All open runs, by the id of their Submit.

    Invariant: each gets exactly one Outputs or Outcome, unless it is cancelled. Then its calls are cancelled too.
    """

    def __init__(self, parts: SharedParts, registry: PipelineRegistry, calls: PipelineCalls) -> None:
        self.deadlines: IndexedHeap[Any, int] = IndexedHeap()
        self.arrived: dict[str, int] = {}
        """Pipeline -> queries that have arrived and are not reported yet, refused ones too."""
        self._address = parts.address
        self._registry = registry
        self._calls = calls
        self._limit = parts.settings.pipeline_runs
        self._drop = parts.settings.pipeline_drop
        self._post = parts.post
        self._runs: dict[int, PipelineRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def _find_run(self, number: int, driver: str) -> PipelineRun | None:
        run = self._runs.get(number)
        return run if run is not None and run.attempts and run.pipeline.driver == driver else None

    def on_submit(self, now_ns: int, sender: str, submit: Submit, buffers: Sequence[Buffer]) -> None:
        """Open a run for a Submit of this selector itself, and ask for its inputs. Refuse what cannot be executed."""
        if sender != self._address:
            reason = "a selector runs only its own submits"
            self._post(Out(sender, Outcome(submit.id, int(Status.FAILED), reason)))
            return
        pipeline = self._registry.find_pipeline(submit.model)
        if submit.id in self._runs:
            return
        if pipeline is None or pipeline.state == "UNAVAILABLE":
            reason = pipeline.reason if pipeline else "it is not served any more"
            self._refuse(submit, Status.UNKNOWN_MODEL, f"pipeline {submit.model}: {reason}")
            return
        if not submit.best_effort:
            self.arrived[pipeline.spec.name] = self.arrived.get(pipeline.spec.name, 0) + 1
        if len(self._runs) >= self._limit:
            reason = f"{self._limit} queries of pipelines are open (selector.pipeline_runs)"
            self._refuse(submit, Status.REFUSED, reason)
            return
        if self._drop and not submit.best_effort and not pipeline.limit.admits(pipeline.open_runs):
            reason = f"{pipeline.open_runs} queries are open, and more would be dropped at a later stage"
            stage = pipeline.structure.first_stage_name()
            self._refuse(submit, Status.REFUSED, f"pipeline {pipeline.spec.name}: stage {stage}: {reason}")
            return
        deadline_ns = now_ns + submit.budget_ns
        path = (*self._calls.path_of(submit), pipeline.spec.name)
        run = self._runs[submit.id] = PipelineRun(submit, pipeline, now_ns, deadline_ns, path, RunTrace(now_ns))
        self._registry.add_run(now_ns, pipeline)
        self.deadlines.push(run.id, deadline_ns)
        if submit.holder == self._address:
            self._set_inputs(now_ns, run, *self._calls.staging.inputs_of(submit.input_id) or (None, ()))
        else:
            self._post(Out(submit.holder, Dispatch(run.id, self._address, (submit.input_id,))))

    def _refuse(self, submit: Submit, status: Status, reason: str) -> None:
        self._post(Out(self._address, Outcome(submit.id, int(status), reason)))

    def on_ship(self, now_ns: int, holder: str, message: Ship, buffers: Sequence[Buffer] = ()) -> None:
        """Store the inputs of a run, and start it."""
        run = self._runs.get(message.action_id)
        if run is None or run.inputs is not None or run.submit.holder != holder:
            return
        self._set_inputs(now_ns, run, message.items[0].inputs if message.items else None, buffers)

    def _set_inputs(
        self, now_ns: int, run: PipelineRun, inputs: tuple[Tensor, ...] | None, buffers: Sequence[Buffer]
    ) -> None:
        if inputs is None:
            self.fail_run(now_ns, run, int(Status.LOST), f"{run.submit.holder} does not hold the inputs any more")
            return
        run.inputs, run.buffers = inputs, buffers
        if run.pipeline.state == "READY":
            self._execute(now_ns, run)

    def _execute(self, now_ns: int, run: PipelineRun) -> None:
        run.attempts += 1
        assert run.inputs is not None
        self._post(Out(run.pipeline.driver, StartRun(run.id, run.deadline_ns - now_ns, run.inputs), run.buffers))

    def on_model_call(self, now_ns: int, driver: str, message: ModelCall, buffers: Sequence[Buffer]) -> None:
        if run := self._find_run(message.run, driver):
            self._calls.start_call(now_ns, run, message, buffers)

    def on_call_taken(self, now_ns: int, driver: str, message: CallTaken, buffers: Sequence[Buffer]) -> None:
        if run := self._find_run(message.run, driver):
            self._calls.on_taken(now_ns, run, message)

    def on_driver_ready(self, now_ns: int, driver: str, message: DriverReady, buffers: Sequence[Buffer]) -> None:
        """Send the waiting runs to a driver that has started, or fail them if it could not be loaded."""
        pipeline, reason = self._registry.find_pipeline(driver.partition("/")[2]), message.reason
        if pipeline is None:
            return
        self._registry.set_state(pipeline, "UNAVAILABLE" if reason else "READY", reason)
        for run in self._runs_of(pipeline):
            if reason:
                self.fail_run(now_ns, run, int(Status.UNKNOWN_MODEL), reason)
            elif run.inputs is not None:
                self._execute(now_ns, run)

    def on_driver_ended(self, now_ns: int, driver: str, message: DriverEnded, buffers: Sequence[Buffer]) -> None:
        """Fail the run that ended the driver. The others wait for the next driver, and start again.

        If the driver ended before it was ready, the pipeline stays LOADING, because a later one may be ready.
        """
        pipeline, reason = self._registry.find_pipeline(message.pipeline), message.reason
        if pipeline is None:
            return
        pipeline.restarts += 1
        if pipeline.state == "READY":
            self._registry.set_state(pipeline, "LOADING", f"its driver is being started after: {reason}")
        elif pipeline.state == "LOADING":
            self._registry.set_state(pipeline, "LOADING", f"its driver ended before it was ready: {reason}")
        for run in self._runs_of(pipeline):
            if run.items and run.id != message.run:
                self.fail_run(now_ns, run, int(Status.LOST), f"the driver's process ended: {reason}")
            elif run.id == message.run or run.attempts >= ATTEMPTS:
                self.fail_run(now_ns, run, int(Status.FAILED), f"the driver's process ended: {reason}")
            else:
                self._calls.cancel_calls(now_ns, run)
                run.trace = RunTrace(now_ns)

    def on_taken(self, message: ItemsTaken) -> None:
        """Pass on to the driver how many items of a stream were taken."""
        if (run := self._runs.get(message.id)) is not None and run.attempts:
            self._post(Out(run.pipeline.driver, message))

    def withdraw_pipeline(self, now_ns: int, pipeline: Pipeline) -> None:
        """Continue the runs of a pipeline with its new content, or fail them if there is none."""
        successor = self._registry.find_pipeline(pipeline.spec.key)
        for run in self._runs_of(pipeline):
            if successor is None or successor.state == "UNAVAILABLE":
                self.fail_run(now_ns, run, int(Status.UNKNOWN_MODEL), "it is not served any more")
                continue
            if run.items:
                self.fail_run(now_ns, run, int(Status.LOST), "its driver was replaced")
                continue
            self._calls.cancel_calls(now_ns, run)
            pipeline.open_runs -= 1
            run.pipeline, run.trace, run.attempts = successor, RunTrace(now_ns), 0
            self._registry.add_run(now_ns, successor)

    def on_run_item(self, now_ns: int, driver: str, message: RunItem, buffers: Sequence[Buffer]) -> None:
        """Send an item of a stream, or fail a run that must not yield."""
        if (run := self._find_run(message.run, driver)) is None:
            return
        spec = run.pipeline.spec
        try:
            if not spec.streams:
                raise InvalidInput("the driver yields, and its table in pipeline.toml has no `stream`")
            _check_outputs(spec, message.outputs)
        except InvalidInput as error:
            self.fail_run(now_ns, run, int(Status.FAILED), error.reason)
            return
        run.items += 1
        row = RowStatus(run.id, 1, more=True)
        outputs = Outputs(0, (row,), message.outputs, spec.key, 1, now_ns, now_ns, spec.content_hash)
        self._post(Out(self._address, outputs, buffers))

    def on_run_done(self, now_ns: int, driver: str, message: RunDone, buffers: Sequence[Buffer]) -> None:
        """Answer with what the driver function has returned or raised."""
        if (run := self._find_run(message.run, driver)) is None:
            return
        status, reason = message.status, message.reason
        if status == OK:
            try:
                is_end = run.items and not message.outputs
                rows = 0 if is_end else _check_outputs(run.pipeline.spec, message.outputs)
                if rows not in (0, run.submit.rows):
                    raise InvalidInput(f"result: got {rows} rows, wanted {run.submit.rows}")
            except HorologeError as error:
                status, reason = int(Status.FAILED), error.reason
        if status != OK:
            self.fail_run(now_ns, run, status, reason, ended=True)
            return
        run.pipeline.structure.record_answer(now_ns, run.trace)
        run.pipeline.limit.on_answered(run.pipeline.open_runs)
        spec, rows, exec_ns = run.pipeline.spec, run.submit.rows, min(run.exec_ns, now_ns - run.begin_ns)
        outputs = Outputs(
            0, (RowStatus(run.id, rows),), message.outputs, spec.key, rows, now_ns - exec_ns, now_ns, spec.content_hash
        )
        self._remove(now_ns, run, "answered")
        self._post(Out(self._address, outputs, buffers))

    def fail_run(self, now_ns: int, run: PipelineRun, status: int, reason: str, ended: bool = False) -> None:
        """End a run without outputs. `ended`: the driver has ended it already."""
        failed = run.pipeline.failed
        failed[status] = failed.get(status, 0) + 1
        if status in DROPS and run.exec_ns:
            run.pipeline.limit.on_wasted(run.pipeline.open_runs)
        self._end(now_ns, run, ended)
        self._post(Out(self._address, Outcome(run.id, status, f"pipeline {run.pipeline.spec.name}: {reason}")))

    def cancel_run(self, now_ns: int, number: int) -> None:
        if run := self._runs.get(number):
            self._end(now_ns, run)

    def tick(self, now_ns: int) -> None:
        for number in self.deadlines.pop_up_to(now_ns):
            run = self._runs[number]
            reason = f"not finished by the deadline: {self._describe_wait(run)}"
            self.fail_run(now_ns, run, int(Status.LATE), reason)

    def _describe_wait(self, run: PipelineRun) -> str:
        if run.calls:
            names = sorted({run.pipeline.structure.stage_name(call.stage) for call in run.calls.values()})
            for call in run.calls.values():
                self._calls.count_drop(run, call.stage)
            return f"stage {', '.join(names)} has not answered"
        if run.pipeline.reason:
            return run.pipeline.reason
        return "the driver has not returned" if run.attempts else "the driver has not started"

    def _end(self, now_ns: int, run: PipelineRun, ended: bool = False) -> None:
        if run.attempts and not ended and run.pipeline.state == "READY":
            self._post(Out(run.pipeline.driver, EndRun(run.id)))
        self._remove(now_ns, run)

    def _remove(self, now_ns: int, run: PipelineRun, result: str = "failed") -> None:
        del self._runs[run.id]
        run.pipeline.device_ns[result] += run.device_ns
        self.deadlines.remove(run.id)
        run.pipeline.open_runs -= 1
        self._calls.cancel_calls(now_ns, run)

    def _runs_of(self, pipeline: Pipeline) -> list[PipelineRun]:
        return [run for run in self._runs.values() if run.pipeline is pipeline]

    def check(self) -> None:
        assert len(self.deadlines) == len(self._runs)
        for pipeline in self._registry.pipelines.values():
            assert pipeline.open_runs == len(self._runs_of(pipeline))
        self._calls.check(self._runs.values())


def _check_outputs(spec: ModelSpec, outputs: Sequence[Tensor]) -> int:
    """Return the rows, 0 if the pipeline is not batched. Raise `InvalidInput` unless outputs fit the signature."""
    wanted = {tensor.name: tensor for tensor in spec.outputs}
    names = [tensor.name for tensor in outputs]
    if sorted(names) != sorted(wanted):
        raise InvalidInput(f"result: got {names}, wanted {list(wanted)}")
    for tensor in outputs:
        try:
            check_tensor(wanted[tensor.name], tensor.datatype, tensor.shape)
        except InvalidInput as error:
            raise InvalidInput(f"result: {error.reason.replace('input ', 'output ', 1)}") from error
    rows = {tensor.shape[0] for tensor in outputs} if spec.batched else {0}
    if len(rows) != 1:
        raise InvalidInput(f"result: got {sorted(rows)} rows, wanted the same for all outputs")
    return rows.pop()
