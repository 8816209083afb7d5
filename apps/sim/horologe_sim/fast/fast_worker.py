"""The worker of the fast world, with windows and pages like the real one, and one event per action.

INFERs use the `Lane` of the real worker. INPUT and OUTPUT overlap EXEC and are left out, as are tensors. Co-located
models have them: INPUT before EXEC, and OUTPUT after it as a part of EXEC (h of iGniter's Eq. 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS, s, us
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, ModelReport, Result
from horologe_controller.settings import ControllerSettings
from horologe_gpu_worker.core.lanes import Lane, Operation
from horologe_gpu_worker.core.residency import PageCache
from horologe_sim.engine.noise import NOISES, Noise
from horologe_sim.scenario.clockwork_models import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horologe_common.models import Profile
    from horologe_sim.engine.noise import Draws
    from horologe_sim.engine.virtual_worker import SimModel

Ended = tuple["FastDevice", "Infer | Load", Result]


class FastClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster of a run in the fast world."""

    devices: int = 1
    pages: int = PAGES
    noise: Noise = NOISES["clockwork"]
    settle_ns: int = s(3)
    """Time before the load, in which free pages are filled."""
    client_ns: int = us(100)
    """Delay between a client and the edge."""
    worker_ns: int = us(60)
    """Delay from the controller to a worker, and from a worker to the controller and to the edge."""
    grace_ns: int = 0
    """Time after the SLO until a client gets its final answer. Late outputs are sent until then."""
    turn_ns: int = us(50)
    """Duration of a turn of the controller. A message that arrives meanwhile is handled in the next turn."""
    charge_decisions: bool = False
    """Lengthen each turn by the processor time that the controller took for it on this machine. The results then differ
    from run to run."""
    controller: ControllerSettings = ControllerSettings()

    @property
    def answer_ns(self) -> int:
        """Delay from a worker to the client."""
        return self.worker_ns + self.client_ns


class LaneRun:
    """A lane. Everything in it is decided up to `clock_ns`."""

    __slots__ = ("busy_ns", "clock_ns", "lane", "wake_ns")

    def __init__(self) -> None:
        self.lane = Lane()
        self.clock_ns = 0
        self.busy_ns = 0
        self.wake_ns = 0


