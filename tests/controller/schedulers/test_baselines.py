"""Clipper, Nexus, Symphony and fifo as in their papers, on small queues. A batch of n takes 1.5 + n / 2 ms."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from horologe_common.clock import ms
from horologe_controller.schedulers.clipper import BatchLimit, ClipperParameters, quantile_line, quantile_loss
from horologe_controller.schedulers.deferred import START_DELAY_NS

if TYPE_CHECKING:
    from horologe_controller.core.cluster.lane import Action

SIZES = (1, 2, 4, 8, 16)
EVERY_SIZE = tuple(range(1, 65))


def took_ns(size: int) -> int:
    return ms(1.5 + size / 2)


def ids(actions: list[Action]) -> list[list[int]]:
    return [[request.id for request in action.requests] for action in actions]


# Clipper


def test_the_limit_rises_by_one_with_full_batches_and_falls_by_a_tenth() -> None:
    limit, rows = BatchLimit(), []
    for size, took_ms in ((1, 5), (2, 5), (2, 5), (2, 5), (4, 11), (2, 5), (2, 11)):
        limit.adapt_stepwise(size, ms(took_ms), ms(10), SIZES, ClipperParameters())
        rows.append(round(limit.rows, 3))
    assert rows == [2, 3, 4, 4, 3.6, 4.6, 4.14]  # a batch of 2 says nothing about a limit of 4 but that it is too high


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 40)), max_size=80), st.booleans())
def test_the_limit_stays_between_one_and_the_largest_size(batches: list[tuple[int, int]], regression: bool) -> None:
    limit = BatchLimit()
    for size, took_ms in batches:
        (limit.adapt_by_regression if regression else limit.adapt_stepwise)(
            size, ms(took_ms), ms(20), SIZES, ClipperParameters()
        )
        assert 1 <= limit.rows <= 16
        assert limit.largest_size(SIZES) in SIZES


@pytest.mark.parametrize("regression", [False, True])
def test_the_limit_finds_the_largest_batch_within_the_slo(regression: bool) -> None:
    """37 rows fit into 20.1 ms. AIMD exceeds that by one and goes back by a tenth; regression probes now and then."""
    limit, parameters, rows = BatchLimit(), ClipperParameters(), []
    for _ in range(400):
        size = limit.largest_size(EVERY_SIZE)
        (limit.adapt_by_regression if regression else limit.adapt_stepwise)(
            size, took_ns(size), ms(20.1), EVERY_SIZE, parameters
        )
        rows.append(limit.largest_size(EVERY_SIZE))
    late = rows[100:]
    assert (min(late), max(late)) == (37 if regression else 34, 38)
    assert late.count(38) < len(late) / (50 if regression else 4)


def test_regression_does_not_take_noise_for_a_slope() -> None:
    """Batches of nearly one size, with 2% of noise, say nothing about batches twice as large."""
    limit, noise, large = BatchLimit(), random.Random(0), []
    for _ in range(1000):
        size = limit.largest_size(EVERY_SIZE)
        limit.adapt_by_regression(
            size, round(took_ns(size) * noise.gauss(1, 0.02)), ms(20.1), EVERY_SIZE, ClipperParameters()
        )
        large.append(size)
    assert max(large) <= 40
    assert sum(large[200:]) / 800 > 33


def test_regression_leaves_room_for_the_slow_ones() -> None:
    """Three in a hundred take 1.5 times as long: the line of the 99th percentile goes through them."""
    limit = BatchLimit()
    for number in range(300):
        size = SIZES[number % 5]
        slow = 1.5 if number % 100 in (3, 31, 67) else 1
        limit.adapt_by_regression(size, round(slow * took_ns(size)), ms(13), SIZES, ClipperParameters())
    assert limit.rows == 8  # 16 rows mostly take 9.5 ms, and now and then 14.25 ms


points = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 1000)), min_size=2, max_size=25)


@given(points.filter(lambda found: len({x for x, _ in found}) > 1), st.sampled_from([0.5, 0.9, 0.99]))
def test_no_line_through_two_points_is_a_better_quantile(found: list[tuple[int, int]], q: float) -> None:
    intercept, slope = quantile_line(found, q)
    below = sum(y <= intercept + slope * x + 1e-6 for x, y in found)
    assert below >= q * len(found) - 1e-9
    others = [(two[1] - one[1]) / (two[0] - one[0]) for one in found for two in found if one[0] < two[0]]
    best = min(quantile_loss(found, max(0.0, other), q) for other in others)
    assert quantile_loss(found, slope, q) <= best + 1e-4


def test_a_batch_below_the_limit_waits_for_more_and_no_longer() -> None:
    desk = Desk("clipper", [("m",)], policy={"delay_ns": ms(3)})
    limit_of(desk).rows = 4
    desk.ask(NOW, 50)
    desk.ask(NOW + ms(1), 50)
    assert desk.plan(NOW + ms(1)) == ([], [])
    assert desk.wake_ns == NOW + ms(3)
    for _ in range(2):
        desk.ask(NOW + ms(2), 50)
    assert ids(desk.plan(NOW + ms(2))[0]) == [[1, 2, 3, 4]]
    desk.ask(NOW + ms(20), 50)
    assert not desk.plan(NOW + ms(20))[0]
    assert not desk.plan(NOW + ms(23) - 1)[0]
    assert ids(desk.plan(NOW + ms(23))[0]) == [[5]]


def limit_of(desk: Desk, share: int = 0) -> BatchLimit:
    policy: Any = desk.scheduler.policy
    limit: BatchLimit = policy.limit(list(desk.cluster.shares())[share], "m/1")
    return limit


def test_replicas_have_limits_of_their_own() -> None:
    desk = Desk("clipper", [("m",), ("m",)])
    now_ns = NOW
    for _ in range(6):
        for _ in range(8):
            desk.ask(now_ns, 50)
        started, _ = desk.plan(now_ns)
        for action in started:
            desk.end(action, now_ns + ms(60 if action.share.worker == "w1" else 5))
        now_ns += ms(100)
    assert limit_of(desk, 0).rows >= 4
    assert limit_of(desk, 1).rows == 1


def test_clipper_runs_requests_that_will_be_late_and_drops_expired_ones() -> None:
    desk = Desk("clipper", [("m",)])
    doomed = desk.ask(NOW, 1)  # takes 2 ms
    gone = desk.ask(NOW, 1)
    (action,), _ = desk.plan(NOW)
    assert action.requests == [doomed]
    assert desk.wake_ns is not None
    assert desk.wake_ns <= gone.deadline_ns
    assert not desk.plan(gone.deadline_ns)[0]
    assert desk.refused == [gone.id]


# Nexus


@pytest.mark.parametrize(("part", "size"), [(0.5, 4), (0.6, 8), (1.0, 16), (0.1, 1)])
def test_the_planned_batch_takes_its_part_of_the_slo(part: float, size: int) -> None:
    desk = Desk("nexus", [("m",)], policy={"slo_part": part}, admission=False)
    for _ in range(16):
        desk.ask(NOW, 10)  # 4 take 3.5 ms, 8 take 5.5 ms, 16 take 9.5 ms
    assert desk.plan(NOW)[0][0].batch_size == size


def test_the_head_is_dropped_for_the_first_window_that_can_be_done() -> None:
    desk = Desk("nexus", [("m",)])
    for _ in range(5):
        desk.ask(NOW - ms(15), 20)  # 5 ms left; alone it would be done in 2
    behind = [desk.ask(NOW - ms(8), 20) for _ in range(20)]  # 12 ms left: enough for 16
    (action,), _ = desk.plan(NOW)
    assert action.requests == behind[:16]
    assert desk.refused == [1, 2, 3, 4, 5]
    assert len(desk.scheduler) == 4


def test_no_request_is_dropped_for_a_window_that_the_queue_cannot_fill() -> None:
    desk = Desk("nexus", [("m",)])
    for _ in range(5):
        desk.ask(NOW - ms(15), 20)
    for _ in range(3):
        desk.ask(NOW - ms(8), 20)  # too few for 8, and 4 can be done for all
    assert ids(desk.plan(NOW)[0]) == [[1, 2, 3, 4]]
    assert desk.refused == []


def test_models_have_their_turns() -> None:
    desk = Desk("nexus", [("a", "b")], ("a", "b"))
    for model in ("a", "a", "b"):
        for _ in range(16):
            desk.ask(NOW, 200, model=model)
    now_ns, ran = NOW, []
    for _ in range(3):
        (action,), _ = desk.plan(now_ns)
        ran.append(action.model)
        now_ns = action.start_ns + action.expected_ns
        desk.end(action, now_ns)
    assert ran == ["a/1", "b/1", "a/1"]


@pytest.mark.parametrize(("deviations", "planned_ms"), [(0.0, 6), (1.5, 18)])
def test_it_plans_with_the_mean_of_all_that_was_measured(deviations: float, planned_ms: int) -> None:
    desk, now_ns = Desk("nexus", [("m",)], policy={"deviations": deviations}), NOW
    for took_ms in (2, 2, 2, 22):
        desk.ask(now_ns, 100)
        (action,), _ = desk.plan(now_ns)
        desk.end(action, now_ns + ms(took_ms))
        now_ns += ms(5_000)
    desk.ask(now_ns, 100)
    assert desk.plan(now_ns)[0][0].expected_ns == ms(planned_ms)  # of 2 by the profile, 2, 2, 2 and 22


# Symphony


def test_a_batch_waits_as_long_as_a_larger_one_would_still_be_done() -> None:
    desk = Desk("deferred", [("m",)])
    desk.ask(NOW, 20)
    assert not desk.plan(NOW)[0]
    until_ns = NOW + ms(20) - took_ns(2) - START_DELAY_NS
    assert desk.wake_ns == until_ns
    desk.ask(NOW + ms(1), 20)
    assert not desk.plan(NOW + ms(1))[0]
    assert desk.wake_ns == until_ns - took_ns(4) + took_ns(2)
    assert not desk.plan(desk.wake_ns - 1)[0]
    assert ids(desk.plan(desk.wake_ns)[0]) == [[1, 2]]


def test_the_largest_batch_waits_for_nothing() -> None:
    desk = Desk("deferred", [("m",)])
    desk.ask(NOW, 1000)
    desk.plan(NOW)
    assert desk.wake_ns is not None
    for _ in range(15):
        desk.ask(NOW, 1000)
    (action,), _ = desk.plan(NOW)
    assert action.batch_size == 16
    desk.end(action, NOW + took_ns(16))
    desk.plan(NOW + took_ns(16))
    assert desk.wake_ns is None


def test_a_batch_does_not_wait_for_a_size_beyond_the_slo() -> None:
    desk = Desk("deferred", [("m",)], admission=False)
    for _ in range(4):
        desk.ask(NOW, 5.5)  # 8 take as long
    assert ids(desk.plan(NOW)[0]) == [[1, 2, 3, 4]]


def test_a_device_that_is_free_takes_the_window_that_closes_first() -> None:
    desk = Desk("deferred", [("a", "b", "c")], ("a", "b", "c"), admission=False)
    for _ in range(16):
        desk.ask(NOW, 30, model="c")
    (busy,), _ = desk.plan(NOW)
    desk.ask(NOW, 12.1, model="a")
    urgent = desk.ask(NOW, 11.9, model="b")
    assert not desk.plan(NOW)[0]
    desk.end(busy, NOW + took_ns(16))
    started, _ = desk.plan(NOW + took_ns(16))
    assert [action.requests for action in started] == [[urgent]]


def test_best_effort_gets_the_time_in_which_a_batch_waits_and_no_more() -> None:
    desk = Desk("deferred", [("a", "b")], ("a", "b"))
    waits = desk.ask(NOW, 10.3, model="a")  # until 7.6 ms from now
    for _ in range(16):
        desk.ask(NOW, 30_000, best_effort=True, model="b")
    (action,), _ = desk.plan(NOW)
    assert (action.model, action.batch_size) == ("b/1", 8)  # 16 take 9.5 ms
    desk.end(action, NOW + took_ns(8))
    (action,), _ = desk.plan(NOW + took_ns(8))
    assert (action.model, action.batch_size) == ("b/1", 1)  # 2.1 ms are left, 2 take 2.5 ms
    desk.end(action, NOW + took_ns(8) + took_ns(1))
    assert not desk.plan(NOW + took_ns(8) + took_ns(1))[0]
    started, _ = desk.plan(NOW + ms(10.3) - took_ns(2) - START_DELAY_NS)
    assert started[0].requests == [waits]


@pytest.mark.parametrize(("part", "dropped"), [(0.5, [1, 2, 3, 4, 5]), (0.0, [])])
def test_late_heads_give_way_to_a_batch_of_the_target_size(part: float, dropped: list[int]) -> None:
    desk = Desk("deferred", [("m",)], policy={"slo_part": part})
    for _ in range(5):
        desk.ask(NOW - ms(15), 20)
    for _ in range(20):
        desk.ask(NOW - ms(8), 20)
    (action,), _ = desk.plan(NOW)
    assert action.batch_size == (16 if dropped else 4)
    assert desk.refused == dropped


# Fifo


def test_runs_of_the_profiler_do_not_change_the_limit_of_requests_with_deadlines() -> None:
    desk = Desk("fifo", [("m",)])
    for turn in range(8):
        desk.ask(NOW + ms(10 * turn), 10_000, best_effort=True)
        for action in desk.plan(NOW + ms(10 * turn))[0]:
            desk.end(action, NOW + ms(10 * turn) + took_ns(action.batch_size))
    for _ in range(16):
        desk.ask(NOW + ms(100), 50)
    assert desk.plan(NOW + ms(100))[0][0].batch_size == 1
