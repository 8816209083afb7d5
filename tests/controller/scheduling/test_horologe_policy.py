"""The default policy on static models: the size of a batch, when it waits, where it runs, how far ahead it goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms, s, us
from horologe_controller.core.cluster.estimates import Estimate
from horologe_controller.core.cluster.lane import LookAhead, MessageLatency, look_ahead
from horologe_controller.core.scheduling.queues import ModelQueue
from horologe_controller.core.scheduling.ranking import Advance, Strategy
from horologe_controller.core.traffic import FIRST_GAP_NS, MOST_MODELS, Traffic
from horologe_controller.schedulers.horologe import Horologe
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
    estimate = desk.cluster.workers["w0"].shares[0].estimates["long/1"]
    estimate.seed_ns = {0: ms(5), 1: ms(9), 2: ms(10), 4: ms(12), 8: ms(16), 16: ms(24)}
    desk.ask(NOW, 25)  # one request in 2 ms
    for _ in range(8):
        desk.ask(NOW, 26, model="long")
    assert next(action.model for action in desk.plan(NOW)[0]) == "long/1"


def test_a_worker_may_start_a_batch_while_its_last_request_can_be_in_time() -> None:
    desk = Desk("horologe", [("m",)], admission=False)
    for budget_ms in (4, 6, 8, 10):
        desk.ask(NOW, budget_ms)
    (batch,) = desk.scheduler.plan(NOW, desk.cluster).start
    assert len(batch.requests) == 4
    assert batch.latest_ns == NOW + ms(10) - ms(3.5)


def test_a_request_counts_as_in_time_by_the_median_of_recent_durations() -> None:
    desk = Desk("horologe", [("m",)], admission=False)
    estimate = desk.cluster.workers["w0"].shares[0].estimates["m/1"]
    for took_ms in (2, 2, 2, 2, 2, 2, 2, 6, 6, 6):
        estimate.observe(NOW, 1, ms(took_ms))
    desk.ask(NOW, 3)
    (batch,) = desk.scheduler.plan(NOW, desk.cluster).start
    assert (batch.expected_ns, batch.latest_ns) == (ms(6), NOW + ms(1))


def first_under_losses(lost: int) -> str:
    """Return the model that goes first after so many losses: a costly one with the earlier deadline, or a cheap one."""
    desk = Desk("horologe", [("costly", "cheap")], ("costly", "cheap"), admission=False)
    desk.cluster.workers["w0"].shares[0].estimates["costly/1"].seed_ns = dict.fromkeys((0, 1, 2, 4, 8, 16), ms(8))
    policy: Any = desk.scheduler.policy
    for _ in range(lost):
        policy.traffic.record_late(NOW - s(2))
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
    one_request = Strategy((0, 0, 0), queue, 1, range(1), ms(8))

    def gain_ns() -> int:
        """Return by how much a model of 1 ms goes before one of 10 ms."""
        return advance.ns(1e-6, ms(1)) - advance.ns(1e-7, ms(10))

    usual_ns = gain_ns()
    for _ in range(1000):
        traffic.record_late(NOW)
        traffic.record_batch(NOW, NOW, share, one_request)
        advance.update(ms(8), traffic.served)
    assert 1.9 * usual_ns < gain_ns() < 5 * usual_ns
    for _ in range(5000):
        traffic.record_batch(NOW, NOW, share, one_request)
        advance.update(ms(8), traffic.served)
    assert gain_ns() == usual_ns


def started_at_once(batch_ns: int, lost_ns: int = 0) -> bool:
    """Keep a share busy with batches of another model. Return whether one request of `m` then starts at once.

    `m` is asked once in a millisecond. Its batch of one takes `batch_ns`, of two a tenth more. The last request was
    lost `lost_ns` before.
    """
    desk = Desk("horologe", [("m", "busy")], ("m", "busy"))
    share = next(iter(desk.cluster.shares()))
    seed_ns = {size: batch_ns * (9 + size) // 10 for size in desk.specs["m"].batch_sizes}
    share.estimates["m/1"] = Estimate({0: ms(1), **seed_ns}, share.pace)
    now_ns = asked_ns = NOW
    for _ in range(600):
        for _ in range(16):
            desk.ask(now_ns, 200, model="busy")
        for action in desk.plan(now_ns)[0]:
            now_ns = max(now_ns, action.end_ns)
            while asked_ns < now_ns:
                asked_ns += ms(1)
                desk.ask(asked_ns, 200)
            desk.end(action, now_ns)
        now_ns += us(100)
    while len(desk.scheduler):
        now_ns += us(100)
        for action in desk.plan(now_ns)[0]:
            desk.end(action, action.end_ns)
    desk.ask(now_ns, 200)
    policy = desk.scheduler.policy
    assert isinstance(policy, Horologe)
    policy.traffic.lost_ns = now_ns - lost_ns
    return bool(desk.plan(now_ns)[0])


def test_a_batch_waits_only_where_larger_batches_save_device_time() -> None:
    assert not started_at_once(ms(4))
    assert started_at_once(us(10))


def test_a_batch_waits_only_if_a_request_was_lost_lately() -> None:
    assert not started_at_once(ms(4), ms(199))
    assert started_at_once(ms(4), ms(201))


def test_clients_that_wait_for_answers_are_not_expected_to_send_meanwhile() -> None:
    traffic, queue = Traffic(), ModelQueue(a_spec("m"))
    desk = Desk("horologe", [("m",)])
    (share,) = desk.cluster.shares()
    for sent in range(50):
        now_ns = NOW + ms(4) * sent
        traffic.record_arrivals(requests := [desk.ask(now_ns, 200)])
        queue.insert(requests)
        traffic.record_batch(now_ns + ms(3), now_ns + ms(3), share, Strategy((0, 0, 0), queue, 1, range(1), ms(1)))
        queue.pop_batch(range(1))
    assert traffic.of_model("m/1").next_ns() > ms(40)


def test_requests_of_a_burst_come_at_once() -> None:
    """16 requests in 24 ms fill a batch of 16 in that time, or at once if they come together. More take longer."""
    for model, apart_ms in (("even", 1.5), ("bursts", 0.0)):
        traffic, desk = Traffic(), Desk("horologe", [(model,)], (model,))
        for number in range(16 * 100):
            begin_ms = 24 * (number // 16)
            traffic.record_arrivals([desk.ask(NOW + ms(begin_ms + apart_ms * (number % 16)), 200, model=model)])
        fill_ns = traffic.of_model(f"{model}/1").fill_ns
        assert ms(12) < fill_ns(32) - fill_ns(16) < ms(28)
        assert (fill_ns(16) > ms(20)) is (model == "even")


def test_models_that_nobody_asks_for_any_more_are_forgotten() -> None:
    """As with operators that deploy versions for years: at most twice as many models are kept as are in use."""
    traffic, desk = Traffic(), Desk("horologe", [("m",)])
    for version in range(2000):
        request = desk.ask(NOW + s(1) * version, 200)
        request.model = f"m/{version}"
        traffic.record_arrivals([request])
    assert traffic.of_model("m/1").gap_ns == FIRST_GAP_NS
    assert len(traffic._models) <= MOST_MODELS


def batches(rows: int, lost_ms: int | None = None, shares: int = 4) -> list[int]:
    """Return the rows of the batches for idle shares. `lost_ms`: time since a request was lost."""
    desk = Desk("horologe", [("m",)] * shares)
    for _ in range(rows):
        desk.ask(NOW, 100)
    policy = desk.scheduler.policy
    assert isinstance(policy, Horologe)
    policy.traffic.lost_ns = None if lost_ms is None else NOW - ms(lost_ms)
    return [len(action.requests) for action in desk.plan(NOW)[0]]


@pytest.mark.parametrize(("rows", "split"), [(1, [1]), (4, [1, 1, 1, 1]), (6, [2, 1, 1, 1]), (8, [2, 2, 1, 1])])
def test_idle_shares_divide_the_rows_of_a_queue(rows: int, split: list[int]) -> None:
    """What is left when all have a batch goes next."""
    assert batches(rows) == split


def test_one_share_takes_all_rows_after_a_loss() -> None:
    assert batches(8, lost_ms=99)[0] == 8
    assert batches(8, lost_ms=101)[0] == 2


def test_a_batch_is_never_larger_than_the_largest_size() -> None:
    assert batches(100)[0] == 16


def test_a_share_alone_takes_all_rows() -> None:
    assert batches(8, shares=1) == [8]


NOW_NS = s(10)


@pytest.fixture
def ahead() -> LookAhead:
    """Two Results in ten come as fast as the network allows. The others wait in a busy process."""
    latency = MessageLatency(return_window=10)
    for waited_ns in (*[ms(1) // 2] * 2, *[ms(1)] * 8):
        action: Any = SimpleNamespace(promised_ns=NOW_NS, expected_ns=0, sent_ns=0)
        latency.observe(NOW_NS, action, NOW_NS - waited_ns, NOW_NS - waited_ns)
    return look_ahead(NOW_NS, latency, ControllerSettings(), lead_ns=ms(1) // 10, just_in_time=True)


def test_the_look_ahead_tells_the_network_from_waits(ahead: LookAhead) -> None:
    assert ahead.network_until_ns == NOW_NS + ms(1) // 2
    assert ahead.return_until_ns == NOW_NS + ms(1)
    assert ahead.more_until_ns == NOW_NS + 3 * ms(1)


@pytest.mark.parametrize(
    ("size", "gap_ns", "until_ns"),
    [(8, ms(0.1), ms(0.5)), (8, ms(0.6), ms(1)), (16, ms(0.1), ms(3))],
    ids=["a batch that will grow", "one that will not", "a full one"],
)
def test_the_default_goes_ahead_by_the_network_only_if_requests_come_while_results_wait(
    ahead: LookAhead, size: int, gap_ns: int, until_ns: int
) -> None:
    policy = Horologe(ControllerSettings())
    desk = Desk("horologe", [("m",)])
    for number in range(200):
        policy.traffic.record_arrivals([desk.a_request(number * gap_ns, a_spec("m"), 10)])
    queue = SimpleNamespace(model="m/1", spec=SimpleNamespace(max_batch=16))
    strategy: Any = SimpleNamespace(size=size, queue=queue)
    assert policy.go_ahead_until_ns(ahead, strategy) == NOW_NS + until_ns
