"""The virtual clock: order, cancellation, and time that never goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horologe_sim.engine.event_queue import EventQueue


def test_cancelled_does_not_happen_even_by_one_of_the_same_instant() -> None:
    events, seen = EventQueue(), list[str]()
    numbers: list[int] = []
    events.schedule(5, lambda: events.cancel(numbers[0]))
    numbers.append(events.schedule(5, seen.append, "cancelled"))
    events.cancel(events.schedule(7, seen.append, "cancelled too"))
    while events.step():
        events.check()
    assert seen == []
    assert len(events) == 0
    assert events.next_ns() is None
    assert events.now_ns == 5


def test_the_past_happens_now() -> None:
    events, seen = EventQueue(100), list[str]()
    events.schedule(1, seen.append, "at once")
    assert events.next_ns() == 100
    assert events.step()
    assert (seen, events.now_ns) == (["at once"], 100)


def test_what_is_asked_for_at_the_same_instant_happens_in_the_next_step() -> None:
    events, seen = EventQueue(), list[str]()
    events.schedule(3, _again, events, seen)
    assert events.step()
    assert seen == []
    assert events.step()
    assert (seen, events.now_ns) == (["next step"], 3)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300))
def test_all_but_the_cancelled_happen_once_and_in_order(plan: list[tuple[int, bool]]) -> None:
    events = EventQueue()
    seen: list[tuple[int, int]] = []
    for index, (at_ns, cancelled) in enumerate(plan):
        number = events.schedule(at_ns, lambda index=index: seen.append((events.now_ns, index)))
        if cancelled:
            events.cancel(number)
        events.check()
    while events.step():
        events.check()
    assert seen == sorted((at_ns, index) for index, (at_ns, cancelled) in enumerate(plan) if not cancelled)


def _again(events: EventQueue, seen: list[str]) -> None:
    events.schedule(3, seen.append, "next step")
