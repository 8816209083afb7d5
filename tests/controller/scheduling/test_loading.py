"""Which models are loaded, and which make room."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms, s
from horologe_common.wire import Submit
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling.loading.demand import Demand
from horologe_controller.core.scheduling.queues import RequestQueues
from horologe_controller.core.traffic import Traffic


@given(st.permutations(range(1, 9)))
def test_demand_drops_removed_requests(order: list[int]) -> None:
    demand, spec = Demand(RequestQueues()), a_spec()
    requests = {
        number: Request(number, "s", Submit(number, spec.key, 0, 1, "h", 0), spec, 0, 100 + number) for number in order
    }
    for number, request in requests.items():
        request.cost_ns = 1
        demand.add_request(request, 50 + number)
    for number in order:
        demand.remove_requests([requests[number]])
    demand.check()
    assert len(demand) == 0


LATER_NS = NOW + ms(500)


def a_full_desk(budget_ms: float, name: str = "horologe", weight: float = 1.0) -> Desk:
    """The share has room for two models of three. Those that it holds are asked for every 10 ms. `weight`: of m."""
    desk = Desk(name, [("a", "b")], ("m", "a", "b"), admission=False)
    desk.specs["m"] = desk.cluster.specs["m/1"] = msgspec.structs.replace(desk.specs["m"], weight=weight)
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


@pytest.mark.parametrize(("weight", "loaded"), [(1.0, []), (100.0, ["m/1"])])
def test_requests_count_by_their_weights(weight: float, loaded: list[str]) -> None:
    desk = a_full_desk(12, weight=weight)
    desk.ask(LATER_NS, 12)
    assert desk.plan(LATER_NS)[1] == loaded


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


def traffic_of(models: tuple[str, ...]) -> Traffic:
    """Return a ledger with one request for each model."""
    traffic, desk = Traffic(), Desk("horologe", [()], models)
    for model in models:
        traffic.record_arrivals([desk.a_request(NOW, desk.specs[model], 10)])
    return traffic


def test_losses_of_all_models_are_no_excess_of_any() -> None:
    traffic = traffic_of(("a", "b", "c"))
    for _ in range(9):
        traffic.record_loss(NOW, "a/1")
    assert traffic.excess_losses(NOW, "a/1") == 9
    for _ in range(9):
        traffic.record_loss(NOW, "b/1")
        traffic.record_loss(NOW, "c/1")
    assert traffic.excess_losses(NOW, "a/1") == pytest.approx(9 / 19**2)
    assert traffic.excess_losses(NOW + s(20), "a/1") < 1e-6


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3000)), max_size=40))
def test_the_excess_is_never_negative_nor_more_than_the_losses(steps: list[tuple[str, int]]) -> None:
    traffic, now_ns = traffic_of(("a", "b", "c")), NOW
    for count, (lost, wait_ms) in enumerate(steps, start=1):
        now_ns += ms(wait_ms)
        traffic.record_loss(now_ns, f"{lost}/1")
        assert all(0.0 <= traffic.excess_losses(now_ns, f"{model}/1") <= count for model in "abc")
