"""The default policy on static models: the size of a batch, the order of batches, how far ahead they are sent."""

from __future__ import annotations

from typing import Any

import pytest

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common import wire
from horologe_common.clock import ms, s
from horologe_controller.core.cluster.lane import Action
from horologe_controller.core.cluster.message_latency import LookAhead, MessageLatency, look_ahead
from horologe_controller.core.cluster.share import ClusterChanges, ModelResidency, Share
from horologe_controller.core.scheduling.queues import ModelQueue
from horologe_controller.core.scheduling.strategy import Rank, Strategy
from horologe_controller.core.traffic import Traffic
from horologe_controller.schedulers.horologe import Advance, Horologe
from horologe_controller.settings import ControllerSettings


def first_batch(urgent_ms: float, others_ms: float, others: int = 16) -> list[int]:
    """Return the ids in the first batch for an urgent request, whose id is 1, and others that came after it."""
    desk = Desk("horologe", [("m",)], admission=False)
    desk.ask(NOW, urgent_ms)
    for _ in range(others):
        desk.ask(NOW, others_ms)
    return [request.id for request in desk.plan(NOW)[0][0].requests]


def test_an_urgent_request_goes_in_a_small_batch_while_the_others_have_time() -> None:
    assert first_batch(urgent_ms=3, others_ms=100) == [1, 2]


def test_an_urgent_request_is_left_behind_if_a_small_batch_would_cost_many_others_their_deadline() -> None:
    assert first_batch(urgent_ms=3, others_ms=9.6) == list(range(2, 18))


def test_the_largest_batch_goes_where_it_leaves_nobody_behind() -> None:
    assert first_batch(urgent_ms=50, others_ms=100) == list(range(1, 17))


def test_between_models_the_last_start_counts_not_the_deadline() -> None:
    desk = Desk("horologe", [("m", "long")], ("m", "long"), admission=False)
    desk.set_profile("long/1", {0: ms(5), 1: ms(9), 2: ms(10), 4: ms(12), 8: ms(16), 16: ms(24)})
    desk.ask(NOW, 25)  # one request in 2 ms
    for _ in range(8):
        desk.ask(NOW, 26, model="long")
    assert next(action.model for action in desk.plan(NOW)[0]) == "long/1"


def test_a_worker_may_start_a_batch_while_its_last_request_can_be_in_time() -> None:
    desk = Desk("horologe", [("m",)], admission=False)
    for budget_ms in (4, 6, 8, 10):
        desk.ask(NOW, budget_ms)
    (batch,) = desk.scheduler.plan(NOW).start
    assert len(batch.requests) == 4
    assert batch.latest_ns == NOW + ms(10) - ms(3.5)


def test_a_batch_counts_as_in_time_by_the_median_of_recent_durations() -> None:
    desk = Desk("horologe", [("m",)], admission=False)
    estimate = desk.cluster.workers["w0"].shares[0].estimates["m/1"]
    for took_ms in (2, 2, 2, 2, 2, 2, 2, 6, 6, 6):
        estimate.observe(NOW, 2, ms(took_ms))
    for _ in range(2):
        desk.ask(NOW, 3)
    (batch,) = desk.scheduler.plan(NOW).start
    assert (batch.batch_size, batch.expected_ns, batch.latest_ns) == (2, ms(6), NOW + ms(1))


def first_under_losses(lost: int) -> str:
    """Return the model that goes first after so many losses: a costly one with the earlier deadline, or a cheap one."""
    desk = Desk("horologe", [("costly", "cheap")], ("costly", "cheap"), admission=False)
    desk.set_profile("costly/1", dict.fromkeys((0, 1, 2, 4, 8, 16), ms(8)))
    policy: Any = desk.scheduler.policy
    for _ in range(lost):
        policy.traffic.record_loss(NOW - s(2), "costly/1")
    desk.ask(NOW - s(1), 100, model="cheap")
    for action in desk.plan(NOW - s(1))[0]:
        desk.end(action, NOW - s(1) + ms(2))
    desk.ask(NOW, 20, model="costly")
    desk.ask(NOW, 50, model="cheap")
    return desk.plan(NOW)[0][0].model


def test_the_more_requests_are_lost_the_more_their_cost_counts() -> None:
    assert first_under_losses(0) == "costly/1"
    assert first_under_losses(300) == "cheap/1"


def test_the_advance_for_cost_follows_the_losses_of_the_last_hundreds_of_requests() -> None:
    advance, traffic, desk = Advance(2.0, ms(8)), Traffic(), Desk("horologe", [("m",)])
    (share,), queue = desk.cluster.shares(), ModelQueue(a_spec("m"))
    queue.insert([desk.ask(NOW, 10)])
    one_request = Strategy(Rank(0, 0, 0), queue, 1, range(1), ms(8))

    def gain_ns() -> int:
        """Return by how much a model of 1 ms goes before one of 10 ms."""
        return advance.ns(1e-6, ms(1)) - advance.ns(1e-7, ms(10))

    usual_ns = gain_ns()
    for _ in range(1000):
        traffic.record_loss(NOW, "m/1")
        traffic.record_batch(NOW, share, one_request)
        advance.update(ms(8), traffic.served)
    assert 1.9 * usual_ns < gain_ns() < 5 * usual_ns
    for _ in range(5000):
        traffic.record_batch(NOW, share, one_request)
        advance.update(ms(8), traffic.served)
    assert gain_ns() == usual_ns


