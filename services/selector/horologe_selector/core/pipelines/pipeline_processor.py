"""The part of the selector core that serves pipelines: messages of frontends, drivers and the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.protocol import Out
from horologe_common.core.staging import StagedInputs
from horologe_common.wire import (
    Answer,
    CallTaken,
    Dispatch,
    DriverReady,
    ModelCall,
    PipelineInfo,
    QueriesArrived,
    RunDone,
    RunItem,
    Ship,
    Submit,
)
from horologe_selector.core.pipelines.calls import PipelineCalls
from horologe_selector.core.pipelines.pipeline_registry import PipelineRegistry
from horologe_selector.core.pipelines.runs import PipelineRuns
from horologe_selector.driver import DriverEnded, PipelinesRead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.shared_parts import SharedParts


class PipelineProcessor:
    """Registry, runs and calls of the pipelines. `handlers`: by the type of message."""

    def __init__(self, parts: SharedParts) -> None:
        self._post = parts.post
        self._return_latency = parts.return_latency
        self._inflight = parts.inflight
        self.staging = StagedInputs(parts.address, parts.settings.pipeline_staging_bytes)
        self.registry = PipelineRegistry(parts.models, parts.post)
        self._models = parts.models
        self._models.pipelines_read = not parts.settings.pipelines
        self.calls = PipelineCalls(parts, self.staging)
        self.runs = PipelineRuns(parts, self.registry, self.calls)
        self.handlers: dict[type, Callable[[int, str, Any, Sequence[Buffer]], None]] = {
            Submit: self.runs.on_submit,
            Ship: self.runs.on_ship,
            Dispatch: self._on_dispatch,
            ModelCall: self.runs.on_model_call,
            CallTaken: self.runs.on_call_taken,
            Answer: self.calls.on_answer,
            RunDone: self.runs.on_run_done,
            RunItem: self.runs.on_run_item,
            DriverReady: self.runs.on_driver_ready,
            DriverEnded: self.runs.on_driver_ended,
            PipelinesRead: self._on_pipelines_read,
            PipelineInfo: self._on_pipeline_info,
        }

    def announce_to(self, frontend: str) -> None:
        """Send the pipelines to a frontend that has connected, unless they are not known yet."""
        if self._models.pipelines_read:
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
        deadline_ns = self.runs.deadlines.smallest_priority()
        return self.registry.next_ns if deadline_ns is None else min(deadline_ns, self.registry.next_ns)

    def check(self) -> None:
        self.runs.check()

    def _on_dispatch(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        for out in self.staging.answer_dispatch(dispatch):
            self._post(out)

    def _on_pipelines_read(self, now_ns: int, sender: str, message: PipelinesRead, buffers: Sequence[Buffer]) -> None:
        self._models.pipelines_read = True
        for pipeline in list(self.registry.replace_definitions(message)):
            self.runs.withdraw_pipeline(now_ns, pipeline)

    def _on_pipeline_info(self, now_ns: int, frontend: str, message: PipelineInfo, buffers: Sequence[Buffer]) -> None:
        self._post(Out(frontend, self.registry.describe(message.id, message.name)))