class FastDevice:
    """A device. `schedule(time, call, argument)` makes an event. `on_result` gets each Result at the controller.

    `solo_ns`: execution time alone of each request of a dynamic model, by input id. `factor`: its times as a multiple
    of those of `models`, which its profiles show.
    """

    def __init__(
        self,
        address: str,
        models: Mapping[str, SimModel],
        pages: int,
        draws: Draws,
        delay_ns: int,
        schedule: Callable[..., None],
        on_result: Callable[[int, Ended], None],
        solo_ns: Mapping[int, int],
        factor: float = 1.0,
    ) -> None:
        self.address = address
        self.pages = PageCache(pages)
        self.loaded: dict[str, bool] = {}
        """Loaded models, and whether the Result of each LOAD has reached the controller."""
        self.violations: list[str] = []
        self.factor = factor
        self.slowness = 1.0
        """Execution times as a multiple of those that its profiles show."""
        self.exec, self.load = LaneRun(), LaneRun()
        self._models = models
        self._draws = draws
        self._delay_ns = delay_ns
        self._schedule = schedule
        self._on_result = on_result
        self._solo_ns = solo_ns
        self._input_free_ns = 0
        self._actions: dict[int, Infer | Load] = {}

    def reports(self) -> tuple[ModelReport, ...]:
        """Return the reports of its models, with its own execution times."""
        reports = (model.report for model in self._models.values())
        return tuple(reports if self.factor == 1.0 else (_scale_report(report, self.factor) for report in reports))

    def hold(self, models: Iterable[str]) -> Iterable[str]:
        """Load the models that fit, without a LOAD, and return all loaded models."""
        for model in models:
            if self.pages.allocate(model, self._models[model].report.spec.pages):
                self.loaded[model] = True
        return self.loaded

    def infer(self, now_ns: int, infer: Infer) -> None:
        """Handle an INFER that the controller sends at `now_ns`."""
        ready_ns = now_ns + self._delay_ns
        if times := self._models[infer.model].co_located:
            ready_ns = self._input_free_ns = max(ready_ns, self._input_free_ns) + times.input_ns(len(infer.rows))
        self._push(ready_ns, self.exec, "exec", infer)

    def begin_load(self, now_ns: int, load: Load) -> None:
        """Handle a LOAD that the controller sends at `now_ns`. Its pages are allocated at once."""
        pages = self._models[load.model].report.spec.pages
        if self.pages.allocate(load.model, pages):
            self._push(now_ns + self._delay_ns, self.load, "load", load)
        else:
            self.violations.append(f"{self.address}: {load.model} needs {pages:g}, {self.pages.free_pages:g} are free")
            self._end(now_ns + self._delay_ns, now_ns + self._delay_ns, load, Status.FAILED)

    def unload(self, model: str) -> bool:
        """Free the pages of a model. Return whether the controller knew that it was loaded."""
        self.pages.free(model)
        return self.loaded.pop(model, False)

    def busy_ns(self, now_ns: int) -> tuple[int, int]:
        """Return the EXEC and LOAD time up to now."""
        return tuple(run.busy_ns - max(0, run.clock_ns - now_ns) for run in (self.exec, self.load))  # type: ignore[return-value]

    def advance(self, until_ns: int, run: LaneRun) -> None:
        """Run the operations of a lane that begin up to `until_ns`."""
        while run.clock_ns <= until_ns:
            now_ns = run.clock_ns
            while (late := run.lane.pop_expired(now_ns)) is not None:
                self._end(now_ns, now_ns, self._actions[late.action_id], Status.TOO_LATE)
            todo = run.lane.pop_startable(now_ns)
            if todo is None:
                return
            if isinstance(todo, Operation):
                self._begin(now_ns, run, todo)
            elif now_ns + todo <= until_ns:
                run.clock_ns = now_ns + todo
            else:
                self._wake(now_ns + todo, run)
                return

    def check(self) -> None:
        """Check the invariants of pages and lanes, and that no action was impossible."""
        self.pages.check()
        self.exec.lane.check()
        self.load.lane.check()
        assert not self.violations, self.violations[:5]

    def _push(self, arrival_ns: int, run: LaneRun, lane: str, action: Infer | Load) -> None:
        """Queue an action. Everything before its arrival can be decided, because later actions arrive later."""
        self.advance(arrival_ns, run)
        if arrival_ns > action.latest_ns:
            self._end(arrival_ns, arrival_ns, action, Status.TOO_LATE)
            return
        run.clock_ns = max(run.clock_ns, arrival_ns)
        self._actions[action.action_id] = action
        run.lane.push(
            Operation(
                action.action_id,
                action.share,
                lane,
                action.model,
                earliest_ns=action.earliest_ns,
                latest_ns=action.latest_ns,
            )
        )
        self.advance(arrival_ns, run)

    def _begin(self, now_ns: int, run: LaneRun, todo: Operation) -> None:
        action = self._actions[todo.action_id]
        profile = self._models[todo.model].report.profile
        assert profile is not None
        status = Status.OK
        if isinstance(action, Load):
            took_ns = self._draws.noisy(profile.load_ns, "load")
        elif todo.model in self.loaded:
            took_ns = self._exec_ns(now_ns, action, profile)
        else:
            self.violations.append(f"{self.address}: EXEC of {todo.model}, which is not loaded")
            status, took_ns = Status.FAILED, 0
        run.clock_ns = now_ns + took_ns
        run.busy_ns += took_ns
        self._end(now_ns, run.clock_ns, action, status)

    def _exec_ns(self, now_ns: int, infer: Infer, profile: Profile) -> int:
        """Return the time with noise of an EXEC that begins at `now_ns`.

        The profiled time; for a dynamic model base + size * (longest - base), for padded rows.
        """
        model = self._models[infer.model]
        if times := model.co_located:
            took_ns = times.begin_exec(now_ns, infer.batch_size) + times.output_ns(len(infer.rows))
            return round(self.factor * self.slowness * took_ns)
        exec_ns = profile.exec_ns[infer.batch_size]
        if model.base_ns:
            longest_ns = max(self._solo_ns[row.input_id] for row in infer.rows)
            exec_ns = model.base_ns + infer.batch_size * (longest_ns - model.base_ns)
        return self._draws.noisy(int(self.factor * self.slowness * exec_ns))

    def _end(self, begin_ns: int, end_ns: int, action: Infer | Load, status: Status) -> None:
        self._actions.pop(action.action_id, None)
        if status == Status.OK and isinstance(action, Load):
            self._schedule(end_ns, self._load_done, action.model)
        result = Result(action.action_id, int(status), begin_ns, end_ns, end_ns - begin_ns, begin_ns)
        self._schedule(end_ns + self._delay_ns, self._on_result, (self, action, result))

    def _load_done(self, now_ns: int, model: str) -> None:
        if model in self.pages:
            self.loaded[model] = False

    def _wake(self, at_ns: int, run: LaneRun) -> None:
        if run.wake_ns != at_ns:
            run.wake_ns = at_ns
            self._schedule(at_ns, self._on_wakeup, run)

    def _on_wakeup(self, now_ns: int, run: LaneRun) -> None:
        run.clock_ns = max(run.clock_ns, min(now_ns, NEVER_NS))
        self.advance(now_ns, run)


def _scale_report(report: ModelReport, factor: float) -> ModelReport:
    profile = report.profile
    assert profile is not None
    exec_ns = {size: int(factor * time_ns) for size, time_ns in profile.exec_ns.items()}
    return msgspec.structs.replace(report, profile=msgspec.structs.replace(profile, exec_ns=exec_ns))
