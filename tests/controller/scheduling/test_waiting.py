"""When a batch of a static model waits for the next larger size on a busy device."""

from __future__ import annotations

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms, s, us
from horologe_controller.core.cluster.estimates import Estimate
from horologe_controller.core.scheduling.queues import ModelQueue
from horologe_controller.core.scheduling.ranking import Strategy
from horologe_controller.core.traffic import FIRST_GAP_NS, MOST_MODELS, Traffic
from horologe_controller.schedulers.horologe import Horologe


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
