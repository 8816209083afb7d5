"""INFER actions from arrival to Result: wait for inputs, then run through the lanes INPUT, EXEC and OUTPUT. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import NEVER_NS, s, us
from horologe_common.core.faults import raise_faults
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.instruments import Stats
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Infer, Result, Ship
from horologe_gpu_worker.core.infer_actions import EarlyInputs, InferAction, IoCache
from horologe_gpu_worker.core.lanes import Abort, Finished, LaneOperation
from horologe_gpu_worker.core.responses import batch_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor
    from horologe_gpu_worker.settings import WorkerSettings

EARLY_NS = s(1)
"""Time for which inputs are held before their Infer arrives."""
JOIN_MARGIN_NS = us(500)
"""Start a batch without its missing rows this long before the end of its window."""
LANES = 2
"""INPUT and OUTPUT."""


class InferLifecycle:
    """Every accepted INFER action until its single Result. Only `_finish_action` removes an action."""

    def __init__(self, settings: WorkerSettings, lanes: str, inline_io: Callable[[str], bool]) -> None:
        self.settings = settings
        self.lanes = lanes
        self.inline_io = inline_io
        self.out: list[Out] = []
        self.io = IoCache(settings.io_cache_bytes)
        self.early = EarlyInputs()
        self.stats = Stats()
        self.frame_limits: dict[str, int] = {}
        """Connected peer -> maximum size (bytes) of the tensors of one message to it."""
        self._share_free_ns = [0] * settings.shares
        self._actions: dict[int, InferAction] = {}
        self._newly_accepted: list[InferAction] = []
        """Actions accepted since the last tick with inputs missing. Most of their inputs arrive before the tick, and
        these actions need no timer.
        """
        self._startable: list[InferAction] = []
        self._timers: IndexedHeap[Any, int] = IndexedHeap()

    def __len__(self) -> int:
        return len(self._actions)

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._actions

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of the actions that have no Result yet."""
        return tuple(self._actions)

    def find_action(self, action_id: int) -> InferAction | None:
        """Return an action that has no Result yet."""
        return self._actions.get(action_id)

    def ids_in_lanes(self, model: str) -> list[int]:
        """Return the ids of the model's actions that a lane holds."""
        return [key for key, action in self._actions.items() if action.lane and action.infer.model == model]

    def accept_infer(self, now_ns: int, sender: str, infer: Infer, spec: ModelSpec) -> None:
        """Accept an Infer that `refusal_reason` does not refuse, and wait for its inputs."""
        action_id = infer.action_id
        self._actions[action_id] = action = InferAction(infer, spec, sender)
        if action_id in self.early:
            self._timers.remove(action_id)
            for ship, buffers in self.early.pop_inputs(action_id):
                self._store_inputs(now_ns, action, ship, buffers)
        if now_ns > infer.latest_ns:
            self._finish_action(action, Status.TOO_LATE, now_ns)
        elif action.awaited:
            action.start_partial = infer.latest_ns - JOIN_MARGIN_NS <= now_ns
            self._newly_accepted.append(action)
        else:
            self._startable.append(action)

    def add_inputs(self, now_ns: int, ship: Ship, buffers: Sequence[Buffer]) -> None:
        """Add inputs to the action that waits for them, or hold them until their action arrives."""
        action = self._actions.get(ship.action_id)
        if action is None:
            if ship.action_id not in self.early:
                self._timers.push(ship.action_id, now_ns + EARLY_NS)
            for dropped in self.early.hold_inputs(ship, buffers):
                self._timers.remove(dropped)
            if ship.action_id not in self.early:
                self._timers.remove(ship.action_id)
        elif not action.lane and action.awaited:
            self._store_inputs(now_ns, action, ship, buffers)
            if not action.awaited or action.start_partial:
                self._startable.append(action)

    def cancel_action(self, now_ns: int, action_id: int) -> None:
        """Cancel the action unless its EXEC has begun. An operation that waits in a lane is aborted."""
        action = self._actions.get(action_id)
        if action is None:
            return
        if not action.lane:
            self._finish_action(action, Status.CANCELLED, now_ns)
        elif action.lane != "output":
            action.cancelled = True
            self.out.append(Out(self.lanes, Abort(action_id, action.infer.share, action.lane)))

    def tick(self, now_ns: int) -> None:
        """Start the actions whose inputs are complete, and those whose window closes."""
        for action in self._newly_accepted:
            if action.awaited and action.infer.action_id in self._actions:
                margin_ns = 0 if action.start_partial else JOIN_MARGIN_NS
                self._timers.push(action.infer.action_id, action.infer.latest_ns - margin_ns)
        self._newly_accepted.clear()
        for action_id in self._timers.pop_up_to(now_ns):
            if (late := self._actions.get(action_id)) is None:
                self.early.drop_inputs(action_id)
                continue
            if now_ns < late.infer.latest_ns:
                late.start_partial = True
                self._timers.push(action_id, late.infer.latest_ns)
            else:
                late.fail_awaited_rows()
            self._startable.append(late)
        startable, self._startable = self._startable, []
        errors = []
        for action in startable:
            if not action.lane and action.infer.action_id in self._actions:
                try:
                    self._start_action(now_ns, action)
                except Exception as error:
                    errors.append(error)
                    self._finish_action(action, Status.FAILED, now_ns, reason=f"{type(error).__name__}: {error}")
        if errors:
            raise_faults(errors)

    def wakeup_ns(self) -> int | None:
        """Return the time at which the next window closes or early inputs expire."""
        return self._timers.smallest_priority()

    def advance_action(self, now_ns: int, finished: Finished) -> None:
        """Hand an action whose operation has finished to its next lane, or finish it."""
        action = self._actions.get(finished.action_id)
        if action is None or finished.lane != action.lane:
            return
        if action.lane == "exec":
            self._record_exec(action, finished)
            action.fail_started_rows(finished.failed)
        else:
            action.lanes_end_ns += (finished.end_ns,)
        if finished.status != Status.OK:
            self._finish_action(action, Status(finished.status), finished.begin_ns, reason=finished.reason)
        elif action.lane == "input" and action.cancelled:
            self._finish_action(action, Status.CANCELLED, now_ns)
        elif action.lane == "input":
            self._start_next_lane(action, "exec", finished)
        elif action.lane == "exec" and not action.inline_io:
            self._start_next_lane(action, "output", finished)
        else:
            action.more = finished.more
            self._finish_action(action, Status.OK, now_ns, finished.outputs, content_hash=finished.content_hash)

    def _record_exec(self, action: InferAction, finished: Finished) -> None:
        action.timing = (finished.begin_ns, finished.end_ns, finished.device_ns)
        if finished.status == Status.OK:
            share = action.infer.share
            possible_ns = max(action.infer.earliest_ns, self._share_free_ns[share], action.ready_ns)
            self.stats.observe("horologe_start_error_seconds", value=max(0, finished.begin_ns - possible_ns))
            self._share_free_ns[share] = finished.end_ns

    def check(self) -> None:
        self.io.check()
        self.early.check()
        self._timers.check()
        assert self._actions or not self.io.held_bytes

    def _store_inputs(self, now_ns: int, action: InferAction, ship: Ship, buffers: Sequence[Buffer]) -> None:
        if self.io.acquire(ship.action_id, sum(map(len, buffers))):
            action.store_inputs(ship, buffers, now_ns)
        else:
            action.fail_ship(ship, f"io cache: {self.io.held_bytes} bytes held, no room for more")
        if ship.missing:
            action.fail_missing_inputs(ship)

    def _start_action(self, now_ns: int, action: InferAction) -> None:
        """Send the action to its first lane with the rows that have inputs.

        Do nothing if no row has inputs and some may still arrive.
        """
        if action.awaited and action.awaited + len(action.failed) == len(action.infer.rows):
            return
        action.fail_awaited_rows()
        self._timers.remove(action.infer.action_id)
        action.inline_io = action.step is not None or self.inline_io(action.infer.model)
        operation = action.build_operation("exec" if action.inline_io else "input")
        if operation is None:
            status, reason = next(iter(action.failed.values()))
            self._finish_action(action, Status(status), now_ns, reason=reason)
        else:
            self.out.append(Out(self.lanes, operation))

    def _start_next_lane(self, action: InferAction, lane: str, finished: Finished) -> None:
        """Send the action to its next lane. EXEC inherits the window; OUTPUT runs at once (Clockwork section 5.2)."""
        infer, action.lane = action.infer, lane
        earliest_ns, latest_ns = (infer.earliest_ns, infer.latest_ns) if lane == "exec" else (0, NEVER_NS)
        operation = LaneOperation(
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
            spec=action.spec,
        )
        self.out.append(Out(self.lanes, operation))

    def _finish_action(
        self,
        action: InferAction,
        status: Status,
        now_ns: int,
        outputs: Sequence[tuple[Tensor, Buffer]] = (),
        reason: str = "",
        content_hash: str = "",
    ) -> None:
        """Send the action's single Result, and Outputs to the submitters if the model ran.

        If the model did not run, the controller answers the submitters. Outputs that cannot be split fail the action.
        """
        action_id, fault = action.infer.action_id, None
        messages: list[Out] = []
        if status in (Status.OK, Status.FAILED):
            try:
                messages = batch_outputs(action, status, outputs, reason, content_hash, self.frame_limits)
            except Exception as error:
                fault, status, reason = error, Status.FAILED, f"outputs: {type(error).__name__}: {error}"
                messages = batch_outputs(action, status, (), reason, content_hash, self.frame_limits)
        del self._actions[action_id]
        self.io.release(action_id)
        if action.awaited or action.failed:
            self.early.mark_finished(action_id)
            self._timers.remove(action_id)
        begin_ns, end_ns, device_ns = action.timing if action.timing[1] else (now_ns, now_ns, 0)
        result = Result(
            action_id,
            int(status),
            begin_ns,
            end_ns,
            device_ns,
            action.ready_ns,
            action.failed_rows(),
            reason,
            action.lanes_end_ns if len(action.lanes_end_ns) == LANES else (),
        )
        self.out.append(Out(action.controller, result))
        self.out.extend(messages)
        if fault is not None:
            raise fault


def refusal_reason(infer: Infer, spec: ModelSpec | None, shares: int) -> str:
    """Return the reason why the worker cannot run this Infer; empty if it can."""
    if spec is None:
        return f"model {infer.model}: not served by this worker"
    if not 0 <= infer.share < shares:
        return f"share: got {infer.share}, wanted one below {shares}"
    if infer.batch_size not in spec.batch_sizes:
        return f"batch_size: got {infer.batch_size}, wanted one of {list(spec.batch_sizes)}"
    count, parties = 0, len(infer.parties)
    for row in infer.rows:
        if row.rows < 1 or row.holder >= parties or row.submitter >= parties:
            return f"rows: wanted at least one row each, and holder and submitter below {parties} parties"
        count += row.rows
    if any(row.stream for row in infer.rows) and (len(infer.rows) > 1 or not spec.streams):
        return f"rows: got steps of streams in {len(infer.rows)} rows, wanted one, of a model that streams"
    if not infer.rows or count > infer.batch_size or (not spec.batched and len(infer.rows) > 1):
        return f"rows: got {count} in {len(infer.rows)} inputs, wanted 1 to {infer.batch_size}"
    return ""
