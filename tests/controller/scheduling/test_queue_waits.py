"""Queues that wait: when they are examined again."""

from __future__ import annotations

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_controller.core.scheduling.queue_waits import QueueWaits
from horologe_controller.core.scheduling.queues import ModelQueue


def a_queue(requests: int) -> ModelQueue:
    queue, desk = ModelQueue(a_spec("m")), Desk("horologe", [("m",)])
    queue.insert([desk.ask(NOW, 200) for _ in range(requests)])
    return queue


def test_a_queue_is_too_small_until_it_has_the_rows_that_it_waits_for() -> None:
    waits, queue = QueueWaits(), a_queue(2)
    assert not waits.is_too_small(queue)
    waits.hold_queue(queue, NOW + ms(5), rows=3)
    assert waits.is_too_small(queue)
    queue.insert([Desk("horologe", [("m",)]).ask(NOW + ms(1), 300)])
    assert not waits.is_too_small(queue)
    waits.check()


def test_of_several_waits_the_first_end_and_the_fewest_rows_count() -> None:
    waits, queue = QueueWaits(), a_queue(2)
    waits.hold_queue(queue, NOW + ms(5), rows=8)
    waits.hold_queue(queue, NOW + ms(9), rows=4)
    waits.hold_queue(queue, NOW + ms(7))
    assert not waits.is_too_small(queue)
    assert waits.next_ns() == NOW + ms(5)


def test_a_wait_ends_with_its_time_or_its_first_request() -> None:
    waits, queue = QueueWaits(), a_queue(2)
    waits.hold_queue(queue, NOW + ms(5), rows=8)
    assert waits.pop_expired(NOW + ms(5)) == [queue]
    assert not waits.is_too_small(queue)
    waits.hold_queue(queue, NOW + ms(9), rows=8)
    waits.release_requests([queue[0]])
    assert not waits.is_too_small(queue)
    assert waits.next_ns() is None
    waits.check()
