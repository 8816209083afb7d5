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

    `promised_ns` is the `end_ns` of when it was planned; `typical_ns` what such an action mostly takes.
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
    typical_ns: int

    def open_requests(self) -> list[Request]:
        """Those that still wait for this action."""
        return [request for request in self.requests if request.action_id == self.id]


class Work:
    """Typical durations of the pending EXECs of all shares, summed up: `outstanding_ns` costs no look at any share."""

    def __init__(self) -> None:
        self._total_ns = 0
        self._running = 0
        self._starts_ns = 0

    def entered(self, action: Action) -> None:
        self._total_ns += action.typical_ns

    def left(self, action: Action) -> None:
        self._total_ns -= action.typical_ns

    def began(self, action: Action) -> None:
        self._running += 1
        self._starts_ns += action.start_ns

    def ended(self, action: Action) -> None:
        self._running -= 1
        self._starts_ns -= action.start_ns

    def outstanding_ns(self, now_ns: int) -> int:
        """What is left of it, all shares together."""
        return max(0, self._total_ns - (self._running * now_ns - self._starts_ns))

    def check(self, lanes: list[Lane]) -> None:
        firsts = [next(iter(lane.pending.values())) for lane in lanes if lane.pending]
        assert self._running == len(firsts)
        assert self._starts_ns == sum(action.start_ns for action in firsts)
        assert self._total_ns == sum(action.typical_ns for lane in lanes for action in lane.pending.values())


class Lane:
    """Pending actions of one lane, in order, and when it will be free."""

    def __init__(self, work: Work | None = None) -> None:
        self.pending: dict[int, Action] = {}
        self._work = work

    def append(self, action: Action) -> None:
        if self._work:
            self._work.entered(action)
            if not self.pending:
                self._work.began(action)
        self.pending[action.id] = action

    def free_at(self, now_ns: int) -> int:
        """When all that is pending should have ended; the first may already be late."""
        at_ns = 0
        for action in self.pending.values():
            at_ns = at_ns + action.expected_ns if at_ns else max(now_ns, action.start_ns + action.expected_ns)
        return at_ns or now_ns

    def ended(self, action: Action, at_ns: int) -> None:
        """An action has ended: the next one began then, whatever was predicted."""
        first = next(iter(self.pending.values()), None)
        if self.pending.pop(action.id, None) is None:
            return
        following = next(iter(self.pending.values()), None)
        if self._work:
            self._work.left(action)
            self._work.ended(first or action)
        if following:
            following.start_ns = max(following.sent_ns, at_ns)
            following.end_ns = following.start_ns + following.expected_ns
            if self._work:
                self._work.began(following)

    def clear(self) -> None:
        """Nothing of it will be heard of any more."""
        for action in list(self.pending.values()):
            self.ended(action, action.end_ns)

    def overdue(self, now_ns: int, grace_ns: int) -> bool:
        """Whether the oldest action should have been heard of long ago: the worker hangs."""
        first = next(iter(self.pending.values()), None)
        return first is not None and now_ns > first.end_ns + grace_ns
