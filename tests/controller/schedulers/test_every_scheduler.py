"""Contract of every scheduler, and of the example in CONTRIBUTING.md, called directly."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from controller.desk import NOW, SchedulerDesk
from controller.every_scheduler import LATE_ON_PURPOSE, NAMES, contributing_example, everyone, names
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.models import PAGE_BYTES, ModelSpec
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.schedulers import create_scheduler
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.decisions import Batch, Decisions, Refusal

EXEC = {size: ms(2 + 0.5 * (size - 1)) for size in (1, 2, 4, 8, 16)}  # a_profile's

__all__ = ["contributing_example"]


class ContractDesk(SchedulerDesk):
    """A scheduler, and a worker of one share. By default there is one model, and the worker holds all."""

    def __init__(self, name: str, *models: ModelSpec, resident: Sequence[str] | None = None) -> None:
        self.settings = ControllerSettings(scheduler=name)
        self.models = models or (a_spec(),)
        super().__init__(create_scheduler(self.settings, Cluster()), self.models)
        self.register(0, [model.key for model in self.models] if resident is None else resident)

    def ask(
        self, deadline_ms: float, spec: ModelSpec | None = None, rows: int = 1, best_effort: bool = False
    ) -> tuple[Request, Refusal | None]:
        request = self.a_request(NOW, spec or self.models[0], deadline_ms, rows, best_effort=best_effort)
        refusals = self.add(NOW, request)
        return request, refusals[0] if refusals else None

    def plan(self, now_ns: int = NOW) -> Decisions:
        plan = self.scheduler.plan(now_ns)
        self.scheduler.check()
        return plan

    def start(self, now_ns: int = NOW) -> list[Batch]:
        """Return the batches that start now, or at the next wake-up."""
        plan = self.plan(now_ns)
        while not plan.start and plan.wake_ns is not None:
            plan = self.plan(plan.wake_ns)
        return plan.start


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*LATE_ON_PURPOSE, "deferred")])
def test_a_request_that_fits_is_started_at_once(name: str) -> None:
    desk = ContractDesk(name)
    request, refusal = desk.ask(50)
    assert refusal is None
    (batch,) = desk.plan().start
    assert [one.id for one in batch.requests] == [request.id]
    assert (batch.batch_size, batch.start_ns, batch.expected_ns) == (1, NOW, EXEC[1])
    assert batch.latest_ns == request.deadline_ns - EXEC[1]
    assert len(desk.scheduler) == 0


@names
@pytest.mark.parametrize(("deadline_ms", "fits"), [(2.0, True), (1.99, False), (0, False), (-5, False)])
def test_refused_as_soon_as_not_even_batch_one_fits(name: str, deadline_ms: float, fits: bool) -> None:
    desk = ContractDesk(name)
    request, refusal = desk.ask(deadline_ms)
    assert (refusal is None) == fits
    if refusal:
        assert refusal.request is request
        assert refusal.reason
        assert refusal.retry_after_ns == ms(2) - ms(deadline_ms)
        assert len(desk.scheduler) == 0


@names
def test_refused_when_its_turn_has_not_come_before_any_work(name: str) -> None:
    """If no LOAD ends in time, the request is refused when a batch of one cannot finish any more."""
    desk = ContractDesk(name, resident=())
    request, _ = desk.ask(10)
    first = desk.plan()
    assert [model for _, model in first.load] == [request.model]
    assert not first.start
    assert not first.refuse
    last_start_ns = request.deadline_ns - EXEC[1]
    assert first.wake_ns is not None
    assert first.wake_ns <= last_start_ns + 1
    assert desk.plan(last_start_ns).refuse == []
    late = desk.plan(last_start_ns + 1)
    assert [refusal.request.id for refusal in late.refuse] == [request.id]
    assert late.start == []
    assert len(desk.scheduler) == 0


@everyone
def test_nothing_to_do_needs_no_waking(name: str) -> None:
    plan = ContractDesk(name).plan()
    assert not any((plan.start, plan.load, plan.unload, plan.refuse))
    assert plan.wake_ns is None


@names
def test_requests_of_a_model_are_batched(name: str) -> None:
    desk = ContractDesk(name)
    for _ in range(16):
        desk.ask(100)
    first = desk.plan().start[0]
    assert (first.batch_size, len(first.requests)) == (16, 16)


@everyone
def test_rows_count_towards_the_batch(name: str) -> None:
    desk = ContractDesk(name)
    for rows in (5, 5, 5, 5):
        desk.ask(200, rows=rows)
    for batch in desk.plan().start:
        rows = sum(request.rows for request in batch.requests)
        assert batch.batch_size == desk.models[0].compiled_batch_size(rows)


@everyone
def test_no_more_in_flight_than_set(name: str) -> None:
    desk = ContractDesk(name, a_spec(batch_sizes=(1,)))
    for _ in range(10):
        desk.ask(500)
    plan = desk.plan()
    assert 1 <= len(plan.start) <= desk.settings.in_flight
    for before, after in pairwise(plan.start):
        assert after.start_ns >= before.start_ns + before.expected_ns


@everyone
def test_load_comes_before_infer_and_only_where_there_are_pages(name: str) -> None:
    small, large = a_spec("small"), a_spec("large", weights_bytes=100 * PAGE_BYTES)
    desk = ContractDesk(name, small, large, resident=())
    desk.ask(200, small)
    desk.ask(200, large)
    plan = desk.plan()
    assert [model for _, model in plan.load] == [small.key]
    assert not plan.start
    assert not plan.unload


@everyone
def test_the_least_recently_used_makes_room_unless_it_is_wanted(name: str) -> None:
    specs = [a_spec(one, weights_bytes=20 * PAGE_BYTES) for one in ("old", "wanted", "recent", "new")]
    desk = ContractDesk(name, *specs, resident=[spec.key for spec in specs[:3]])
    share = next(desk.cluster.shares())
    for model in ("old/1", "wanted/1", "recent/1"):
        share.mark_used(model)
    desk.ask(300, specs[3])
    plan = desk.plan()
    assert [model for _, model in plan.unload] == ["old/1"]
    assert [model for _, model in plan.load] == ["new/1"]


@everyone
def test_a_model_that_runs_is_not_unloaded(name: str) -> None:
    specs = [a_spec(one, weights_bytes=40 * PAGE_BYTES) for one in ("running", "new")]
    desk = ContractDesk(name, *specs, resident=[specs[0].key])
    desk.ask(300, specs[0])
    desk.ask(300, specs[1])
    plan = desk.plan()
    started = {(id(batch.share), batch.model) for batch in plan.start}
    assert not started & {(id(share), model) for share, model in plan.unload}


@names
def test_best_effort_gets_what_is_left(name: str) -> None:
    spec, other = a_spec("a"), a_spec("b")
    desk = ContractDesk(name, spec, other)
    patient, _ = desk.ask(30_000, best_effort=True)
    urgent = [desk.ask(20, other)[0] for _ in range(16)]
    started = [request.id for batch in desk.plan().start for request in batch.requests]
    assert started[: len(urgent)] == [request.id for request in urgent]
    assert patient.id not in started[: len(urgent)]
    idle = ContractDesk(name)
    alone, _ = idle.ask(30_000, best_effort=True)
    assert [one.id for batch in idle.plan().start for one in batch.requests] == [alone.id]


@everyone
def test_a_removed_request_is_forgotten(name: str) -> None:
    desk = ContractDesk(name)
    gone, stays = desk.ask(100)[0], desk.ask(100)[0]
    desk.scheduler.remove(gone)
    assert [one.id for batch in desk.start() for one in batch.requests] == [stays.id]
    assert len(desk.scheduler) == 0
