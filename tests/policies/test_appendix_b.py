"""The incremental structures decide as the literal scan of Clockwork's appendix B does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import a_report, a_spec
from horologe_common.clock import ms, s
from horologe_common.models import PAGE_BYTES
from horologe_common.wire import Register
from horologe_common.wire import Share as Told
from horologe_controller.core.actions import Actions
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.cluster.worker_mirror import Worker
from horologe_controller.core.requests.request import Request
from horologe_controller.core.scheduling import demand, strategies
from horologe_controller.core.scheduling.demand import CAPACITY_PART, Demand
from horologe_controller.core.scheduling.strategies import Ranking, Strategy
from horologe_controller.schedulers.clockwork import Clockwork
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import Holders, Share
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Plan

NOW = s(1000)
SIZES = (1, 2, 4, 8)


class ScannedQueue(Ranking):
    """Every request has a strategy for every batch size; they are iterated in order, latecomers last."""

    def __init__(self, scheduler: Scan) -> None:
        super().__init__(scheduler.propose)
        self.scheduler = scheduler

    def best(self, now_ns: int, start_ns: int, share: Share) -> Strategy | None:
        strategies = sorted(
            (
                _smaller(now_ns, share, queue, size),
                request.deadline_ns - share.predict(now_ns, queue.model, size),
                request.id,
                size,
                place,
                queue,
            )
            for queue in self.scheduler.backlog
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
                (late, required_ns, first_id), queue, size, places, share.predict(now_ns, queue.model, size)
            )
        return None


def _smaller(now_ns: int, share: Share, queue: ModelQueue, size: int) -> int:
    """How many larger sizes there have been requests for since the last batch, and time when the last came."""
    budget_ns = queue[len(queue) - 1].deadline_ns - queue[len(queue) - 1].arrival_ns
    larger = [other for other in queue.spec.batch_sizes if size < other <= queue.most_rows]
    return sum(share.predict(now_ns, queue.model, other) <= budget_ns for other in larger)


def _survivors(queue: ModelQueue, end_ns: int) -> int:
    return sum(request.deadline_ns >= end_ns for request in queue)


class ScannedDemand(Demand):
    """All models are looked at for the one with the highest priority; loads and demand are added up anew."""

    def __init__(self, grace_ns: int) -> None:
        super().__init__(grace_ns)
        self.requests: dict[int, Request] = {}

    def add(self, request: Request, until_ns: int) -> None:
        super().add(request, until_ns)
        self.requests[request.id] = request

    def remove(self, request_id: int) -> None:
        super().remove(request_id)
        self.requests.pop(request_id, None)

    def _allocate(self, model: str, holders: Holders) -> None:
        super()._allocate(model, holders)
        demand_ns = sum(one.cost_ns for one in self.requests.values() if one.model == model)
        hosts = holders.of.get(model, {})
        parts = self._parts.get(model, {})
        assert demand_ns == self._total.get(model, 0)
        assert not demand_ns or not hosts or sum(parts.values()) == demand_ns
        capacity_ns = round(CAPACITY_PART * self._budget_ns.get(model, 0))
        served_ns = sum(
            parts[share] * capacity_ns // max(1, sum(one.get(share, 0) for one in self._parts.values()))
            for share in parts
        )
        if demand_ns:
            assert self._priority[model] == demand_ns - served_ns

    def neediest(self, share: Share, specs: Mapping[str, ModelSpec]) -> str | None:
        ranked = sorted((-priority, model) for model, priority in self._priority.items() if priority > 0)
        return next((model for _, model in ranked if share.lacks(model)), None)


class Scan(Clockwork):
    """The scheduler with nothing remembered between two looks, looking at every share each time."""

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self.demand = ScannedDemand(settings.action_grace_ns)

    def plan(self, now_ns: int, cluster: Cluster) -> Plan:
        for share in cluster.shares():
            self.rankings.of.setdefault(share, (ScannedQueue(self), Ranking(_nothing)))
            cluster.changes.share(share)
        return super().plan(now_ns, cluster)


def _nothing(now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
    return None


class Desk:
    """A scheduler, its cluster, and devices that end every action in some part of its expected time."""

    def __init__(self, kind: type[Clockwork], models: int, shares: int, pages: int, admission: bool) -> None:
        self.settings = ControllerSettings(admission=admission, preload=False)
        self.scheduler = kind(self.settings)
        self.cluster = Cluster(10)
        self.actions = Actions("controller/0#1", self.cluster, ms(250))
        self.said: list[Any] = []
        specs = [
            a_spec(f"m{number}", batch_sizes=SIZES, weights_bytes=(1 + number % 3) * PAGE_BYTES)
            for number in range(models)
        ]
        self.specs = {spec.key: spec for spec in specs}
        self.cluster.specs = self.specs
        reports = tuple(a_report(spec, exec_ms=1 + number % 4, per_row_ms=0.4) for number, spec in enumerate(specs))
        resident, room = [], pages
        for key, spec in self.specs.items():
            if spec.pages <= room:
                resident.append(key)
                room -= spec.pages
        for number in range(shares):
            worker = self.cluster.workers[f"w{number}"] = Worker(f"w{number}", True)
            self.cluster.register(worker, Register((Told(0, "d", pages, tuple(resident)),), reports))
        self.asked = 0

    def ask(self, now_ns: int, model: int, budget_ms: float) -> None:
        self.asked += 1
        spec = list(self.specs.values())[model % len(self.specs)]
        request = Request(
            self.asked, "s", self.asked, spec, spec.key, 1, "f", self.asked, now_ns, now_ns + ms(budget_ms), False
        )
        refusal = self.scheduler.add(now_ns, request, self.cluster)
        self.said.append(("ask", refusal and (refusal.request.id, refusal.retry_after_ns)))

    def end_one(self, now_ns: int, choice: int) -> None:
        """The oldest action of some lane ends now."""
        lanes = [lane for share in self.cluster.shares() for lane in (share.exec, share.load) if lane.pending]
        if not lanes:
            return
        action = next(iter(lanes[choice % len(lanes)].pending.values()))
        share = action.share
        (share.exec if action.kind == "infer" else share.load).ended(action, now_ns)
        self.cluster.changes.share(share)
        if action.kind == "load":
            share.loaded(action.model, ok=True)

    def plan(self, now_ns: int) -> None:
        while True:
            plan = self.scheduler.plan(now_ns, self.cluster)
            self.said.append(
                (
                    [(b.share.index, b.batch_size, [one.id for one in b.requests], b.start_ns) for b in plan.start],
                    [(share.index, model) for share, model in (*plan.load, *plan.unload)],
                    sorted(one.request.id for one in plan.refuse),
                )
            )
            list(self.actions.carry_out(now_ns, plan))
            self.scheduler.check()
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
def sweeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not count any more is swept away at every chance, as it is now and then in a long run."""
    monkeypatch.setattr(strategies, "SWEEP_FROM", -4)
    monkeypatch.setattr(demand, "SWEEP_FROM", -4)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.large_base_example, HealthCheck.function_scoped_fixture],
)
@given(steps, st.sampled_from([1, 2, 12]), st.integers(1, 3), st.integers(3, 12), st.booleans())
def test_it_decides_as_the_literal_scan(
    steps: list[Any], models: int, shares: int, pages: int, admission: bool
) -> None:
    desks = [Desk(kind, models, shares, pages, admission) for kind in (Clockwork, Scan)]
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
        assert desks[0].said == desks[1].said
