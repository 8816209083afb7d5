"""The planner: ranks, hung devices, best-effort work, loads, and batches no larger than what saves device time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms, us
from horologe_common.core.instruments import RollingQuantile
from horologe_common.models import Profile
from horologe_common.wire import ModelReport, Register, Submit
from horologe_common.wire import Share as Told
from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
from horologe_controller.core.cluster.estimates import Estimate
from horologe_controller.core.cluster.lane import ACTION_GRACE_NS, Action, Lane
from horologe_controller.core.cluster.model_profiles import efficient_sizes
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling.queues import ModelQueue
from horologe_controller.schedulers import SCHEDULERS
from horologe_controller.settings import ControllerSettings

SIZES = (1, 2, 4, 8)


profiles = st.lists(st.integers(1, 40), min_size=4, max_size=4)
deadlines = st.lists(st.integers(1, 120), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ["clockwork", "edf", "clipper", "nexus", "deferred", "orloj"])
@given(profiles, deadlines, st.lists(st.integers(0, 120), min_size=2, max_size=12))
def test_a_rank_only_grows_with_the_start(name: str, times: list[int], deadlines: list[int], starts: list[int]) -> None:
    spec = a_spec(batch_sizes=SIZES)
    profile = Profile({size: ms(time) for size, time in zip(SIZES, sorted(times), strict=True)}, ms(5))
    cluster = Cluster()
    worker = cluster.workers["w"] = WorkerMirror("w", True)
    cluster.register_worker(worker, Register((Told(0, "d", 64, (spec.key,)),), (ModelReport(spec, profile),)))
    (share,) = cluster.shares()
    queue = ModelQueue(spec)
    for number, deadline in enumerate(deadlines):
        at_ns = NOW + ms(deadline)
        queue.insert([Request(number, "s", Submit(number, spec.key, 0, 1, "f", number), spec, NOW, at_ns)])
    policy = SCHEDULERS[name](ControllerSettings(scheduler=name), cluster)
    strategies = [policy.best_batch(NOW, NOW + ms(start), share, queue) for start in sorted(starts)]
    ranks = [strategy.rank for strategy in strategies if strategy is not None]
    assert ranks == sorted(ranks)
    if name != "deferred":  # it waits before the last start
        assert None not in strategies[: len(ranks)]


def test_a_late_head_does_not_block_the_requests_behind_it() -> None:
    desk = Desk("clockwork", [("m",)])
    large = desk.ask(NOW, 3, rows=8)  # takes 5.5 ms
    small = desk.ask(NOW, 20)
    started, _ = desk.plan(NOW)
    assert [request.id for action in started for request in action.requests] == [small.id]
    assert not large.queued or large.deadline_ns > NOW


def test_a_batch_behind_another_one_leaves_time_for_its_overrun() -> None:
    """An EXEC of one row takes 2 ms. Behind a pending one, the tight request would have 0.2 ms to spare."""
    desk = Desk("clockwork", [("m",)], admission=False)
    desk.cluster.latency.overruns.observe(NOW, us(300))
    desk.ask(NOW, 100)
    (first,), _ = desk.plan(NOW)
    tight, roomy = desk.ask(NOW, 4.2), desk.ask(NOW, 20)
    (second,), _ = desk.plan(NOW + ms(1.6))
    assert second.requests == [roomy]
    desk.end(first, NOW + ms(2))
    desk.end(second, NOW + ms(2))
    (third,), _ = desk.plan(NOW + ms(2))
    assert third.requests == [tight], "an idle share starts it at once"


@pytest.mark.parametrize("name", ["clockwork", "edf", "orloj"])
def test_best_effort_in_overload_is_still_done(name: str) -> None:
    """Late requests are refused; the others run in open windows."""
    desk = Desk(name, [("m",)])
    done, now_ns = 0, NOW
    for _ in range(300):
        for _ in range(4):
            desk.ask(now_ns, 100, best_effort=True)
        for action in list(desk.actions):
            if action.end_ns <= now_ns:
                desk.end(action, action.end_ns)
        for action in desk.plan(now_ns)[0]:
            assert action.start_ns + action.expected_ns <= action.requests[0].deadline_ns
            done += len(action.requests) if now_ns > NOW + ms(200) else 0
        now_ns += ms(1)
    assert done > 100


def test_the_models_of_a_hung_device_are_loaded_elsewhere() -> None:
    desk = Desk("clockwork", [("m",), ()])
    desk.ask(NOW, 50)
    (stuck,), _ = desk.plan(NOW)
    later_ns = stuck.end_ns + ACTION_GRACE_NS + 1
    desk.ask(later_ns, 50)
    started, loads = desk.plan(later_ns)
    assert loads == ["m/1"]
    assert not started


def test_models_are_loaded_for_deadlines_before_best_effort() -> None:
    desk = Desk("clockwork", [()], ("be", "dl"))
    for _ in range(20):
        desk.ask(NOW, 30_000, best_effort=True, model="be")
    desk.ask(NOW, 200, model="dl")
    assert desk.plan(NOW)[1][0] == "dl/1"


def test_a_model_with_little_work_gets_its_load_although_others_with_more_keep_coming() -> None:
    desk = Desk("clockwork", [()], ("little", *(f"more{number}" for number in range(40))))
    desk.ask(NOW, 10_000, model="little")
    now_ns, loaded = NOW, []
    for number in range(40):
        desk.ask(now_ns, 10_000, model=f"more{number}")
        desk.ask(now_ns, 10_000, model=f"more{number}")
        loaded += desk.plan(now_ns)[1]
        now_ns += ms(2)
        for action in list(desk.actions):
            now_ns = max(now_ns, action.end_ns)
            desk.end(action, now_ns)
    assert "little/1" in loaded[:8]


def test_a_model_that_is_no_longer_served_does_not_stop_other_loads() -> None:
    desk = Desk("clockwork", [()], ("gone", "here"))
    for _ in range(30):
        desk.ask(NOW, 30_000, model="gone")
    del desk.cluster.specs["gone/1"]
    desk.ask(NOW, 200, model="here")
    assert desk.plan(NOW)[1] == ["here/1"]


def test_a_policy_that_ignores_deadlines_needs_no_wake_up_for_them() -> None:
    desk = Desk("fifo", [("m",)])
    for _ in range(60):
        desk.ask(NOW, 5)
    desk.plan(NOW)
    later_ns = NOW + ms(1)
    plan = desk.scheduler.plan(later_ns)
    assert plan.wake_ns is None or plan.wake_ns > later_ns + ms(0.1)


def test_an_action_that_ends_before_its_turn_changes_nothing_for_the_one_that_runs() -> None:
    lane, share = Lane(), next(Desk("clockwork", [()]).cluster.shares())
    first, second = (
        Action(number, share, "m/1", 1, [], NOW, NOW + ms(begin), ms(100)) for number, begin in ((1, 0), (2, 100))
    )
    lane.pending = {1: first, 2: second}
    lane.finish_action(second, NOW + ms(97))
    assert lane.free_at(NOW + ms(97)) == NOW + ms(100)


def test_a_hung_share_drops_queues_that_have_emptied() -> None:
    desk = Desk("clockwork", [("m",), ("m",)])
    for number in range(50):
        now_ns = NOW + number * ms(300)
        desk.ask(now_ns, 50)
        for action in desk.plan(now_ns)[0]:
            if action.share.worker == "w1":
                desk.end(action, action.end_ns)
    scheduler: Any = desk.scheduler
    for rankings in scheduler.rankings.of_share.values():
        assert len(rankings[0].changed) + len(rankings[0]._examined) <= 2


def test_a_model_whose_load_takes_longer_than_its_requests_wait_is_loaded_for_the_next() -> None:
    """Otherwise it would be refused forever, however wrong its profile."""
    desk = Desk("clockwork", [()])
    desk.ask(NOW, 4)  # EXEC 2 ms, LOAD 5 ms
    assert desk.plan(NOW)[1] == ["m/1"]


def test_short_batches_of_many_models_are_in_flight_until_a_result_can_return() -> None:
    """With two of them in flight, the device would be idle for most of a return latency."""
    names = [f"m{number}" for number in range(20)]
    desk = Desk("horologe", [tuple(names)], tuple(names))
    share = next(iter(desk.cluster.shares()))
    for name in names:
        for _ in range(10):
            share.estimates[f"{name}/1"].observe(NOW, 1, us(10))
    desk.cluster.latency.returns.observe(NOW, ms(1))
    for name in names:
        desk.ask(NOW, 50, model=name)
    assert len(desk.plan(NOW)[0]) == len(names)


def test_a_further_batch_starts_one_return_latency_before_the_device_is_idle() -> None:
    """The Result of the batch before it comes too late: the device would be idle for the return latency."""
    names = [f"m{number}" for number in range(3)]
    desk = Desk("horologe", [tuple(names)], tuple(names))
    share = next(iter(desk.cluster.shares()))
    for name in names:
        for _ in range(10):
            share.estimates[f"{name}/1"].observe(NOW, 1, us(700))
    desk.cluster.latency.returns.observe(NOW, ms(1))
    for name in names:
        desk.ask(NOW, 50, model=name)
    started, now_ns = len(desk.plan(NOW)[0]), NOW
    while started < len(names) and desk.wake_ns is not None:
        now_ns = desk.wake_ns
        started += len(desk.plan(now_ns)[0])
    assert now_ns == NOW + 2 * us(700) - ms(1)


@pytest.mark.parametrize(
    ("exec_ms", "efficient"),
    [
        ({1: 10, 2: 20, 4: 40, 8: 80}, {1}),
        ({1: 2.61, 2: 3.78, 4: 5.61, 8: 9.13, 16: 15.67}, {1, 2, 4, 8, 16}),
        ({1: 6.96, 2: 9.47, 4: 14.27, 8: 29.94, 16: 56.02}, {1, 2, 4, 16}),
        ({1: 10, 2: 19.9, 4: 39.4, 8: 78.0}, {1, 4}),
        ({1: 0.01, 2: 0.02, 4: 0.04}, {1, 2, 4}),
    ],
)
def test_sizes_that_save_time_per_row_are_efficient(exec_ms: dict[int, float], efficient: set[int]) -> None:
    assert efficient_sizes({0: ms(8), **{size: ms(time) for size, time in exec_ms.items()}}, us(200)) == efficient


@pytest.mark.parametrize(("name", "rows"), [("horologe", [1, 1]), ("clockwork", [2])])
def test_requests_run_alone_if_a_batch_takes_as_long_as_they_do(name: str, rows: list[int]) -> None:
    desk = Desk(name, [("m",)])
    share = next(iter(desk.cluster.shares()))
    seed_ns = {size: ms(10) * size for size in desk.specs["m"].batch_sizes}
    share.estimates["m/1"] = Estimate({0: ms(1), **seed_ns}, RollingQuantile())
    desk.ask(NOW, 500)
    first, _ = desk.plan(NOW)
    desk.ask(NOW + us(10), 500)
    desk.ask(NOW + us(10), 500)
    desk.end(first[0], NOW + ms(10))
    later, _ = desk.plan(NOW + ms(10))
    now_ns = NOW + ms(10)
    while len(desk.scheduler):
        now_ns += ms(1)
        later += desk.plan(now_ns)[0]
    assert [len(action.requests) for action in later] == rows
