"""Calls of pipelines to models: this selector holds their inputs, and each has a deadline of its own stage.

Deadline of a stage: what remains of the query's budget minus the time that the rest of the path is expected to need.
The controller refuses a call that cannot meet it, so a query that would be late is dropped at the first stage that can
know it, before its work is done (PARD, EuroSys '26).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.models import check_request
from horologe_common.status import HorologeError, InvalidInput, Refused, Status, error_for
from horologe_common.string_tensors import check_strings
from horologe_common.wire import CallDone, ItemsTaken, Query, Sample, StreamLimits
from horologe_selector.core.predictions.inflight import OK, Waiter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import StagedInputs
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, CallTaken, ModelCall, Submit
    from horologe_selector.core.pipelines.run_trace import Stage
    from horologe_selector.core.pipelines.runs import PipelineRun
    from horologe_selector.core.predictions.inflight import PredictionResult
    from horologe_selector.core.shared_parts import SharedParts
    from horologe_selector.core.streams.streams import Streams

SAMPLE_NS = s(1)
"""Interval between two samples of the calls of a pipeline to each model, for the profiler."""
SAMPLE_BYTES_LIMIT = 1 << 20
"""Larger inputs are not sampled."""
SAMPLED_PAIRS_MAX = 1024
"""Pairs of model and pipeline with a rate limit. Beyond it, all limits start again."""
DEPTH_LIMIT = 8
"""Pipelines that call one another."""
RUN_FAILURES = frozenset(map(int, (Status.REFUSED, Status.LATE, Status.LOST, Status.FAILED, Status.TOO_LARGE)))


class OpenCall(msgspec.Struct, eq=False):
    """A call in flight. Its inputs are staged under the id of the waiter's query."""

    run: PipelineRun
    number: int
    stage: Stage
    waiter: Waiter


class IntermediateSampler:
    """Samples the inputs of calls: the profiler measures models on what pipelines send them.

    At most one sample per `SAMPLE_NS` for each pair of model and pipeline. `profiler`: its address, empty if none is
    connected.
    """

    def __init__(self, staging: StagedInputs) -> None:
        self.profiler = ""
        self._staging = staging
        self._next_ns: dict[tuple[str, str], int] = {}

    def sample_call(self, now_ns: int, query: Query) -> Out | None:
        """Return the staged inputs of a finished call as a Sample, if the limit allows."""
        pair = query.model, query.application
        if not self.profiler or now_ns < self._next_ns.get(pair, 0):
            return None
        staged = self._staging.inputs_of(query.id)
        if staged is None or sum(map(len, staged[1])) > SAMPLE_BYTES_LIMIT:
            return None
        if len(self._next_ns) >= SAMPLED_PAIRS_MAX:
            self._next_ns.clear()
        self._next_ns[pair] = now_ns + SAMPLE_NS
        sample = Sample(query.model, staged[0], query.rows, query.length, query.application)
        return Out(self.profiler, sample, staged[1])


