"""The part of the selector core that serves pipelines: messages of frontends, drivers and the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.protocol import Out, role
from horologe_common.core.staging import StagedInputs
from horologe_common.status import Status
from horologe_common.wire import (
    Dispatch,
    DriverReady,
    ModelCall,
    Outcome,
    PipelineInfo,
    QueriesArrived,
    RunDone,
    Ship,
    Submit,
)
from horologe_selector.core.pipelines.calls import PipelineCalls
from horologe_selector.core.pipelines.pipeline_registry import PipelineRegistry
from horologe_selector.core.pipelines.runs import PipelineRuns
from horologe_selector.driver import DriverEnded, PipelinesRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Pong
    from horologe_selector.core.predictions.inflight import PredictionResult, Waiter
    from horologe_selector.core.shared_parts import SharedParts


class PipelineProcessor:
    """Registry, runs and calls of the pipelines. `handlers`: by the type of message. `idle`: there are no pipelines."""

    def __init__(self, parts: SharedParts) -> None:
        address, settings, post = parts.address, parts.settings, parts.post
        self._address = address
        self._post = post
        self._return_latency = parts.return_latency
        self._inflight = parts.inflight
        self.staging = StagedInputs(address, settings.pipeline_staging_bytes)
        parts.inflight.pipelines, parts.inflight.address = parts.models.pipelines, address
        self.registry = PipelineRegistry(parts.models, post)
        self._loaded = not settings.pipelines
        """The folder has been read, so that an announcement is complete."""
        self._calls = PipelineCalls(parts, self.staging)
        self.runs = PipelineRuns(
            address, self.registry, self._calls, settings.pipeline_runs, settings.pipeline_drop, post
        )
        self.handlers: dict[type, Callable[[int, str, Any, Sequence[Buffer]], None]] = {
            Submit: self._on_submit,
            Ship: self.runs.on_ship,
            Dispatch: self._on_dispatch,
            ModelCall: self._on_model_call,
            RunDone: self._on_run_done,
            DriverReady: self._on_driver_ready,
            DriverEnded: self._on_driver_ended,
            PipelinesRead: self._on_pipelines_read,
            PipelineInfo: self._on_pipeline_info,
        }

    def on_result(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Deliver the result of a call."""
        self._calls.on_result(now_ns, waiter, result)

    def cancel_runs(self, now_ns: int, ids: Iterable[int]) -> None:
        """Cancel the runs of these Submits."""
        for number in ids:
            self.runs.cancel_run(now_ns, number)

    def on_pong(self, driver: str, pong: Pong) -> None:
        """Record the pong of a driver."""
        self.registry.on_pong(driver, pong)

    def set_profiler(self, address: str) -> None:
        """Send samples to this profiler; empty: to none."""
        self._calls.sampler.profiler = address

    def announce_to(self, frontend: str) -> None:
        """Send the pipelines to a frontend that has connected, unless they are not known yet."""
        if self._loaded:
            self._post(Out(frontend, self.registry.announcement()))

    def tick(self, now_ns: int) -> None:
        """End overdue runs, ping the drivers, announce changes, and report the queries that have arrived."""
        if not self.registry.pipelines and not self.registry.changed:
            return
        self.runs.tick(now_ns)
        self.registry.ping_drivers(now_ns)
        self._report_arrivals()
        if self.registry.changed:
            self.registry.changed = False
            announcement = self.registry.announcement()
            for frontend in self._return_latency.frontends():
                self._post(Out(frontend, announcement))

    def _report_arrivals(self) -> None:
        arrived, controller = self.runs.arrived, self._inflight.controller
        if arrived and controller:
            self._post(Out(controller, QueriesArrived(tuple(arrived.items()))))
        arrived.clear()

    def wakeup_ns(self) -> int | None:
        deadline_ns = self.runs.deadlines.next_ns()
        return self.registry.next_ns if deadline_ns is None else min(deadline_ns, self.registry.next_ns)

    def check(self) -> None:
        self.runs.check()

    def _on_submit(self, now_ns: int, sender: str, submit: Submit, buffers: Sequence[Buffer]) -> None:
        """Start a run for a Submit of this selector itself."""
        if sender == self._address:
            self.runs.start_run(now_ns, submit)
        else:
            reason = "a selector runs only its own submits"
            self._post(Out(sender, Outcome(submit.id, int(Status.FAILED), reason)))

    def _on_dispatch(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        """Ship the inputs of calls to their worker."""
        for out in self.staging.answer_dispatch(dispatch):
            self._post(out)

    def _on_model_call(self, now_ns: int, driver: str, message: ModelCall, buffers: Sequence[Buffer]) -> None:
        if run := self.runs.find_run(message.run, driver):
            self._calls.start_call(now_ns, run, message, buffers)

    def _on_run_done(self, now_ns: int, driver: str, message: RunDone, buffers: Sequence[Buffer]) -> None:
        if run := self.runs.find_run(message.run, driver):
            self.runs.on_run_done(now_ns, run, message, buffers)

    def _on_driver_ready(self, now_ns: int, driver: str, message: DriverReady, buffers: Sequence[Buffer]) -> None:
        if role(driver) == "driver" and (pipeline := self.registry.find_pipeline(driver.partition("/")[2])):
            self.runs.on_driver_ready(now_ns, pipeline, message.reason)

    def _on_driver_ended(self, now_ns: int, driver: str, message: DriverEnded, buffers: Sequence[Buffer]) -> None:
        if pipeline := self.registry.find_pipeline(message.pipeline):
            self.runs.on_driver_ended(now_ns, pipeline, message.reason, message.run)

    def _on_pipelines_read(self, now_ns: int, sender: str, message: PipelinesRead, buffers: Sequence[Buffer]) -> None:
        self._loaded = True
        for pipeline in list(self.registry.replace_definitions(message)):
            self.runs.withdraw_pipeline(now_ns, pipeline)

    def _on_pipeline_info(self, now_ns: int, frontend: str, message: PipelineInfo, buffers: Sequence[Buffer]) -> None:
        self._post(Out(frontend, self.registry.describe(message.id, message.name)))
