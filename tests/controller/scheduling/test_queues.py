"""Queues by deadline, and queues that wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.wire import Submit
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling.queue_waits import QueueWaits
from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues

SPEC = a_spec()


def a_request(number: int, deadline_ns: int, rows: int = 1, best_effort: bool = False) -> Request:
    submit = Submit(number, SPEC.key, deadline_ns, rows, "frontend/0#1", number, best_effort=best_effort)
    return Request(number, "selector/0#1", submit, SPEC, 0, deadline_ns)


WAITING = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4)), max_size=30)


@given(WAITING, st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 60))
def test_a_batch_is_the_earliest_that_survive_it(waiting: list[tuple[int, int]], size: int, end_ns: int) -> None:
    queue = ModelQueue(SPEC)
    for number, (deadline_ns, rows) in enumerate(waiting):
        queue.insert([a_request(number, deadline_ns, rows)])
    place = queue.first_in_time(end_ns, SPEC.max_batch)
    survivors = [request for request in queue if request.deadline_ns >= end_ns]
    assert [queue[at] for at in range(place, len(queue))] == survivors
    batch = queue.pop_batch(range(place, place + queue.count_filling(place, size)))
    assert batch == survivors[: len(batch)]
    rows = sum(request.rows for request in batch)
    assert rows <= size
    assert not batch or SPEC.compiled_batch_size(rows) == size
    assert queue.rows == sum(request.rows for request in queue)


@given(WAITING, st.data())
def test_any_requests_can_make_a_batch(waiting: list[tuple[int, int]], data: st.DataObject) -> None:
    queue = ModelQueue(SPEC)
    for number, (deadline_ns, rows) in enumerate(waiting):
        queue.insert([a_request(number, deadline_ns, rows)])
    before = list(queue)
    places = tuple(sorted(data.draw(st.sets(st.integers(0, len(before) - 1))))) if before else ()
    assert queue.pop_batch(places) == [before[place] for place in places]
    assert list(queue) == [request for place, request in enumerate(before) if place not in places]
    assert queue.rows == sum(request.rows for request in queue)
    deadlines = [request.deadline_ns for request in queue]
    assert queue.first_in_time(25, SPEC.max_batch) == sum(deadline_ns < 25 for deadline_ns in deadlines)


@given(WAITING, st.data())
def test_removal_keeps_order_and_count(waiting: list[tuple[int, int]], data: st.DataObject) -> None:
    queues = RequestQueues()
    requests = [a_request(number, at, rows, number % 3 == 0) for number, (at, rows) in enumerate(waiting)]
    for request in requests:
        queues.enqueue([request], 5)
    for request in data.draw(st.permutations(requests)):
        queues.check()
        queues.dequeue(request)
    assert queues.count == 0
    assert queues.next_overdue_ns() is None


@given(WAITING, st.integers(0, 60))
def test_overdue_are_those_whose_last_start_has_passed(waiting: list[tuple[int, int]], now_ns: int) -> None:
    queues = RequestQueues()
    for number, (deadline_ns, rows) in enumerate(waiting):
        request = a_request(number, deadline_ns, rows)
        queues.enqueue([request], 5)
    overdue = {request.id for request in queues.pop_overdue(now_ns)}
    assert overdue == {number for number, (deadline_ns, _) in enumerate(waiting) if deadline_ns - 5 < now_ns}


def a_queue(requests: int) -> ModelQueue:
    queue, desk = ModelQueue(a_spec("m")), Desk("horologe", [("m",)])
    queue.insert([desk.ask(NOW, 200) for _ in range(requests)])
    return queue


def test_of_several_waits_the_first_end_counts() -> None:
    waits, queue = QueueWaits(), a_queue(2)
    waits.hold_queue(queue, NOW + ms(5))
    waits.hold_queue(queue, NOW + ms(9))
    assert waits.next_ns() == NOW + ms(5)
    waits.hold_queue(queue, NOW + ms(3))
    assert waits.next_ns() == NOW + ms(3)
    waits.check()


def test_a_wait_ends_with_its_time_or_its_first_request() -> None:
    waits, queue = QueueWaits(), a_queue(2)
    waits.hold_queue(queue, NOW + ms(5))
    assert waits.pop_expired(NOW + ms(5)) == [queue]
    waits.hold_queue(queue, NOW + ms(9))
    waits.release_requests([queue[0]])
    assert waits.next_ns() is None
    waits.check()
