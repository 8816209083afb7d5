"""A device without a worker: it gets the controller's actions and answers with Results, one event per action.

Windows and pages are those of a real worker. INPUT and OUTPUT overlap EXEC and are left out, as are tensors. Co-located
models have them: INPUT before EXEC, and OUTPUT after it as a part of EXEC (h of iGniter's Eq. 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.status import Status
from horologe_common.wire import Infer, Load, ModelReport, Result
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.core.residency import PageCache
from horologe_sim.engine.simulated_device import LaneInTime, SimModel, SimulatedDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_sim.controller_only.controller_world import ControllerWorld

Ended = tuple["DirectDevice", "Infer | Load", Result]


class DeviceEntry(NamedTuple):
    """A device of a cluster: its models and its speed."""

    models: Sequence[SimModel]
    factor: float = 1.0
    """Execution times as multiples of those of `models`. Its profiles show them."""


class DirectDevice(SimulatedDevice):
    """A device at an address."""

    def __init__(self, world: ControllerWorld, address: str, entry: DeviceEntry, seed: Sequence[int]) -> None:
        super().__init__({model.report.spec.key: model for model in entry.models}, world.setting.noise, seed)
        self.address = address
        self.factor = self.nominal_factor = entry.factor
        self.pages = PageCache(world.setting.pages)
        self.loaded: dict[str, bool] = {}
        """Loaded models, and whether the Result of each LOAD has reached the controller."""
        self.exec = LaneInTime(self._begin, self._expire, world.events.schedule)
        self.load = LaneInTime(self._begin, self._expire, world.events.schedule)
        self._world = world
        self._delay_ns = world.setting.worker_ns
        self._input_free_ns = 0
        self._actions: dict[int, Infer | Load] = {}

    def reports(self) -> tuple[ModelReport, ...]:
        """Return the reports of its models, with its own execution times."""
        reports = (model.report for model in self.models.values())
        factor = self.nominal_factor
        return tuple(reports if factor == 1.0 else (_scale_report(report, factor) for report in reports))

    def begin_infer(self, now_ns: int, infer: Infer) -> None:
        """Handle an INFER that the controller sends at `now_ns`."""
        ready_ns = now_ns + self._delay_ns
        if self.models[infer.model].co_located:
            input_ns = self.input_ns(infer.model, len(infer.rows))
            ready_ns = self._input_free_ns = max(ready_ns, self._input_free_ns) + input_ns
        self._push(ready_ns, self.exec, "exec", infer)

    def begin_load(self, now_ns: int, load: Load) -> None:
        """Handle a LOAD that the controller sends at `now_ns`. Its pages are allocated at once."""
        pages = self.models[load.model].report.spec.pages
        if self.pages.allocate(load.model, pages):
            self._push(now_ns + self._delay_ns, self.load, "load", load)
        else:
            self.violations.append(f"{self.address}: {load.model} needs {pages:g}, {self.pages.free_pages:g} are free")
            self._end(now_ns + self._delay_ns, now_ns + self._delay_ns, load, Status.FAILED)

    def unload(self, model: str) -> bool:
        """Free the pages of a model. Return whether the controller knew that it was loaded."""
        self.pages.free(model)
        return self.loaded.pop(model, False)

    def check(self) -> None:
        """Check the invariants of pages and lanes, and that no action was impossible."""
        self.pages.check()
        self.exec.lane.check()
        self.load.lane.check()
        assert not self.violations, self.violations[:5]

    def _push(self, arrival_ns: int, lane: LaneInTime, name: str, action: Infer | Load) -> None:
        if arrival_ns > action.latest_ns:
            lane.advance(arrival_ns)
            self._end(arrival_ns, arrival_ns, action, Status.TOO_LATE)
            return
        self._actions[action.action_id] = action
        operation = LaneOperation(
            action.action_id,
            action.share,
            name,
            action.model,
            earliest_ns=action.earliest_ns,
            latest_ns=action.latest_ns,
        )
        lane.push(arrival_ns, operation)

    def _begin(self, now_ns: int, todo: LaneOperation) -> int:
        action = self._actions[todo.action_id]
        status = Status.OK
        if isinstance(action, Load):
            took_ns = self.load_ns(todo.model)
        elif todo.model in self.loaded:
            took_ns = self._infer_ns(now_ns, action)
        else:
            self.violations.append(f"{self.address}: EXEC of {todo.model}, which is not loaded")
            status, took_ns = Status.FAILED, 0
        self._end(now_ns, now_ns + took_ns, action, status)
        return now_ns + took_ns

    def _expire(self, now_ns: int, late: LaneOperation) -> None:
        self._end(now_ns, now_ns, self._actions[late.action_id], Status.TOO_LATE)

    def _infer_ns(self, now_ns: int, infer: Infer) -> int:
        model = self.models[infer.model]
        solo_ns = max(self._world.solo_ns[row.input_id] for row in infer.rows) if model.base_ns else 0
        took_ns = self.exec_ns(now_ns, infer.model, infer.batch_size, solo_ns)
        return took_ns + self.output_ns(infer.model, len(infer.rows)) if model.co_located else took_ns

    def _end(self, begin_ns: int, end_ns: int, action: Infer | Load, status: Status) -> None:
        self._actions.pop(action.action_id, None)
        schedule = self._world.events.schedule
        if status == Status.OK and isinstance(action, Load):
            schedule(end_ns, self._on_loaded, action.model)
        result = Result(action.action_id, int(status), begin_ns, end_ns, end_ns - begin_ns, begin_ns)
        at_ns = end_ns + self._delay_ns
        schedule(at_ns, self._world.on_result, at_ns, (self, action, result))

    def _on_loaded(self, model: str) -> None:
        if model in self.pages:
            self.loaded[model] = False


def _scale_report(report: ModelReport, factor: float) -> ModelReport:
    profile = report.profile
    assert profile is not None
    exec_ns = {size: int(factor * time_ns) for size, time_ns in profile.exec_ns.items()}
    return msgspec.structs.replace(report, profile=msgspec.structs.replace(profile, exec_ns=exec_ns))
