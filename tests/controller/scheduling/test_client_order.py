"""The order between clients: equal shares while requests are lost, full batches, and nothing held back."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.desk import NOW, Desk
from controller.every_scheduler import LATE_ON_PURPOSE
from harness.builders import a_spec
from horologe_common.clock import ms, s
from horologe_common.wire import Submit
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling.client_order import share_batch
from horologe_controller.core.scheduling.decisions import Reason, Refusal
from horologe_controller.core.scheduling.queues import ModelQueue
from horologe_controller.core.scheduling.strategy import Rank, Strategy
from horologe_controller.schedulers import SCHEDULERS
from horologe_controller.settings import ControllerSettings
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

FAIR_SCHEDULERS = [name for name in SCHEDULERS if name not in LATE_ON_PURPOSE]
EXEC_MS = {1: 8.0, 2: 10.0, 4: 14.0, 8: 20.0}
CAPACITY = 800.0
"""Requests per second of two workers with full batches of `EXEC_MS`."""


def a_request(number: int, client: str, deadline_ms: float = 400, rows: int = 1, **fields: Any) -> Request:
    spec = a_spec()
    submit = Submit(number, spec.key, ms(deadline_ms), rows, "frontend/0#1", number, client=client)
    request = Request(number, "selector/0#1", submit, spec, 0, ms(deadline_ms))
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def a_queue(*requests: Request, losing: bool = True) -> ModelQueue:
    queue = ModelQueue(a_spec())
    for request in requests:
        queue.insert([request])
    if losing:
        queue.record_loss(0)
    return queue


def chosen_clients(queue: ModelQueue, size: int, first: int = 0) -> list[str]:
    """Return the clients of a batch of the `size` requests from index `first` on, as it is started."""
    proposed = Strategy(Rank(0, 0, 0), queue, size, range(first, first + size), ms(10))
    losing = queue.clients is not None and queue.is_losing(0)
    shared = share_batch(queue.clients, proposed, None) if losing and queue.clients else proposed
    places = shared.places if isinstance(shared.places, range) else tuple(shared.places)
    return [request.client for request in queue.pop_batch(places)]


def test_a_client_without_backlog_goes_before_a_flood() -> None:
    """At least among the requests with the earliest deadlines: the others can wait."""
    queue = a_queue(*(a_request(number, "flood") for number in range(50)))
    queue.insert([a_request(98, "small", 399), a_request(99, "small", 500)])
    assert chosen_clients(queue, 8).count("small") == 1


def test_floods_get_equal_parts_of_a_batch() -> None:
    requests = [a_request(number, "a" if number % 3 else "b", 400 + number) for number in range(60)]
    assert Counter(chosen_clients(a_queue(*requests), 8)) == {"a": 4, "b": 4}


def test_without_losses_the_earliest_deadlines_go_first() -> None:
    queue = a_queue(*(a_request(number, "flood") for number in range(8)), a_request(99, "small", 500), losing=False)
    assert set(chosen_clients(queue, 8)) == {"flood"}


def test_requests_that_are_too_late_for_the_batch_stay_out_of_it() -> None:
    late = [a_request(number, "small", 20) for number in range(3)]
    queue = a_queue(*late, *(a_request(10 + number, "flood") for number in range(20)))
    assert set(chosen_clients(queue, 8, first=3)) == {"flood"}


def test_a_request_takes_only_the_place_of_one_with_as_many_rows() -> None:
    flood = [a_request(number, "flood") for number in range(20)]
    queue = a_queue(*flood, a_request(99, "small", 500, rows=4))
    assert set(chosen_clients(queue, 8)) == {"flood"}


def test_refused_and_cancelled_requests_do_not_count_for_their_client() -> None:
    queue = a_queue(a_request(0, "b"), *(a_request(1 + number, "a") for number in range(40)))
    for request in list(queue)[2:]:
        queue.remove(request)
    for number in range(8):
        queue.insert([a_request(100 + number, "a"), a_request(200 + number, "b")])
    assert Counter(chosen_clients(queue, 8)) == {"a": 4, "b": 4}


def test_an_arrival_takes_the_place_of_the_latest_turns() -> None:
    queue = a_queue(*(a_request(number, "flood") for number in range(30)), a_request(50, "small"))
    displaced = queue.find_displaced(a_request(99, "small", rows=2))
    assert [request.id for request in displaced] == [29, 28]
    assert not queue.find_displaced(a_request(99, "flood"))


def test_a_client_does_not_displace_its_own_requests() -> None:
    queue = a_queue(*(a_request(number, "flood") for number in range(20)), a_request(50, "small"))
    for request in list(queue)[:5]:
        queue.remove(request)
    assert not queue.find_displaced(a_request(99, "flood"))


def test_one_client_alone_displaces_nothing() -> None:
    queue = a_queue(*(a_request(number, "flood") for number in range(30)))
    assert not queue.find_displaced(a_request(99, "flood"))
    assert [request.id for request in queue.find_displaced(a_request(99, "first of another"))] == [29]


def test_clients_without_backlog_are_forgotten() -> None:
    queue = a_queue(a_request(0, "steady"), losing=False)
    for number in range(1, 1000):
        queue.insert([a_request(number, f"client {number}")])
        queue.pop_batch(range(1))
    assert queue.clients is not None
    assert len(queue.clients._next) <= 5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_backlogged_clients_get_similar_service(data: st.DataObject) -> None:
    """Of two clients that are never without requests, the one that sends less gets at least 0.75 of the other."""
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    clients = [f"c{number}" for number in range(data.draw(st.integers(2, 5)))]
    queue, served, number = a_queue(), Counter[str](), 0
    for step in range(60):
        for client in clients:
            waiting = sum(request.client == client for request in queue)
            for _ in range(max(rng.randrange(4), 9 - waiting)):
                number += 1
                queue.insert([a_request(number, client, 400 + step + rng.random())])
        if rng.random() < 0.3 and len(queue) > 60:
            queue.remove(queue[rng.randrange(len(queue))])
        queue.record_loss(0)
        if queue.clients is not None:
            queue.clients.check(queue)
        served.update(chosen_clients(queue, 8))
    assert min(served[client] for client in clients) >= 0.75 * max(served.values())


def simulate(scheduler: str, rates: dict[str, float], seconds: float = 4, **fields: Any) -> Any:
    """Return the report of two workers whose clients send with these rates. The first second does not count."""
    load = tuple(LoadPhase(rate=rate, client=name, **fields.get(name, {})) for name, rate in rates.items())
    scenario = Scenario(
        (ModelEntry("model", EXEC_MS, slo_ns=ms(400)),), load, workers=2, duration_ns=s(seconds), warmup_ns=s(1),
        controller=ControllerSettings(scheduler=scheduler),
    )  # fmt: skip
    cluster = SimulatedCluster(scenario)
    cluster.run()
    return cluster.report()


@pytest.mark.parametrize("scheduler", FAIR_SCHEDULERS)
def test_every_scheduler_shares_between_clients(scheduler: str) -> None:
    """A flood of twice the capacity, and a client that sends a tenth of it: the latter gets 0.9 of what it sends."""
    report = simulate(scheduler, {"flood": 2 * CAPACITY, "small": CAPACITY / 10}, 3)
    small, flood = report.clients["small"], report.clients["flood"]
    assert small.ok >= 0.9 * small.sent
    alone = simulate(scheduler, {"flood": 2.1 * CAPACITY}, 3)
    assert small.ok + flood.ok >= 0.95 * alone.total.ok


@pytest.mark.parametrize("slos_ms", [(60, 1000), (1000, 60)])
def test_floods_with_unlike_deadlines_get_similar_shares(slos_ms: tuple[float, float]) -> None:
    rates = {"a": CAPACITY, "b": CAPACITY}
    fields: dict[str, Any] = {name: {"slo_ns": ms(slo)} for name, slo in zip(rates, slos_ms, strict=True)}
    report = simulate("horologe", rates, **fields)
    assert report.total.ok >= 0.9 * 3 * CAPACITY
    for name in rates:
        assert report.clients[name].ok >= 0.8 * 3 * CAPACITY / 2


def test_best_effort_requests_of_a_small_client_do_not_wait_for_a_flood() -> None:
    """Requests without a deadline are never refused for lack of time: their order decides."""
    scenario = Scenario(
        (ModelEntry("model", EXEC_MS),),
        (
            LoadPhase(rate=4 * CAPACITY, for_ns=s(1), client="flood"),
            LoadPhase(rate=20, from_ns=s(0.5), client="small"),
        ),
        workers=2,
        duration_ns=s(4),
    )
    cluster = SimulatedCluster(scenario)
    cluster.run()
    report = cluster.report()
    assert report.clients["small"].p99_ms < 200
    assert report.clients["flood"].p99_ms > 2000
    assert report.total.ok == report.total.sent


def test_a_displaced_request_is_told_no_time_of_the_request_that_was_too_late() -> None:
    desk = Desk("horologe", [("m",)])
    spec = desk.specs["m"]
    refusals: list[Refusal] = []
    while not refusals:
        flood = desk.a_request(NOW, spec, 40)
        flood.client = "flood"
        refusals = desk.add(NOW, flood)
    assert (refusals[0].request, refusals[0].reason) == (flood, Reason.WORK_AHEAD)
    assert refusals[0].retry_after_ns > 0
    small = desk.a_request(NOW, spec, 40)
    small.client = "small"
    (displaced,) = desk.add(NOW, small)
    assert (displaced.request.client, displaced.reason, displaced.retry_after_ns) == ("flood", Reason.WORK_AHEAD, 0)
