"""Lanes as the controller sees them: what was given to each and has not ended, and when it will be free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from horologe_controller.queues import Request
    from horologe_controller.share import Share

Kind = Literal["infer", "load"]


class Action(msgspec.Struct):
    """Something a share was told to do at `sent_ns`. `start_ns`, `end_ns`: predicted, in the controller's clock.

    `promised_ns` is the `end_ns` of when it was planned.
    """

    id: int
    kind: Kind
    share: Share
    model: str
    batch_size: int
    requests: list[Request]
    sent_ns: int
    start_ns: int
    end_ns: int
    expected_ns: int
    promised_ns: int

    def open_requests(self) -> list[Request]:
        """Those that still wait for this action."""
        return [request for request in self.requests if request.action_id == self.id]


class Lane:
    """Pending actions of one lane, in order, and when it will be free."""

    def __init__(self) -> None:
        self.pending: dict[int, Action] = {}

    def free_at(self, now_ns: int) -> int:
        """When all that is pending should have ended; the first may already be late."""
        at_ns = 0
        for action in self.pending.values():
            at_ns = at_ns + action.expected_ns if at_ns else max(now_ns, action.start_ns + action.expected_ns)
        return at_ns or now_ns

    def ended(self, action: Action, at_ns: int) -> None:
        """An action has ended: if it was the one that ran, the next one began then, whatever was predicted."""
        ran = action is next(iter(self.pending.values()), None)
        self.pending.pop(action.id, None)
        if ran and (following := next(iter(self.pending.values()), None)):
            following.start_ns = max(following.sent_ns, at_ns)
            following.end_ns = following.start_ns + following.expected_ns

    def overdue(self, now_ns: int, grace_ns: int) -> bool:
        """Whether the oldest action should have been heard of long ago: the worker hangs."""
        first = next(iter(self.pending.values()), None)
        return first is not None and now_ns > first.end_ns + grace_ns
