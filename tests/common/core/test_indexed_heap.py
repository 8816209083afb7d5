"""The indexed heap and the timers agree with a dictionary, whatever is pushed, moved, removed and popped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from horologe_common.core.indexed_heap import COMPACT_ABOVE, IndexedHeap

keys, priorities = st.integers(0, 20), st.integers(0, 100)


class HeapAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap: IndexedHeap[int, int] = IndexedHeap()
        self.expected: dict[int, int] = {}

    @rule(key=keys, priority=priorities)
    def push(self, key: int, priority: int) -> None:
        self.heap.push(key, priority)
        self.expected[key] = priority

    @rule(key=keys)
    def remove(self, key: int) -> None:
        self.heap.remove(key)
        self.expected.pop(key, None)

    @rule(limit=priorities)
    def pop_up_to(self, limit: int) -> None:
        popped = self.heap.pop_up_to(limit)
        assert popped == [key for priority, key in self._ordered() if priority <= limit]
        for key in popped:
            del self.expected[key]

    @rule()
    def pop(self) -> None:
        if not self.expected:
            with pytest.raises(IndexError):
                self.heap.pop()
            return
        priority, key = self.heap.pop()
        assert (priority, key) == self._ordered()[0]
        del self.expected[key]

    @rule(priority=priorities)
    def push_many(self, priority: int) -> None:
        for key in range(100, 170):
            self.heap.push(key, priority)
            self.expected[key] = priority

    @rule()
    def remove_many(self) -> None:
        for key in range(100, 170):
            self.heap.remove(key)
            self.expected.pop(key, None)

    @invariant()
    def agrees(self) -> None:
        ordered = self._ordered()
        assert len(self.heap) == len(ordered)
        assert self.heap.peek() == (ordered[0] if ordered else None)
        assert self.heap.smallest_priority() == (ordered[0][0] if ordered else None)
        assert {key: self.heap.priority(key) for key in self.heap} == self.expected
        assert all(key in self.heap for key in self.expected)
        self.heap.check()

    def _ordered(self) -> list[tuple[int, int]]:
        return sorted((priority, key) for key, priority in self.expected.items())


TestIndexedHeap = HeapAgainstADict.TestCase
TestIndexedHeap.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_moving_one_timer_repeatedly_does_not_grow_the_heap() -> None:
    timers: IndexedHeap[Any, int] = IndexedHeap()
    for at_ns in range(10_000):
        timers.push(1, at_ns)
        assert len(timers._entries) <= COMPACT_ABOVE
    timers.check()
    assert timers.pop_up_to(9_998) == []
    assert timers.smallest_priority() == 9_999
    assert timers.pop_up_to(10_000) == [1]


def test_a_cancelled_timer_does_not_expire() -> None:
    timers: IndexedHeap[Any, int] = IndexedHeap()
    timers.push("first", 5)
    timers.push("second", 5)
    timers.remove("first")
    timers.remove("absent")
    assert timers.pop_up_to(5) == ["second"]
    assert timers.smallest_priority() is None