class PipelineCalls:
    """Open calls by the id of their staged inputs. Invariant: these are exactly the ids of `staging`."""

    def __init__(self, parts: SharedParts, staging: StagedInputs) -> None:
        self.staging = staging
        self._address = parts.address
        self._inflight = parts.inflight
        self._models = parts.models
        self._return_latency = parts.return_latency
        self.sampler = IntermediateSampler(staging)
        self._drop = parts.settings.pipeline_drop
        self._post = parts.post
        self.streams: Streams | None = None
        """Runs the calls that are streams. Set by the selector."""
        self._calls: dict[int, OpenCall] = {}
        self._last_id = 0

    def path_of(self, submit: Submit) -> tuple[str, ...]:
        """Return the pipelines that led to a Submit: empty for the query of a client."""
        call = self._calls.get(submit.input_id) if submit.holder == self._address else None
        return call.run.path if call is not None else ()

    def find_stage(self, input_id: int) -> tuple[int, str] | None:
        """Return the run and the stage's name of the open call whose inputs have this id; None if there is none."""
        if (call := self._calls.get(input_id)) is None:
            return None
        return call.run.id, call.run.pipeline.structure.stage_name(call.stage)

    def start_call(self, now_ns: int, run: PipelineRun, message: ModelCall, buffers: Sequence[Buffer]) -> None:
        """Submit a call, or answer it with the error of its stage."""
        if message.call in run.trace.calls:
            return
        stage = (message.model, message.place)
        run.pipeline.structure.find_record(stage)
        run.trace.begin_call(now_ns, message.call, stage, message.parents)
        try:
            spec, query, deadline_ns = self._build_query(now_ns, run, stage, message, buffers)
        except HorologeError as error:
            self._fail_call(run, message.call, stage, int(error.status), error.reason)
            return
        waiter = Waiter(self._address, query, now_ns, deadline_ns, pipeline_call=query.id)
        call = self._calls[query.id] = OpenCall(run, message.call, stage, waiter)
        run.calls[message.call] = call
        if message.stream:
            assert self.streams is not None
            self.streams.on_query(now_ns, self._address, query)
            return
        result = self._inflight.request_prediction(now_ns, waiter, spec, spec.key, b"")
        assert result is None  # without a key nothing is cached

    def _build_query(
        self, now_ns: int, run: PipelineRun, stage: Stage, message: ModelCall, buffers: Sequence[Buffer]
    ) -> tuple[ModelSpec, Query, int]:
        """Return the signature, the query and its deadline, and stage its inputs. Raises `HorologeError`."""
        spec = self._find_model(run, message.model)
        if spec.streams != message.stream or (message.stream and spec.key in self._models.pipelines):
            wanted = "`call.stream` for a model that streams, and `call` for others and for pipelines"
            raise InvalidInput(f"model {message.model!r}: wanted {wanted}")
        rows, shape_key, length = check_request(spec, message.inputs)
        if spec.has_string_inputs:
            check_strings(spec, message.inputs, buffers)
        remaining_ns = run.pipeline.structure.remaining_ns(now_ns, stage) if self._drop else 0
        deadline_ns = run.deadline_ns - remaining_ns - self._return_latency.inner_ns
        if deadline_ns <= now_ns and not run.submit.best_effort:
            raise Refused(
                f"{(run.deadline_ns - now_ns) / 1e6:.1f} ms remain, and the stages after it need "
                f"{remaining_ns / 1e6:.1f} ms"
            )
        if not self.staging.hold(self._last_id + 1, message.inputs, buffers):
            raise Refused(f"the intermediates of other queries fill {self.staging.limit_bytes} bytes")
        self._last_id += 1
        budget_ns, name = deadline_ns - now_ns, run.pipeline.spec.name
        submit = run.submit
        query = Query(
            self._last_id,
            spec.key,
            budget_ns,
            rows,
            b"",
            submit.best_effort,
            shape_key,
            length,
            name,
            client=submit.client,
            stream=StreamLimits(spec.first_ns, spec.gap_ns) if message.stream else None,
        )
        return spec, query, deadline_ns

    def _find_model(self, run: PipelineRun, model: str) -> ModelSpec:
        """Return the signature of a model or pipeline. Raises `HorologeError` if it cannot be called."""
        spec = self._models.find_callable(model)
        if spec is None:
            status, reason = self._models.explain_missing(model)
            raise error_for(status, reason)
        if spec.key in self._models.pipelines:
            path = (*run.path, spec.name)
            if spec.name in run.path:
                raise InvalidInput(f"pipelines call each other: {' -> '.join(path)}")
            if len(path) > DEPTH_LIMIT:
                raise InvalidInput(f"pipelines: got {' -> '.join(path)}, wanted at most {DEPTH_LIMIT} in one another")
        return spec

    def on_result(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Pass the outputs or the failure of a call on to its driver."""
        if (call := self._calls.pop(waiter.pipeline_call, None)) is None:
            return
        is_model = waiter.query.model not in self._models.pipelines
        if is_model and (sample := self.sampler.sample_call(now_ns, waiter.query)):
            self._post(sample)
        self.staging.release(waiter.pipeline_call)
        run = call.run
        del run.calls[call.number]
        if result.status != OK:
            self._fail_call(run, call.number, call.stage, result.status, result.reason)
            return
        latency_ns, service_ns = now_ns - waiter.arrival_ns, result.exec_ns
        if record := run.pipeline.structure.find_record(call.stage):
            service_ns += record.observe_call(now_ns, latency_ns, result.exec_ns)
        run.trace.end_call(now_ns, call.number, service_ns)
        run.exec_ns += result.exec_ns
        if is_model and result.batch_size:
            run.device_ns += result.exec_ns * waiter.query.rows // result.batch_size
        done = CallDone(run.id, call.number, OK, "", result.outputs)
        self._post(Out(run.pipeline.driver, done, result.buffers))

    def on_answer(self, now_ns: int, sender: str, answer: Answer, buffers: Sequence[Buffer]) -> None:
        """Pass an item of a call on to its driver, or the end of its stream."""
        if (call := self._calls.get(answer.id)) is None or sender != self._address:
            return
        run = call.run
        run.exec_ns += answer.exec_ns
        run.device_ns += answer.exec_ns
        if not answer.more:
            del self._calls[answer.id], run.calls[call.number]
            self.staging.release(answer.id)
            if answer.status != OK:
                self._fail_call(run, call.number, call.stage, answer.status, answer.reason)
                return
            run.trace.end_call(now_ns, call.number, now_ns - call.waiter.arrival_ns)
        done = CallDone(run.id, call.number, OK, "", answer.outputs, answer.more)
        self._post(Out(run.pipeline.driver, done, buffers))

    def on_taken(self, now_ns: int, run: PipelineRun, message: CallTaken) -> None:
        """Make further items of a call, or end its stream."""
        call = run.calls.get(message.call)
        if call is None or call.waiter.query.stream is None or self.streams is None:
            return
        number = call.waiter.pipeline_call
        if message.items >= 0:
            self.streams.on_taken(now_ns, self._address, ItemsTaken(number, message.items))
            return
        del self._calls[number], run.calls[message.call]
        self.staging.release(number)
        self.streams.cancel(now_ns, self._address, number)
        run.trace.end_call(now_ns, call.number, now_ns - call.waiter.arrival_ns)

    def _fail_call(self, run: PipelineRun, number: int, stage: Stage, status: int, reason: str) -> None:
        """Answer a call without outputs. The driver function may catch it, or end the query with this status."""
        self.count_drop(run, stage)
        status = status if status in RUN_FAILURES else int(Status.FAILED)
        reason = f"stage {run.pipeline.structure.stage_name(stage)}: {reason}"
        self._post(Out(run.pipeline.driver, CallDone(run.id, number, status, reason)))

    def count_drop(self, run: PipelineRun, stage: Stage) -> None:
        if record := run.pipeline.structure.find_record(stage):
            record.drops += 1

    def cancel_calls(self, now_ns: int, run: PipelineRun) -> None:
        for call in run.calls.values():
            del self._calls[call.waiter.pipeline_call]
            self.staging.release(call.waiter.pipeline_call)
            if call.waiter.query.stream is not None and self.streams is not None:
                self.streams.cancel(now_ns, self._address, call.waiter.pipeline_call)
            self._inflight.remove_waiter(now_ns, call.waiter)
        run.calls.clear()

    def check(self, runs: Iterable[PipelineRun]) -> None:
        """Assert that each open call belongs to an open run and has staged inputs."""
        self.staging.check()
        assert sorted(self.staging.ids()) == sorted(self._calls)
        assert len(self._calls) == sum(len(run.calls) for run in runs)
