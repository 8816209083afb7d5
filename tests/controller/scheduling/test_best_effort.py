"""Best-effort work beside requests with deadlines: it must not take the time in which one of those may arrive."""

from __future__ import annotations

import pytest

from controller.desk import NOW, Desk
from horologe_common.clock import ms, s
from horologe_controller.core.scheduling.admission import WINDOW_NS
from horologe_controller.core.scheduling.best_effort import LONG_PART

TIGHT_MS, LONG_MS = 25, 60
policies = pytest.mark.parametrize("name", ["horologe", "clockwork", "edf", "orloj"])


def desk_with_long_model(name: str) -> Desk:
    """Return a desk with a model `m` and a model `long` of which every batch takes `LONG_MS`."""
    desk = Desk(name, [("m", "long")], ("m", "long"))
    measure_long(desk, NOW)
    return desk


def measure_long(desk: Desk, now_ns: int) -> None:
    """Let every batch of `long` take `LONG_MS` at present."""
    estimate = next(iter(desk.cluster.shares())).estimates["long/1"]
    for size in desk.specs["long"].batch_sizes:
        for _ in range(10):
            estimate.observe(now_ns, size, ms(LONG_MS), steady=False)


def run_tight(desk: Desk, now_ns: int) -> None:
    """Serve one request with a tight deadline."""
    desk.ask(now_ns, TIGHT_MS)
    (action,), _ = desk.plan(now_ns)
    assert action.model == "m/1"
    desk.end(action, action.end_ns)


@policies
def test_a_long_best_effort_batch_is_held_back_beside_tight_deadlines(name: str) -> None:
    desk = desk_with_long_model(name)
    run_tight(desk, NOW)
    desk.ask(NOW + ms(10), 30_000, best_effort=True, model="long", solo=True)
    first, _ = desk.plan(NOW + ms(10))
    assert [action.model for action in first] == ["long/1"]  # the first long one is allowed
    desk.end(first[0], first[0].end_ns)
    now_ns = first[0].end_ns
    desk.ask(now_ns, 30_000, best_effort=True, model="long", solo=True)
    run_tight(desk, now_ns)
    now_ns += ms(10)
    assert desk.plan(now_ns)[0] == []
    assert desk.wake_ns is not None
    assert now_ns < desk.wake_ns <= now_ns + LONG_PART * ms(LONG_MS)


@policies
def test_long_best_effort_work_gets_its_part_of_the_time(name: str) -> None:
    desk = desk_with_long_model(name)
    for _ in range(50):
        desk.ask(NOW, 200_000, best_effort=True, model="long", solo=True)
    now_ns, long_ns = NOW, 0
    while now_ns < NOW + s(60):
        run_tight(desk, now_ns)
        measure_long(desk, now_ns)
        for action in desk.plan(now_ns + ms(20))[0]:
            long_ns += action.expected_ns
            desk.end(action, action.end_ns)
        now_ns += ms(100)
    assert s(60) / LONG_PART / 2 <= long_ns <= 2 * s(60) / LONG_PART


@policies
def test_long_best_effort_work_goes_on_when_no_deadline_needs_protection(name: str) -> None:
    desk = desk_with_long_model(name)
    run_tight(desk, NOW)
    now_ns, started = NOW + ms(10), 0
    for _ in range(4):
        desk.ask(now_ns, 30_000, best_effort=True, model="long", solo=True)
    while now_ns < NOW + ms(10) + 2 * WINDOW_NS + 4 * ms(LONG_MS):
        for action in desk.plan(now_ns)[0]:
            started += len(action.requests)
            desk.end(action, action.end_ns)
            now_ns = action.end_ns
        now_ns += ms(10)
    assert started == 4


@policies
def test_a_short_best_effort_request_does_not_wait_behind_a_long_one(name: str) -> None:
    desk = desk_with_long_model(name)
    run_tight(desk, NOW)
    desk.ask(NOW, 30_000, best_effort=True, model="long", solo=True)
    (long,), _ = desk.plan(NOW + ms(10))
    desk.end(long, long.end_ns)
    now_ns = long.end_ns
    desk.ask(now_ns, 30_000, best_effort=True, model="long", solo=True)
    short = desk.ask(now_ns + 1, 30_000, best_effort=True)
    started, _ = desk.plan(now_ns + 2)
    assert [request.id for action in started for request in action.requests] == [short.id]


@policies
def test_best_effort_requests_of_users_are_not_held_back(name: str) -> None:
    desk = desk_with_long_model(name)
    now_ns, served = NOW, 0
    for _ in range(40):
        desk.ask(now_ns, 30_000, best_effort=True, model="long")
    for _ in range(40):
        run_tight(desk, now_ns)
        measure_long(desk, now_ns)
        for action in desk.plan(now_ns + ms(20))[0]:
            served += len(action.requests)
            desk.end(action, action.end_ns)
        now_ns += ms(100)
    assert served == 40


def test_a_best_effort_batch_shrinks_to_the_time_that_a_tight_request_leaves() -> None:
    desk = Desk("clockwork", [("m",)])
    share = next(iter(desk.cluster.shares()))
    sizes = desk.specs["m"].batch_sizes
    largest_ns = share.predict(NOW, "m/1", sizes[-1])
    run = desk.ask(
        NOW, largest_ns / 0.9e6
    )  # without the reserved tenth and its EXEC, less than the largest batch takes
    (action,), _ = desk.plan(NOW)
    assert action.requests == [run]
    desk.end(action, action.end_ns)
    for _ in range(sizes[-1]):
        desk.ask(action.end_ns, 30_000, best_effort=True)
    started, _ = desk.plan(action.end_ns)
    assert started
    assert all(sizes[0] <= action.batch_size < sizes[-1] for action in started)


@policies
def test_an_urgent_request_goes_before_all_others_when_it_has_waited(name: str) -> None:
    desk = Desk(name, [("m", "long")], ("m", "long"))
    desk.ask(NOW, 30_000, best_effort=True, model="long", solo=True, urgent_after_ns=ms(50))
    started = []
    for now_ns in range(NOW, NOW + ms(200), ms(1)):
        desk.ask(now_ns, 500)
        started += [(now_ns, action.model) for action in desk.plan(now_ns)[0]]
        for action in [action for action in desk.actions if action.end_ns <= now_ns]:
            desk.end(action, action.end_ns)
    (long_ns,) = [now_ns for now_ns, model in started if model == "long/1"]
    assert long_ns >= NOW + ms(50)
    assert any(now_ns > long_ns for now_ns, model in started if model == "m/1")
    desk.scheduler.check()
