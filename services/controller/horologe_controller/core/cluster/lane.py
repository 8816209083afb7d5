"""Lanes as the controller sees them: what was given to each and has not ended, and when it will be free."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Literal

import msgspec

from horologe_common.clock import NEVER_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request

Kind = Literal["infer", "load"]
SWEEP_FROM = 64


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
    typical_ns: int = 0
    """What it mostly takes, by the estimates of when it was planned."""

    def open_requests(self) -> list[Request]:
        """Those that still wait for this action."""
        return [request for request in self.requests if request.action_id == self.id]


class Lane:
    """Pending actions of one lane, in order, and when it will be free."""

    def __init__(self, outstanding: Outstanding | None = None) -> None:
        self.pending: dict[int, Action] = {}
        self.due_ns = NEVER_NS
        """When the oldest action should have ended."""
        self._outstanding = outstanding or Outstanding()

    def add(self, action: Action) -> None:
        """It goes after all others."""
        self.pending[action.id] = action
        self._changed()

    def clear(self) -> None:
        """Nothing will be heard of them."""
        self.pending.clear()
        self._changed()

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
        self._changed()

    def overdue(self, now_ns: int, grace_ns: int) -> bool:
        """Whether the oldest action should have been heard of long ago: the worker hangs."""
        return now_ns > self.due_ns + grace_ns

    def _changed(self) -> None:
        first = next(iter(self.pending.values()), None)
        self.due_ns = first.end_ns if first else NEVER_NS
        self._outstanding.changed(self)


class Outstanding:
    """What the actions given to lanes mostly still take: admission sums this up, where plans rely on `Lane.free_at`.

    O(actions of a lane) when it changes; all lanes together are kept added up, by the time that only goes on.
    """

    def __init__(self) -> None:
        self._ends: dict[Lane, tuple[int, int]] = {}
        """When the last action should have ended; and the least it still takes, were the first to end in 1 ns."""
        self._ahead: dict[Lane, bool] = {}
        """Lanes whose first action is not late: what they take still becomes less."""
        self._ahead_ns = self._late_ns = 0
        """The ends of these, and the least that the others take, added up."""
        self._turns: list[tuple[int, int, Lane]] = []
        """A heap of when lanes will be late: only entries of those in `_ahead` with such an end count."""
        self._changes = 0

    def changed(self, lane: Lane) -> None:
        """Its actions are others."""
        self._forget(lane)
        rest_ns = end_ns = 0
        for action in lane.pending.values():
            if end_ns:
                rest_ns += action.typical_ns
            else:
                end_ns = action.start_ns + action.typical_ns
        if end_ns:
            self._ends[lane] = end_ns + rest_ns, 1 + rest_ns
            self._ahead[lane] = True
            self._ahead_ns += end_ns + rest_ns
            self._changes += 1
            heapq.heappush(self._turns, (end_ns - 1, self._changes, lane))
            if len(self._turns) > 2 * len(self._ahead) + SWEEP_FROM:
                self._turns = [one for one in self._turns if self._counts(one)]
                heapq.heapify(self._turns)

    def _counts(self, turn: tuple[int, int, Lane]) -> bool:
        at_ns, _, lane = turn
        return lane in self._ahead and self._ends[lane][0] - self._ends[lane][1] == at_ns

    def _forget(self, lane: Lane) -> None:
        if (found := self._ends.pop(lane, None)) is None:
            return
        if self._ahead.pop(lane, False):
            self._ahead_ns -= found[0]
        else:
            self._late_ns -= found[1]

    def _pass(self, now_ns: int) -> None:
        """Lanes that have become late."""
        turns = self._turns
        while turns and turns[0][0] <= now_ns:
            turn = heapq.heappop(turns)
            if self._counts(turn):
                lane = turn[2]
                end_ns, least_ns = self._ends[lane]
                del self._ahead[lane]
                self._ahead_ns -= end_ns
                self._late_ns += least_ns

    def total_ns(self, now_ns: int, lanes: Iterable[Lane] | None = None) -> int:
        """Of these lanes, or of all; never earlier than the last time it was asked for all."""
        if lanes is None:
            self._pass(now_ns)
            return self._ahead_ns - len(self._ahead) * now_ns + self._late_ns
        ends = self._ends
        found = [ends[lane] for lane in lanes if lane in ends]
        return sum([end_ns - now_ns if end_ns - now_ns > least_ns else least_ns for end_ns, least_ns in found])