def test_models_that_nobody_asks_for_any_more_are_forgotten() -> None:
    """As with operators that deploy versions for years: at most twice as many models are kept as were in use lately."""
    traffic, desk = Traffic(), Desk("horologe", [("m",)])
    for version in range(2000):
        request = desk.a_request(NOW + s(1) * version, desk.specs["m"], 200)
        request.model = f"m/{version}"
        traffic.record_arrivals([request])
    assert [traffic.of_model(f"m/{version}").arrived for version in (1, 1999)] == [0, 1]
    assert len(traffic._models) <= 2 * 60 + 1


@pytest.mark.parametrize("count", [1, 7, 300])
def test_refused_requests_that_are_reported_together_count_like_the_same_one_by_one(count: int) -> None:
    together, one_by_one = Desk("horologe", [("m",)]), Desk("horologe", [("m",)])
    price = []
    for desk in (together, one_by_one):
        policy, request = desk.scheduler.policy, desk.ask(NOW, 200)
        assert isinstance(policy, Horologe)
        for number in range(1, count + 1):
            now_ns = NOW + number * ms(60) // count
            if desk is one_by_one:
                request = desk.a_request(now_ns, desk.specs["m"], 200)
                policy.on_requests_arrived([request])
                policy.on_request_late(now_ns, request)
        if desk is together:
            policy.on_refused_again(NOW + ms(60), request, count)
        price.append(policy.traffic.price.rate)
    now_ns = NOW + ms(60)
    got, wanted = (desk.scheduler.policy.traffic for desk in (together, one_by_one))
    assert got is not None
    assert wanted is not None
    assert price[0] == pytest.approx(price[1])
    assert got.served == pytest.approx(wanted.served)
    assert got.lost.at(now_ns) == pytest.approx(wanted.lost.at(now_ns), rel=0.1)
    model, other = got.of_model("m/1"), wanted.of_model("m/1")
    assert (model.arrived, model.served) == pytest.approx((other.arrived, other.served))
    assert (model.gap_ns, model.last_ns) == pytest.approx((other.gap_ns, other.last_ns), rel=1e-4)
    assert model.asked.at(now_ns) == pytest.approx(other.asked.at(now_ns), rel=0.1)


@pytest.mark.parametrize(("rows", "sizes"), [(4, [1, 1, 1, 1]), (6, [2, 2, 1, 1]), (100, [16, 16, 16, 16])])
def test_idle_shares_divide_a_queue_while_no_requests_are_lost(rows: int, sizes: list[int]) -> None:
    desk = Desk("horologe", [("m",)] * 4)
    for _ in range(rows):
        desk.ask(NOW, 100)
    assert [len(action.requests) for action in desk.plan(NOW)[0]] == sizes


@pytest.mark.parametrize("others", [0, 3])
def test_a_request_of_several_rows_runs_although_several_shares_are_idle(others: int) -> None:
    desk = Desk("horologe", [("m",)] * 4)
    large = desk.ask(NOW, 100, rows=8)
    for _ in range(others):
        desk.ask(NOW, 100)
    assert any(large in action.requests for action in desk.plan(NOW)[0])


def test_a_busy_share_takes_no_part_of_a_queue() -> None:
    desk = Desk("horologe", [("m",), ("n",)], ("m", "n"))
    desk.ask(NOW, 100, model="n")
    desk.plan(NOW)
    for _ in range(8):
        desk.ask(NOW, 100)
    assert [len(action.requests) for action in desk.plan(NOW)[0]] == [8]


def test_one_idle_share_takes_all_rows_while_requests_are_lost() -> None:
    desk = Desk("horologe", [("m",)] * 4)
    policy = desk.scheduler.policy
    assert policy.traffic is not None
    for _ in range(2):
        policy.traffic.record_loss(NOW, "n/1")
    for _ in range(8):
        desk.ask(NOW, 100)
    assert [len(action.requests) for action in desk.plan(NOW)[0]] == [8]


NOW_NS = s(10)


@pytest.fixture
def ahead() -> LookAhead:
    """Most Results take 1 ms to arrive."""
    latency = MessageLatency()
    share = Share("w", wire.Share(0, "d", 10), 0, ModelResidency(ClusterChanges()), latency)
    for waited_ns in (*[ms(1) // 2] * 2, *[ms(1)] * 8):
        action = Action(1, share, "m", 1, [], 0, NOW_NS, 0)
        latency.observe(NOW_NS, action, NOW_NS - waited_ns, NOW_NS - waited_ns)
    return look_ahead(NOW_NS, latency, ControllerSettings(), just_in_time=True)


def test_further_batches_go_ahead_by_the_return_latency(ahead: LookAhead) -> None:
    assert ahead.more_until_ns == NOW_NS + ms(1)
