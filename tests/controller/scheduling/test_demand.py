"""Demand drops removed requests, even if it is never updated because no share lacks a model."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from harness.builders import a_spec
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
