"""Prediction errors of the controller, one value per action (Clockwork section 6.5, Fig. 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.core.hosting import CoreObserver
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Result
from horologe_controller.core.actions import error_side
from horologe_controller.core.controller import Controller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_controller.core.cluster.lane import Action

Key = tuple[str, str, str]
"""`(action, error, side)`: infer or load; start, prediction or completion; over or under."""


class _Sent(NamedTuple):
    action: Action
    earliest_ns: int
    """Start of the window, in the clock of the worker."""


class ActionErrors(CoreObserver):
    """Observes a controller, and stores the errors of the actions sent in [from_ns, until_ns).

    - prediction and completion: as the metrics `horologe_prediction_error_seconds` and
      `horologe_completion_error_seconds`.
    - start: time from the earliest possible start to the actual start, always `under`. The earliest possible start is
      the latest of window start, end of the previous action of the lane, and arrival of the inputs. The start error of
      a LOAD includes the network delay of its message.
    """

    def __init__(self, from_ns: int = 0, until_ns: int | None = None) -> None:
        self.values: dict[Key, list[int]] = {}
        """Absolute errors in nanoseconds."""
        self.statuses: dict[tuple[str, str], int] = {}
        """Number of actions by `(action, status)`."""
        self._from_ns = from_ns
        self._until_ns = until_ns
        self._sent: dict[int, _Sent] = {}
        self._free_ns: dict[tuple[str, int, str], int] = {}
        """End of the last action by (worker, share, kind of action)."""

    def observe_message(self, now_ns: int, core: Core, sender: str, message: object, buffers: Sequence[Buffer]) -> None:
        """Store the errors of the action that a Result reports."""
        if not (isinstance(message, Result) and isinstance(core, Controller)):
            return
        sent = self._sent.pop(message.action_id, None)
        if sent is None or sent.action.share.worker != sender:
            return
        action = sent.action
        lane = sender, action.share.number, action.kind
        free_ns = self._free_ns.get(lane, 0)
        if message.status == Status.OK:
            self._free_ns[lane] = message.end_ns
        if not self._is_in_interval(action):
            return
        key = action.kind, Status(message.status).name
        self.statuses[key] = self.statuses.get(key, 0) + 1
        if message.status == Status.OK:
            possible_ns = max(sent.earliest_ns, free_ns, message.ready_ns)
            end_ns = min(now_ns, message.end_ns - core.cluster.workers[sender].offset_ns())
            self._add_error(action.kind, "start", "under", max(0, message.begin_ns - possible_ns))
            for error, error_ns in (
                ("prediction", message.end_ns - message.begin_ns - action.expected_ns),
                ("completion", end_ns - action.promised_ns),
            ):
                self._add_error(action.kind, error, error_side(error_ns), abs(error_ns))

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Store the predictions of the actions that the controller sends."""
        if not isinstance(core, Controller):
            return
        for out in outs:
            message, worker = out.message, core.cluster.workers.get(out.to)
            if worker and isinstance(message, Infer | Load):
                share = worker.shares[message.share]
                pending = (share.exec if isinstance(message, Infer) else share.load).pending
                if action := pending.get(message.action_id):
                    self._sent[action.id] = _Sent(action, message.earliest_ns)

    def _is_in_interval(self, action: Action) -> bool:
        return self._from_ns <= action.sent_ns and (self._until_ns is None or action.sent_ns < self._until_ns)

    def _add_error(self, action: str, error: str, side: str, value_ns: int) -> None:
        self.values.setdefault((action, error, side), []).append(value_ns)
