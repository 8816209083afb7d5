"""A LOAD does not evict an only copy that is worth more requests than the LOAD serves."""

from __future__ import annotations

import pytest

from controller.desk import NOW, Desk
from horologe_common.clock import ms, s

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
