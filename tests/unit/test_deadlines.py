"""Timers fire once, in order, at the time that was set last."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from horologe_common.core.protocol import Deadlines

keys, times = st.integers(0, 20), st.integers(0, 100)


class DeadlinesAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.expected: dict[int, int] = {}

    @rule(key=keys, at_ns=times)
    def arm(self, key: int, at_ns: int) -> None:
        self.deadlines.arm(key, at_ns)
        self.expected[key] = at_ns

    @rule(key=keys)
    def cancel(self, key: int) -> None:
        self.deadlines.cancel(key)
        self.expected.pop(key, None)

    @rule(now_ns=times)
    def due(self, now_ns: int) -> None:
        due = self.deadlines.due(now_ns)
        assert sorted(due) == sorted(key for key, at_ns in self.expected.items() if at_ns <= now_ns)
        assert [self.expected[key] for key in due] == sorted(self.expected[key] for key in due)
        for key in due:
            del self.expected[key]

    @rule(at_ns=times)
    def arm_many(self, at_ns: int) -> None:
        for key in range(100, 170):
            self.deadlines.arm(key, at_ns)
            self.expected[key] = at_ns

    @invariant()
    def agrees(self) -> None:
        assert len(self.deadlines) == len(self.expected)
        assert self.deadlines.next_ns() == min(self.expected.values(), default=None)
        self.deadlines.check()


TestDeadlines = DeadlinesAgainstADict.TestCase
TestDeadlines.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_moving_one_timer_for_ever_does_not_fill_the_memory() -> None:
    deadlines = Deadlines()
    for at_ns in range(10_000):
        deadlines.arm(1, at_ns)
    deadlines.check()
    assert deadlines.due(10_000) == [1]
