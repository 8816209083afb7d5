"""Which models are loaded, and which make room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms, s
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling.loading.demand import Demand
from horologe_controller.core.scheduling.loading.relief import SETTLED_NS, excess_losses, is_calm, is_spare
from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues
from horologe_controller.core.scheduling.ranking import Strategy
from horologe_controller.core.traffic import Traffic

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share


def test_a_share_that_was_never_used_leaves_nothing_behind() -> None:
    """Demand is updated only while a model is missing on some share."""
    desk = Desk("horologe", [("m",)])
    (share,) = desk.cluster.shares()
    desk.plan(NOW)
    demand: Any = desk.scheduler.loads.demand
    demand.discard_share(share)
    assert demand._lost == []


@given(st.permutations(range(1, 9)))
def test_demand_drops_removed_requests(order: list[int]) -> None:
    demand, spec = Demand(RequestQueues()), a_spec()
    requests = {
        number: Request(number, "s", number, spec, spec.key, 1, "h", number, 0, 100 + number, False) for number in order
    }
    for number, request in requests.items():
        request.cost_ns = 1
        demand.add_request(request, 50 + number)
    for number in order:
        demand.remove_requests([requests[number]])
    demand.check()
    assert len(demand) == 0


LATER_NS = NOW + ms(500)


def a_full_desk(budget_ms: float, name: str = "horologe") -> Desk:
    """The share has room for two models of three. Those that it holds are asked for every 10 ms."""
    desk = Desk(name, [("a", "b")], ("m", "a", "b"), admission=False)
    for at_ns in range(NOW, LATER_NS, ms(10)):
        for model in ("a", "b"):
            desk.ask(at_ns, budget_ms, model=model)
        for action in desk.plan(at_ns)[0]:
            desk.end(action, action.end_ns)
        for action in desk.plan(at_ns + ms(3))[0]:
            desk.end(action, action.end_ns)
    return desk


@pytest.mark.parametrize(("name", "loaded"), [("horologe", []), ("clockwork", ["m/1"])])
def test_popular_models_stay_where_their_requests_cannot_wait(name: str, loaded: list[str]) -> None:
    desk = a_full_desk(12, name)
    desk.ask(LATER_NS, 12)
    assert desk.plan(LATER_NS)[1] == loaded


def test_a_model_makes_room_if_its_requests_can_wait_until_it_is_back() -> None:
    desk = a_full_desk(100)
    desk.ask(LATER_NS, 12)
    assert desk.plan(LATER_NS)[1] == ["m/1"]


def test_many_requests_that_a_load_helps_are_worth_a_popular_model() -> None:
    desk = a_full_desk(12)
    for _ in range(20):
        desk.ask(LATER_NS, 100)
    assert desk.plan(LATER_NS)[1] == ["m/1"]


def test_a_model_that_was_popular_makes_room_later() -> None:
    desk = a_full_desk(12)
    desk.ask(LATER_NS, 12)
    assert desk.plan(LATER_NS)[1] == []
    later_ns = LATER_NS + s(6)
    desk.ask(later_ns, 12)
    assert desk.plan(later_ns)[1] == ["m/1"]


LOST_NS = NOW + ms(100)
AGAIN_NS = NOW + ms(200)


def lose_requests(desk: Desk) -> None:
    """Requests for `m` miss their deadlines, since the share with `m` is out of reach."""
    worker = desk.cluster.workers["w0"]
    worker.same_host = False
    for _ in range(5):
        desk.ask(NOW, 10)
    desk.plan(NOW)
    desk.plan(LOST_NS)
    assert len(desk.refused) == 5
    worker.same_host = True


@pytest.mark.parametrize(("name", "loaded"), [("horologe", ["m/1"]), ("clockwork", [])])
def test_the_default_loads_a_model_elsewhere_after_losses(name: str, loaded: list[str]) -> None:
    """The queue alone needs no second share: it takes 2 of 10 ms."""
    desk = Desk(name, [("m",), ("a", "b")], ("m", "a", "b"), admission=False)
    lose_requests(desk)
    desk.ask(AGAIN_NS, 10)
    assert desk.plan(AGAIN_NS)[1] == loaded


def test_without_losses_no_second_share_loads_the_model() -> None:
    desk = Desk("horologe", [("m",), ("a", "b")], ("m", "a", "b"), admission=False)
    desk.ask(AGAIN_NS, 10)
    assert desk.plan(AGAIN_NS)[1] == []


def test_only_idle_models_make_room() -> None:
    desk = Desk("horologe", [("m",), ("a", "b")], ("m", "a", "b"), admission=False)
    lose_requests(desk)
    for model in ("a", "b"):
        desk.ask(LOST_NS, 50, model=model)
    for action in desk.plan(LOST_NS)[0]:
        desk.end(action, action.end_ns)
    desk.ask(AGAIN_NS, 10)
    assert desk.plan(AGAIN_NS)[1] == []
    later_ns = AGAIN_NS + s(2)
    for _ in range(5):
        assert desk.scheduler.policy.traffic is not None
        desk.scheduler.policy.traffic.record_loss(later_ns, desk.cluster.residency.shares_of["m/1"])
    desk.scheduler.loads.demand.mark_model("m/1")
    desk.ask(later_ns, 10)
    assert desk.plan(later_ns)[1] == ["m/1"]


def excess(traffic: Traffic, now_ns: int, share: Share) -> float:
    return excess_losses(traffic.share_losses(now_ns, share), traffic.losses.at(now_ns))


def test_losses_of_all_shares_are_nobodys_excess() -> None:
    traffic, shares = Traffic(), list(Desk("horologe", [("m",)] * 3).cluster.shares())
    for _ in range(9):
        traffic.record_loss(NOW, shares[:1])
    assert excess(traffic, NOW, shares[0]) == 9
    for _ in range(9):
        traffic.record_loss(NOW, shares[1:])
    assert excess(traffic, NOW, shares[0]) == pytest.approx(9 / 19**2)
    assert excess(traffic, NOW + s(20), shares[0]) < 1e-6


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000)), max_size=40))
def test_the_excess_is_never_negative_nor_more_than_the_losses(steps: list[tuple[int, int]]) -> None:
    traffic, shares, now_ns = Traffic(), list(Desk("horologe", [("m",)] * 3).cluster.shares()), NOW
    for count, (place, wait_ms) in enumerate(steps, start=1):
        now_ns += ms(wait_ms)
        traffic.record_loss(now_ns, [shares[place]])
        assert all(0.0 <= excess(traffic, now_ns, share) <= count for share in shares)


def record_work(traffic: Traffic, desk: Desk, at_ns: int, share: Share, model: str, took_ns: int) -> None:
    queue = ModelQueue(a_spec(model))
    queue.insert([desk.ask(at_ns, 10)])
    traffic.record_batch(at_ns, at_ns, share, Strategy((0, 0, 0), queue, 1, range(1), took_ns))


def test_a_copy_is_spare_if_other_holders_have_time_for_its_work() -> None:
    traffic, desk = Traffic(), Desk("horologe", [("m",)] * 2)
    here, there = desk.cluster.shares()
    now_ns, holders = NOW + s(3), {here: True, there: True}
    traffic.record_arrivals([desk.a_request(now_ns, a_spec("m"), 10)])
    record_work(traffic, desk, NOW, here, "m", 1)
    record_work(traffic, desk, now_ns, here, "m", ms(100))
    assert is_spare(traffic, now_ns, here, "m/1", holders)
    assert not is_spare(traffic, now_ns, here, "m/1", {here: True})
    assert not is_spare(traffic, now_ns, here, "m/1", {here: True, there: False})
    record_work(traffic, desk, now_ns, there, "other", ms(250))
    assert not is_spare(traffic, now_ns, here, "m/1", holders)
    assert is_spare(traffic, now_ns + s(2), here, "m/1", holders)


def test_work_for_models_that_a_share_no_longer_holds_is_forgotten() -> None:
    """As with operators that deploy versions for years."""
    traffic, desk = Traffic(), Desk("horologe", [("m",)])
    (share,) = desk.cluster.shares()
    record_work(traffic, desk, NOW, share, "m", ms(100))
    for version in range(100):
        record_work(traffic, desk, NOW, share, f"gone{version}", 1)
    assert sum(traffic.work_ns(NOW, share, f"gone{version}/1") > 0 for version in range(100)) <= 3
    assert traffic.work_ns(NOW, share, "m/1") == ms(100)


def test_a_model_that_needed_a_load_has_no_spare_copies_for_a_while() -> None:
    traffic, desk = Traffic(), Desk("horologe", [("m",)] * 2)
    here, there = desk.cluster.shares()
    record_work(traffic, desk, NOW - s(3), here, "m", 1)
    traffic.record_load(NOW, "m/1")
    for later_ns, spare in ((NOW + s(1), False), (NOW + SETTLED_NS, True)):
        traffic.record_arrivals([desk.a_request(later_ns, a_spec("m"), 10)])
        assert is_spare(traffic, later_ns, here, "m/1", {here: True, there: True}) == spare


def test_only_a_share_with_far_fewer_losses_relieves_others() -> None:
    traffic, (first, second) = Traffic(), Desk("horologe", [("m",)] * 2).cluster.shares()
    assert not is_calm(traffic, NOW, second, [first])
    for _ in range(9):
        traffic.record_loss(NOW, [first])
    traffic.record_loss(NOW, [second])
    assert is_calm(traffic, NOW, second, [first])
    traffic.record_loss(NOW, [second] * 2)
    assert not is_calm(traffic, NOW, second, [first])
