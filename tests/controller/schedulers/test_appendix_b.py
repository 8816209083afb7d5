"""The incremental structures decide as the literal scan of Clockwork's appendix B does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.desk import NOW, SchedulerDesk
from harness.builders import a_report, a_spec
from horologe_common.clock import ms
from horologe_common.core import indexed_heap
from horologe_common.models import PAGE_BYTES
from horologe_controller.core.actions import Actions
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.scheduling.loading.demand import Demand
from horologe_controller.core.scheduling.planner import Planner
from horologe_controller.core.scheduling.ranking import Ranking
from horologe_controller.core.scheduling.strategy import Rank, Strategy
from horologe_controller.schedulers.clockwork import Clockwork
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import ModelResidency, Share
    from horologe_controller.core.scheduling.decisions import Decisions
    from horologe_controller.core.scheduling.queues import ModelQueue

SIZES = (1, 2, 4, 8)


class ScannedQueue(Ranking):
    """Every request has a strategy for every batch size. All are visited in order, shrunken batches last."""

    def __init__(self, planner: ScanPlanner) -> None:
        super().__init__(planner.policy.best_batch)
        self.planner = planner

    def best_strategy(self, now_ns: int, start_ns: int, share: Share) -> Strategy | None:
        strategies = sorted(
            (
                _smaller(now_ns, share, queue, size),
                request.deadline_ns - share.predict(now_ns, queue.model, size),
                request.id,
                size,
                place,
                queue,
            )
            for queue in self.planner.queues
            if not queue.best_effort and queue.model in share.resident
            for size in queue.spec.batch_sizes
            for place, request in enumerate(queue)
        )
        for late, required_ns, first_id, size, place, queue in strategies:
            if required_ns < start_ns:  # cannot complete in time, given the outstanding work
                continue
            enough = [
                other
                for other in queue.spec.batch_sizes
                if _survivors(queue, start_ns + share.predict(now_ns, queue.model, other)) >= other
            ]
            if size not in enough or size < max(enough):  # too big, too small
                continue
            places = range(place, place + size)
            return Strategy(
                Rank(late, required_ns, first_id), queue, size, places, share.predict(now_ns, queue.model, size)
            )
        return None


def _smaller(now_ns: int, share: Share, queue: ModelQueue, size: int) -> int:
    """Return the number of larger sizes that the queue could have filled since its last batch, and in time."""
    budget_ns = queue[len(queue) - 1].deadline_ns - queue[len(queue) - 1].arrival_ns
    larger = [other for other in queue.spec.batch_sizes if size < other <= queue.most_rows]
    return sum(share.predict(now_ns, queue.model, other) <= budget_ns for other in larger)


def _survivors(queue: ModelQueue, end_ns: int) -> int:
    return sum(request.deadline_ns >= end_ns for request in queue)


class ScannedDemand(Demand):
    """Scans all models for the highest priority, and adds up loads and demand at every change."""

    def _allocate(self, now_ns: int, model: str, residency: ModelResidency) -> None:
        super()._allocate(now_ns, model, residency)
        demand_ns = sum(request.cost_ns for request in self._counted if request.model == model)
        shares = residency.shares_of.get(model, {})
        assert bool(demand_ns) == (model in self)
        if not demand_ns:
            return
        demand = self._models[model]
        assert demand_ns == demand.total_ns
        assert not shares or sum(part_ns for _, part_ns in demand.parts) == demand_ns
        everything = [part for other in self._models.values() for part in other.parts]
        served_ns = sum(
            part_ns * demand.helped_ns // max(1, sum(other_ns for other, other_ns in everything if other is load))
            for load, part_ns in demand.parts
        )
        assert demand.priority_ns == demand_ns - served_ns

    def most_urgent(self, share: Share, specs: Mapping[str, ModelSpec]) -> str | None:
        first_ns: dict[str, int] = {}
        for queue in self._queues:
            for request in queue:
                first_ns[queue.model] = min(request.deadline_ns, first_ns.get(queue.model, request.deadline_ns))
        ranked = sorted((first_ns[model], model) for model, demand in self._models.items() if demand.priority_ns > 0)
        return next((model for _, model in ranked if share.can_load(model)), None)


class ScanPlanner(Planner):
    """A planner that caches nothing between two plans, and visits every share each time."""

    def __init__(self, policy: Clockwork, settings: ControllerSettings) -> None:
        super().__init__(policy, settings)
        self.loads.demand = ScannedDemand(self.queues)

    def plan(self, now_ns: int, plan: Decisions | None = None) -> Decisions:
        for share in self.cluster.shares():
            self.rankings.of_share.setdefault(share, (ScannedQueue(self), Ranking(_no_strategy)))
            self.cluster.changes.mark_share(share)
        return super().plan(now_ns, plan)


def _no_strategy(now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
    return None


class ScanDesk(SchedulerDesk):
    """A planner, its cluster, and devices that end every action within its expected time."""

    def __init__(self, kind: type[Planner], models: int, shares: int, pages: int, admission: bool) -> None:
        settings = ControllerSettings(admission=admission, preload=False)
        self.specs = [
            a_spec(f"m{number}", batch_sizes=SIZES, weights_bytes=(1 + number % 3) * PAGE_BYTES)
            for number in range(models)
        ]
        self.planner = kind(Clockwork(settings, Cluster()), settings)
        super().__init__(self.planner, self.specs, pages)
        self.actions = Actions("controller/0#1", self.cluster)
        self.decisions: list[Any] = []
        reports = [a_report(spec, exec_ms=1 + number % 4, per_row_ms=0.4) for number, spec in enumerate(self.specs)]
        room: float = pages
        resident = []
        for spec in self.specs:
            if spec.pages <= room:
                resident.append(spec.key)
                room -= spec.pages
        for number in range(shares):
            self.register(number, resident, reports)

    def ask(self, now_ns: int, model: int, budget_ms: float) -> None:
        request = self.a_request(now_ns, self.specs[model % len(self.specs)], budget_ms)
        refusals = self.add(now_ns, request)
        self.decisions.append(("ask", [(refusal.request.id, refusal.retry_after_ns) for refusal in refusals]))

    def end_one(self, now_ns: int, choice: int) -> None:
        """End the oldest action of a lane now."""
        lanes = [lane for share in self.cluster.shares() for lane in (share.exec, share.load) if lane.pending]
        if not lanes:
            return
        action = next(iter(lanes[choice % len(lanes)].pending.values()))
        share = action.share
        (share.exec if action.kind == "infer" else share.load).finish_action(action, now_ns)
        self.cluster.changes.mark_share(share)
        if action.kind == "load":
            share.finish_load(action.model, ok=True)

    def plan(self, now_ns: int) -> None:
        while True:
            plan = self.planner.plan(now_ns)
            self.decisions.append(
                (
                    [
                        (b.share.index, b.batch_size, [request.id for request in b.requests], b.start_ns)
                        for b in plan.start
                    ],
                    [(share.index, model) for share, model in (*plan.load, *plan.unload)],
                    sorted(refusal.request.id for refusal in plan.refuse),
                )
            )
            self.actions.carry_out(now_ns, plan, [])
            self.planner.check()
            self.cluster.check()
            if not plan.load:
                return


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 11), st.integers(2, 14)),
        st.tuples(st.just("ask"), st.integers(0, 11), st.sampled_from([15, 40, 41, 42, 100])),
        st.tuples(st.just("burst"), st.integers(0, 11), st.integers(2, 12)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.4, 1, 3, 30]), st.just(0)),
    ),
    min_size=30,
    max_size=60,
)


@pytest.fixture(autouse=True)
def compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact every heap as soon as most entries are stale, as happens now and then in a long run."""
    monkeypatch.setattr(indexed_heap, "COMPACT_ABOVE", -4)


@settings(
    max_examples=70,
    deadline=None,
    suppress_health_check=[
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)
@given(steps, st.sampled_from([1, 2, 12]), st.integers(1, 3), st.integers(3, 12), st.booleans())
def test_it_decides_as_the_literal_scan(
    steps: list[Any], models: int, shares: int, pages: int, admission: bool
) -> None:
    desks = [ScanDesk(kind, models, shares, pages, admission) for kind in (Planner, ScanPlanner)]
    now_ns = NOW
    for verb, one, other in steps:
        if verb == "wait":
            now_ns += ms(one)
        for desk in desks:
            if verb == "ask":
                desk.ask(now_ns, one, other)
            elif verb == "burst":
                for _ in range(other):
                    desk.ask(now_ns, one, 30)
            elif verb == "end":
                desk.end_one(now_ns, one)
            desk.plan(now_ns)
        assert desks[0].decisions == desks[1].decisions
