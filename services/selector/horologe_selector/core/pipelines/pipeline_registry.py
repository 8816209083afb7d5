"""The pipelines of the repository: their state, drivers and limits, and their announcement to the frontends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.protocol import Out
from horologe_common.status import STATUS_NAMES, Status
from horologe_common.wire import Models, ModelState, Ping, PipelineState
from horologe_selector.core.pipelines.learned_structure import LearnedStructure
from horologe_selector.driver import KillDriver, driver_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_common.core.instruments import Stats
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Pong
    from horologe_selector.core.announced_models import AnnouncedModels
    from horologe_selector.driver import PipelineDefinition, PipelinesRead

PING_NS = ms(100)
"""Interval of the pings to the driver of a pipeline with open queries."""
RUNS_MAX = 1_000_000
DECREASE, INCREASE = 0.25, 2.0
"""Open queries fewer for each wasted one; growth per round trip. In the table of docs/pipelines.md, a decrease of 1 and
a growth of 0.5 answer a tenth fewer."""
HANG_NS = s(1)
"""A driver that leaves a ping unanswered for so long is killed."""


class OpenLimit:
    """Limit of the open queries of a pipeline, so that few are dropped after their first stage has worked for them.

    The limit shrinks by `DECREASE` for each query that is dropped behind its first stage, so in proportion to the
    waste, and grows while queries that use it are answered. Deadlines alone cannot prevent such drops: a call waits in
    the queue of its own stage, and the queues of later stages grow only when it gets there. There is no limit before
    the first wasted query.
    """

    def __init__(self) -> None:
        self.limit = float(RUNS_MAX)

    def admits(self, open_runs: int) -> bool:
        return open_runs < self.limit

    def on_answered(self, open_runs: int) -> None:
        """Grow if the answered query was one of as many as the limit allows."""
        if open_runs + 1 >= self.limit:
            self.limit = min(self.limit + INCREASE / self.limit, RUNS_MAX)

    def on_wasted(self, open_runs: int) -> None:
        """Shrink. `open_runs`: with the wasted query."""
        self.limit = max(1.0, min(self.limit, open_runs) - DECREASE)


class Pipeline(msgspec.Struct, eq=False):
    """A pipeline and its driver. `state` is that of a model: READY, LOADING or UNAVAILABLE."""

    definition: PipelineDefinition
    structure: LearnedStructure
    state: str = "LOADING"
    reason: str = ""
    open_runs: int = 0
    """Runs that wait for the driver or that it executes."""
    pinged_ns: int = NEVER_NS
    """Time of the ping that the driver has not answered; `NEVER_NS` if it has answered all."""
    next_ping_ns: int = 0
    limit: OpenLimit = msgspec.field(default_factory=OpenLimit)
    restarts: int = 0
    """Processes of the driver that have ended."""
    failed: dict[int, int] = {}
    """Queries without outputs, by status."""
    device_ns: dict[str, int] = msgspec.field(default_factory=lambda: {"answered": 0, "failed": 0})
    """Device time of finished calls, by what became of their query."""

    @property
    def spec(self) -> ModelSpec:
        return self.definition.spec

    @property
    def driver(self) -> str:
        return driver_address(self.spec.name)


class PipelineRegistry:
    """All pipelines by name. `changed` is set when the frontends need a new announcement."""

    def __init__(self, models: AnnouncedModels, post: Callable[[Out], None]) -> None:
        self.pipelines: dict[str, Pipeline] = {}
        self.changed = False
        self.next_ns = NEVER_NS
        """When to call `ping_drivers`."""
        self._models = models
        self._post = post
        self._announcements = 0

    def find_pipeline(self, model: str) -> Pipeline | None:
        """Return the pipeline called `name` or `name/version`."""
        name, _, version = model.partition("/")
        pipeline = self.pipelines.get(name)
        return pipeline if pipeline is not None and version in ("", pipeline.spec.version) else None

    def replace_definitions(self, message: PipelinesRead) -> Iterator[Pipeline]:
        """Adopt the definitions, and yield the pipelines that are not served any more or have another content."""
        before, self.pipelines, self.changed = self.pipelines, {}, True
        for definition in message.definitions:
            name = definition.spec.name
            previous = before.get(name)
            if previous is not None and previous.definition == definition:
                self.pipelines[name] = before.pop(name)
                continue
            structure = LearnedStructure(name, definition.spec.slo_ns)
            state = "UNAVAILABLE" if definition.reason else "LOADING"
            self.pipelines[name] = Pipeline(definition, structure, state, definition.reason)
        yield from before.values()
        if not self.pipelines:
            self.next_ns = NEVER_NS
        self._models.pipelines.clear()
        for name, pipeline in self.pipelines.items():
            if not pipeline.definition.reason:
                self._models.pipelines |= dict.fromkeys((name, pipeline.spec.key), pipeline.spec)

    def set_state(self, pipeline: Pipeline, state: str, reason: str = "") -> None:
        """Store the state of a driver, and discard its pings."""
        pipeline.state, pipeline.reason, pipeline.pinged_ns = state, reason, NEVER_NS
        self.changed = True

    def announcement(self) -> Models:
        self._announcements += 1
        states = [
            ModelState(p.spec, p.state, p.reason, 0.0 if p.state == "UNAVAILABLE" else 1.0)
            for p in self.pipelines.values()
        ]
        return Models(0, tuple(states), number=self._announcements)

    def describe(self, number: int, name: str) -> PipelineState:
        pipeline = self.find_pipeline(name)
        if pipeline is None:
            return PipelineState(number, int(Status.UNKNOWN_MODEL), f"pipeline: got {name!r}, which is not served")
        structure = pipeline.structure
        latency = structure.latency
        return PipelineState(
            number,
            int(Status.OK),
            pipeline.reason,
            structure.structure(),
            structure.stage_states(),
            latency.total,
            latency.quantile(0.5),
            latency.quantile(0.99),
            tuple((STATUS_NAMES[status], count) for status, count in sorted(pipeline.failed.items())),
        )

    def publish_metrics(self, stats: Stats) -> None:
        """Set the metrics of all pipelines. Called by the exporting thread while the loop runs."""
        stats.remove_values("horologe_pipeline_")
        for name, pipeline in list(self.pipelines.items()):
            stats.set("horologe_pipeline_open", name, to=pipeline.open_runs)
            stats.set("horologe_pipeline_open_limit", name, to=pipeline.limit.limit)
            stats.set("horologe_pipeline_driver_restarts_total", name, to=pipeline.restarts)
            for result, used_ns in pipeline.device_ns.items():
                stats.set("horologe_pipeline_device_seconds_total", name, result, to=used_ns / 1e9)
            for stage in pipeline.structure.stage_states():
                stats.set("horologe_pipeline_calls_total", name, stage.name, to=stage.calls)
                stats.set("horologe_pipeline_drops_total", name, stage.name, to=stage.drops)

    def add_run(self, now_ns: int, pipeline: Pipeline) -> None:
        """Count a run, and start to ping the driver with the first one."""
        pipeline.open_runs += 1
        if pipeline.open_runs == 1:
            pipeline.next_ping_ns = now_ns + PING_NS
            self.next_ns = min(self.next_ns, pipeline.next_ping_ns)

    def on_pong(self, driver: str, pong: Pong) -> None:
        pipeline = self.find_pipeline(driver.partition("/")[2])
        if pipeline is not None and pong.sent_ns == pipeline.pinged_ns:
            pipeline.pinged_ns = NEVER_NS

    def ping_drivers(self, now_ns: int) -> None:
        """Ping the drivers with open runs, and kill those that hang."""
        if now_ns < self.next_ns:
            return
        self.next_ns = NEVER_NS
        for pipeline in self.pipelines.values():
            if not pipeline.open_runs or pipeline.state != "READY":
                continue
            if now_ns - pipeline.pinged_ns >= HANG_NS:
                reason = f"the driver did not answer for {HANG_NS / 1e9:g} s"
                self._post(Out(pipeline.driver, KillDriver(pipeline.spec.name, reason)))
                pipeline.pinged_ns = NEVER_NS
            elif now_ns >= pipeline.next_ping_ns:
                pipeline.next_ping_ns = now_ns + PING_NS
                if pipeline.pinged_ns == NEVER_NS:
                    pipeline.pinged_ns = now_ns
                    self._post(Out(pipeline.driver, Ping(now_ns)))
            self.next_ns = min(self.next_ns, pipeline.next_ping_ns)
