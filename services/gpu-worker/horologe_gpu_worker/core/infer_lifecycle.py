"""INFER actions from arrival to answer: joined with their inputs, through the lanes INPUT, EXEC and OUTPUT. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_common.core.protocol import Out
from horologe_common.core.timers import Timers
from horologe_common.service.metrics import Stats
from horologe_common.status import Status
from horologe_common.wire import Infer, Result, Ship
from horologe_gpu_worker.core.batch_responses import answers
from horologe_gpu_worker.core.early_inputs import EarlyInputs
from horologe_gpu_worker.core.infer_actions import Action
from horologe_gpu_worker.core.lanes import Abort, Finished, Operation
from horologe_gpu_worker.execution.io_cache import IoCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor
    from horologe_gpu_worker.settings import WorkerSettings


class Infers:
    """Every accepted Infer until its one Result. `_end` is the only place that removes one."""

    def __init__(self, settings: WorkerSettings, lanes: str, inline_io: Callable[[str], bool]) -> None:
        self.settings = settings
        self.lanes = lanes
        self.inline_io = inline_io
        self.out: list[Out] = []
        self.io = IoCache(settings.io_cache_bytes)
        self.early = EarlyInputs(settings.early_max, settings.early_bytes)
        self.stats = Stats()
        self._free_at_ns = [0] * settings.shares
        self._actions: dict[int, Action] = {}
        self._accepted: list[Action] = []
        """In this drain, with inputs missing: mostly the drain brings these too, and no timer is needed."""
        self._ready: list[Action] = []
        self._deadlines = Timers()

    def __len__(self) -> int:
        return len(self._actions)

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._actions

    @property
    def running(self) -> tuple[int, ...]:
        """Ids of the actions that have not ended."""
        return tuple(self._actions)

    def accept(self, now_ns: int, sender: str, infer: Infer, spec: ModelSpec) -> None:
        """Wait for the inputs of an Infer that `actions.refusal` has nothing against."""
        action_id = infer.action_id
        self._actions[action_id] = action = Action(infer, spec, sender)
        if action_id in self.early:
            self._deadlines.cancel(action_id)
            for ship, buffers in self.early.take(action_id):
                self._join(now_ns, action, ship, buffers)
        if now_ns > infer.latest_ns:
            self._end(action, Status.TOO_LATE, now_ns)
        elif action.waiting:
            action.cut = infer.latest_ns - self.settings.join_margin_ns <= now_ns
            self._accepted.append(action)
        else:
            self._ready.append(action)

    def ship(self, now_ns: int, ship: Ship, buffers: Sequence[Buffer]) -> None:
        """Inputs have come: for an action that waits for them, or for one that is still on its way."""
        action = self._actions.get(ship.action_id)
        if action is None:
            if ship.action_id not in self.early:
                self._deadlines.arm(ship.action_id, now_ns + self.settings.early_ns)
            for dropped in self.early.hold(ship, buffers):
                self._deadlines.cancel(dropped)
            if ship.action_id not in self.early:
                self._deadlines.cancel(ship.action_id)
        elif not action.lane and action.waiting:
            self._join(now_ns, action, ship, buffers)
            if not action.waiting or action.cut:
                self._ready.append(action)

    def cancel(self, now_ns: int, action_id: int) -> None:
        """Drop the action unless its EXEC has begun (what has been handed to a lane is taken back if it can be)."""
        action = self._actions.get(action_id)
        if action is None:
            return
        if not action.lane:
            self._end(action, Status.CANCELLED, now_ns)
        elif action.lane != "output":
            action.cancelled = True
            self.out.append(Out(self.lanes, Abort(action_id, action.infer.share, action.lane)))

    def tick(self, now_ns: int) -> None:
        """Start what has become complete; where the window closes, stop waiting."""
        for new in self._accepted:
            if new.waiting and new.infer.action_id in self._actions:
                at_ns = new.infer.latest_ns - (0 if new.cut else self.settings.join_margin_ns)
                self._deadlines.arm(new.infer.action_id, at_ns)
        self._accepted.clear()
        for action_id in self._deadlines.pop_expired(now_ns):
            if (action := self._actions.get(action_id)) is None:
                self.early.drop(action_id)
                continue
            if now_ns < action.infer.latest_ns:
                action.cut = True
                self._deadlines.arm(action_id, action.infer.latest_ns)
            else:
                action.give_up_waiting()
            self._ready.append(action)
        ready, self._ready = self._ready, []
        for action in ready:
            if not action.lane and action.infer.action_id in self._actions:
                self._start(now_ns, action)

    def wakeup_ns(self) -> int | None:
        """When a window closes or early inputs expire."""
        return self._deadlines.next_ns()

    def finished(self, now_ns: int, finished: Finished) -> None:
        """A lane is through with its part: on to the next lane, or to the end."""
        action = self._actions.get(finished.action_id)
        if action is None or finished.lane != action.lane:
            return
        if action.lane == "exec":
            self._ran(action, finished)
        if finished.status != Status.OK:
            self._end(action, Status(finished.status), finished.begin_ns, reason=finished.reason)
        elif action.lane == "input" and action.cancelled:
            self._end(action, Status.CANCELLED, now_ns)
        elif action.lane == "input":
            self._hand_on(action, "exec", finished)
        elif action.lane == "exec" and not self.inline_io(action.infer.model):
            self._hand_on(action, "output", finished)
        else:
            self._end(action, Status.OK, now_ns, finished.outputs)

    def _ran(self, action: Action, finished: Finished) -> None:
        action.timing = (finished.begin_ns, finished.end_ns, finished.device_ns)
        if finished.status == Status.OK:
            share = action.infer.share
            possible_ns = max(action.infer.earliest_ns, self._free_at_ns[share], action.ready_ns)
            self.stats.observe("horologe_start_error_seconds", value=max(0, finished.begin_ns - possible_ns))
            self._free_at_ns[share] = finished.end_ns

    def check(self) -> None:
        """Raise AssertionError where a law is broken."""
        self.io.check()
        self.early.check()
        self._deadlines.check()
        assert self._actions or not self.io.held_bytes

    def _join(self, now_ns: int, action: Action, ship: Ship, buffers: Sequence[Buffer]) -> None:
        for index, headers, row_buffers in action.wanted(ship, buffers):
            if self.io.acquire(ship.action_id, sum(map(len, row_buffers))):
                action.arrived(index, headers, row_buffers, now_ns)
            else:
                action.fail(index, Status.MISSING_INPUT, f"io cache: {self.io.held_bytes} bytes held, no room for more")
        if ship.missing:
            action.lost(ship)

    def _start(self, now_ns: int, action: Action) -> None:
        """To the first lane with the rows that are here, unless none is and some may still come."""
        if action.waiting and action.waiting + len(action.failed) == len(action.infer.rows):
            return
        action.give_up_waiting()
        self._deadlines.cancel(action.infer.action_id)
        operation = action.operation("exec" if self.inline_io(action.infer.model) else "input")
        if operation is None:
            status, reason = next(iter(action.failed.values()))
            self._end(action, Status(status), now_ns, reason=reason)
        else:
            self.out.append(Out(self.lanes, operation))

    def _hand_on(self, action: Action, lane: str, finished: Finished) -> None:
        """To the next lane. EXEC inherits the action's window, OUTPUT runs at once (Clockwork section 5.2)."""
        infer, action.lane = action.infer, lane
        earliest_ns, latest_ns = (infer.earliest_ns, infer.latest_ns) if lane == "exec" else (0, NEVER_NS)
        operation = Operation(
            infer.action_id,
            infer.share,
            lane,
            infer.model,
            action.batch_size,
            action.rows,
            earliest_ns,
            latest_ns,
            infer.expected_ns,
            staged=finished.staged,
        )
        self.out.append(Out(self.lanes, operation))

    def _end(
        self,
        action: Action,
        status: Status,
        now_ns: int,
        outputs: Sequence[tuple[Tensor, Buffer]] = (),
        reason: str = "",
    ) -> None:
        """The one Result, and Outputs to the submitters if the model was run (else the controller answers them)."""
        action_id = action.infer.action_id
        del self._actions[action_id]
        self.io.release(action_id)
        if action.waiting or action.failed:
            self.early.ended(action_id)
            self._deadlines.cancel(action_id)
        begin_ns, end_ns, device_ns = action.timing if action.timing[1] else (now_ns, now_ns, 0)
        result = Result(action_id, int(status), begin_ns, end_ns, device_ns, action.ready_ns, action.not_ok(), reason)
        self.out.append(Out(action.controller, result))
        if status in (Status.OK, Status.FAILED):
            self.out.extend(answers(action, status, outputs, reason))
