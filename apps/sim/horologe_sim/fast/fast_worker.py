"""A lean worker: keeps windows and pages as the real one does, and says what each action came to. One event each.

INFERs go through the same `Lane` as in a real worker; INPUT and OUTPUT overlap EXEC and are left out, as are tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Result
from horologe_gpu_worker.core.lanes import Lane, Operation
from horologe_gpu_worker.core.residency import PageCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_common.models import Profile
    from horologe_sim.engine.noise import Draws
    from horologe_sim.engine.virtual_worker import SimModel

Ended = tuple["FastDevice", "Infer | Load", Result]


class LaneRun:
    """One lane. `clock_ns`: up to when everything in it has been decided."""

    __slots__ = ("busy_ns", "clock_ns", "lane", "wake_ns")

    def __init__(self) -> None:
        self.lane = Lane()
        self.clock_ns = 0
        self.busy_ns = 0
        self.wake_ns = 0


class FastDevice:
    """`at(time, call, argument)` makes an event; `ended` is called with each Result when it reaches the controller.

    `solo_ns`: by input, what requests of dynamic models take alone.
    """

    def __init__(
        self,
        address: str,
        models: Mapping[str, SimModel],
        pages: int,
        draws: Draws,
        delay_ns: int,
        at: Callable[..., None],
        ended: Callable[[int, Ended], None],
        solo_ns: Mapping[int, int],
    ) -> None:
        self.address = address
        self.pages = PageCache(pages)
        self.loaded: dict[str, bool] = {}
        self.violations: list[str] = []
        self.exec, self.load = LaneRun(), LaneRun()
        self._models = models
        self._draws = draws
        self._delay_ns = delay_ns
        self._at = at
        self._ended = ended
        self._solo_ns = solo_ns
        self._actions: dict[int, Infer | Load] = {}

    def infer(self, now_ns: int, infer: Infer) -> None:
        """Sent by the controller at `now_ns`."""
        self._push(now_ns + self._delay_ns, self.exec, "exec", infer)

    def begin_load(self, now_ns: int, load: Load) -> None:
        """Sent by the controller at `now_ns`. Pages are taken at once."""
        pages = self._models[load.model].report.spec.pages
        if self.pages.allocate(load.model, pages):
            self._push(now_ns + self._delay_ns, self.load, "load", load)
        else:
            self.violations.append(f"{self.address}: {load.model} needs {pages}, {self.pages.free_pages} are free")
            self._end(now_ns + self._delay_ns, now_ns + self._delay_ns, load, Status.FAILED)

    def unload(self, model: str) -> bool:
        """Free the pages. True if the model could have been run."""
        self.pages.free(model)
        return self.loaded.pop(model, False)

    def busy_ns(self, now_ns: int) -> tuple[int, int]:
        """EXEC and LOAD time up to now, of what has begun."""
        return tuple(run.busy_ns - max(0, run.clock_ns - now_ns) for run in (self.exec, self.load))  # type: ignore[return-value]

    def advance(self, until_ns: int, run: LaneRun) -> None:
        """Begin, one after the other, what begins up to `until_ns`."""
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
        """The laws of its pages and lanes, and that nothing impossible was asked of it."""
        self.pages.check()
        self.exec.lane.check()
        self.load.lane.check()
        assert not self.violations, self.violations[:5]

    def _push(self, arrival_ns: int, run: LaneRun, lane: str, action: Infer | Load) -> None:
        """Everything before its arrival is decided by now: what is sent later arrives later."""
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
            took_ns = self._draws.noisy(self._exec_ns(action, profile))
        else:
            self.violations.append(f"{self.address}: EXEC of {todo.model}, which is not loaded")
            status, took_ns = Status.FAILED, 0
        run.clock_ns = now_ns + took_ns
        run.busy_ns += took_ns
        self._end(now_ns, run.clock_ns, action, status)

    def _exec_ns(self, infer: Infer, profile: Profile) -> int:
        """By the profile; of a dynamic model base + size * (longest - base), its rows padded to the longest."""
        base_ns = self._models[infer.model].base_ns
        if not base_ns:
            return profile.exec_ns[infer.batch_size]
        longest_ns = max(self._solo_ns[row.input_id] for row in infer.rows)
        return base_ns + infer.batch_size * (longest_ns - base_ns)

    def _end(self, begin_ns: int, end_ns: int, action: Infer | Load, status: Status) -> None:
        self._actions.pop(action.action_id, None)
        if status == Status.OK and isinstance(action, Load):
            self._at(end_ns, self._load_done, action.model)
        result = Result(action.action_id, int(status), begin_ns, end_ns, end_ns - begin_ns, begin_ns)
        self._at(end_ns + self._delay_ns, self._ended, (self, action, result))

    def _load_done(self, now_ns: int, model: str) -> None:
        if model in self.pages:
            self.loaded[model] = True

    def _wake(self, at_ns: int, run: LaneRun) -> None:
        if run.wake_ns != at_ns:
            run.wake_ns = at_ns
            self._at(at_ns, self._woken, run)

    def _woken(self, now_ns: int, run: LaneRun) -> None:
        run.clock_ns = max(run.clock_ns, min(now_ns, NEVER_NS))
        self.advance(now_ns, run)
