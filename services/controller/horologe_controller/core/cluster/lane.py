"""Lanes of a share, as the controller sees them: pending actions, and when each lane will be free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from horologe_common.clock import NEVER_NS, ms, s
from horologe_controller.core.cluster.message_latency import MessageLatency

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request

ActionKind = Literal["infer", "load"]
ACTION_GRACE_NS = ms(250)
"""An action this long after its predicted end is overdue. Its requests are planned elsewhere, its worker drops it if it
has not begun, and its share gets nothing more until a Result arrives."""
BESIDE_NS = s(1)
"""Time for which a LOAD that runs beside others delays the next one, so that processes do not all start at once."""


class Action:
    """A LOAD or an INFER sent to a share at `sent_ns`.

    `start_ns` is predicted in the controller's clock, and corrected when earlier actions end.
    """

    def __init__(
        self,
        id: int,
        share: Share,
        model: str,
        batch_size: int,
        requests: list[Request],
        sent_ns: int,
        start_ns: int,
        expected_ns: int,
        slack_ns: int = 0,
        is_beside: bool = False,
    ) -> None:
        self.id = id
        self.kind: ActionKind = "infer" if batch_size else "load"
        self.share = share
        self.model = model
        self.batch_size = batch_size
        self.requests = requests
        self.sent_ns = sent_ns
        self.start_ns = start_ns
        self.expected_ns = expected_ns
        self.promised_ns = start_ns + expected_ns
        """Predicted end when the action was planned."""
        self.slack_ns = slack_ns
        """Time after the predicted end that the action may take, because the prediction is a guess."""
        self.is_beside = is_beside
        """A LOAD that runs beside others."""

    @property
    def end_ns(self) -> int:
        """Predicted end."""
        return self.start_ns + self.expected_ns

    def open_requests(self) -> list[Request]:
        """Return the requests that still wait for this action."""
        return [request for request in self.requests if request.action_id == self.id]


class Lane:
    """Pending actions of one lane, in the order of execution."""

    def __init__(self, latency: MessageLatency | None = None) -> None:
        self._latency = MessageLatency() if latency is None else latency
        self.pending: dict[int, Action] = {}
        self.due_ns = NEVER_NS
        """Predicted end of the oldest pending action, with its slack."""

    def append_action(self, action: Action) -> None:
        """Add an action behind all others."""
        self.pending[action.id] = action
        if len(self.pending) == 1:
            self.due_ns = action.promised_ns + action.slack_ns

    def clear(self) -> None:
        """Drop all pending actions: the worker is lost."""
        self.pending.clear()
        self.due_ns = NEVER_NS

    def free_at(self, now_ns: int) -> int:
        """Return the predicted end of the last pending action, `now_ns` at the earliest.

        The first action may be late already: its Result would be here if it had ended a return latency ago.
        """
        at_ns = 0
        for action in self.pending.values():
            if at_ns:
                at_ns += action.expected_ns
            else:
                at_ns = max(now_ns - self._latency.return_ns, action.start_ns + action.expected_ns)
        return max(at_ns, now_ns)

    @property
    def delays_until_ns(self) -> int:
        """Return until when the pending actions delay others that run beside them; 0 without any."""
        if not self.pending:
            return 0
        ends_ns = (action.sent_ns + min(action.expected_ns, BESIDE_NS) for action in self.pending.values())
        return max(ends_ns)

    def finish_action(self, action: Action, at_ns: int) -> None:
        """Remove an action that ended at `at_ns`. If it was the first, the next one is taken to have begun then."""
        pending = self.pending
        was_first = action is next(iter(pending.values()), None)
        pending.pop(action.id, None)
        if was_first:
            self.due_ns = NEVER_NS
            for following in pending.values():
                following.start_ns = max(at_ns, following.sent_ns + self._latency.dispatch_ns)
                self.due_ns = following.start_ns + following.expected_ns + following.slack_ns
                break

    def is_overdue(self, now_ns: int) -> bool:
        """Return whether the oldest action should have ended more than `ACTION_GRACE_NS` ago: the worker hangs."""
        return now_ns > self.due_ns + ACTION_GRACE_NS
