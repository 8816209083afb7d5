"""Which models are loaded, and which make room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from harness.builders import a_spec
from horologe_common.clock import ms, s
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling.loading.demand import Demand
from horologe_controller.core.scheduling.queues import RequestQueues


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
