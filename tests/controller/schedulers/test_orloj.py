"""ORLOJ as a policy: the requests that it runs and refuses, with and without distributions of execution times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, SchedulerDesk
from harness.builders import a_spec
from horologe_common.clock import ms, s
from horologe_common.distribution import Distribution
from horologe_common.recording import snapshot
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.core.scheduling.planner import Planner
from horologe_controller.schedulers.orloj.orloj import Orloj, batch_quantile_ns
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.decisions import Batch, Refusal

BASE_NS = ms(4)
SHORT, LONG = Distribution.from_counts([ms(5), ms(7)], [1]), Distribution.from_counts([ms(20), ms(40)], [1])


class OrlojDesk(SchedulerDesk):
    """A planner with the policy, and one share with one model and its distributions."""

    def __init__(self, *, known: bool = True, **settings: Any) -> None:
        self.spec = a_spec(batch_sizes=(1, 2, 4))
        self.settings = ControllerSettings(scheduler="orloj", **settings)
        self.policy = Orloj(self.settings, Cluster())
        super().__init__(Planner(self.policy, self.settings), [self.spec])
        self.register(0, [self.spec.key])
        if known:
            self.learn(SHORT, LONG)

    def learn(self, short: Distribution, long: Distribution) -> None:
        parts = [SoloDistribution("short", 0, short), SoloDistribution("long", 0, long)]
        self.cluster.distributions[self.spec.key] = RuntimeDistributions(BASE_NS, parts)

    def ask(self, application: str, left_ms: float, now_ns: int = NOW, rows: int = 1) -> tuple[Request, Refusal | None]:
        request = self.a_request(now_ns, self.spec, left_ms, rows, application=application)
        refusals = self.add(now_ns, request)
        return request, refusals[0] if refusals else None

    def plan(self, now_ns: int = NOW) -> tuple[list[Batch], list[Refusal]]:
        plan = self.scheduler.plan(now_ns)
        self.scheduler.check()
        return plan.start, plan.refuse

    def first(self, now_ns: int = NOW) -> list[Request]:
        return self.plan(now_ns)[0][0].requests


def test_the_expected_duration_is_a_high_quantile_of_the_batch() -> None:
    desk = OrlojDesk()
    asked = [desk.ask("short", 200)[0], desk.ask("long", 200)[0]]
    ((batch, *_), _) = desk.plan()
    assert batch.requests == asked
    assert batch.batch_size == 2
    assert batch.expected_ns == pytest.approx(ms(4 + 2 * 34), rel=0.02)  # nine in ten long ones add 34 ms at most
    assert batch.start_ns == NOW
    assert NOW < batch.latest_ns < asked[0].deadline_ns - ms(40)


def test_a_likely_failure_gives_way_to_a_likely_success() -> None:
    """Both requests are viable. The long one has the earlier deadline, and a chance of one half."""
    desk = OrlojDesk(policy={"order": "latest"})
    desk.ask("long", 31)
    sure, _ = desk.ask("short", 40)
    assert desk.first() == [sure]


def test_a_request_with_less_left_than_it_takes_on_average_is_refused() -> None:
    desk = OrlojDesk()
    _, at_once = desk.ask("long", 29)
    assert at_once is not None
    assert at_once.retry_after_ns == pytest.approx(ms(1), abs=ms(0.01))
    assert desk.ask("short", 29)[1] is None
    desk.first()
    waits, refusal = desk.ask("long", 35)
    assert refusal is None
    late_ns = NOW + ms(5.1)
    for share in desk.cluster.shares():
        desk.cluster.changes.mark_share(share)
    _, refused = desk.plan(late_ns)
    assert [one.request for one in refused] == [waits]


def test_the_order_of_sizes_is_a_setting() -> None:
    for order, size in (("earliest", 1), ("latest", 4)):
        desk = OrlojDesk(policy={"order": order})
        desk.ask("short", 9)
        for _ in range(4):
            desk.ask("short", 300)
        assert len(desk.first()) == size


def test_new_distributions_apply_to_queued_requests() -> None:
    desk = OrlojDesk()
    for number in range(4):
        desk.ask("short", 60 + number)
    ((batch, *_), _) = desk.plan()
    assert batch.batch_size == 2  # the others may be long ones: about 4 + 4 * 24 ms
    for number in range(2):
        desk.ask("short", 60 + number)
    desk.learn(SHORT, SHORT)
    for share in desk.cluster.shares():
        share.exec.pending.clear()
        desk.cluster.changes.mark_share(share)
    ((batch, *_), _) = desk.plan()
    assert batch.batch_size == 4


@pytest.mark.parametrize("order", ["earliest", "latest"])
def test_without_distributions_deadlines_decide(order: str) -> None:
    desk = OrlojDesk(known=False, policy={"order": order})
    asked = [desk.ask("", 10 + number)[0] for number in (5, 1, 3, 2, 4)]
    assert desk.first() == sorted(asked, key=lambda one: one.deadline_ns)[:4]


@given(
    st.lists(st.tuples(st.sampled_from(["short", "long"]), st.floats(1, 300), st.integers(1, 2)), max_size=25),
    st.sampled_from(["earliest", "latest"]),
)
def test_no_request_starts_late_and_all_leave_the_queue(told: list[tuple[str, float, int]], order: str) -> None:
    desk = OrlojDesk(policy={"order": order})
    open_ids = {request.id for request, refusal in (desk.ask(*one[:2], rows=one[2]) for one in told) if not refusal}
    now_ns = NOW
    while open_ids and now_ns < NOW + s(1):
        (share,) = desk.cluster.shares()
        desk.cluster.changes.mark_share(share)
        started, refused = desk.plan(now_ns)
        for batch in started:
            assert sum(one.rows for one in batch.requests) <= batch.batch_size
            assert batch.start_ns <= batch.latest_ns
            for one in batch.requests:
                assert batch.latest_ns <= one.deadline_ns
                open_ids.remove(one.id)
        open_ids -= {refusal.request.id for refusal in refused}
        now_ns += ms(3)
    assert not open_ids
    assert not desk.policy._scored


def test_the_state_survives_a_snapshot() -> None:
    desk = OrlojDesk()
    for number in range(9):
        desk.ask("short" if number % 2 else "long", 60 + number)
    desk.plan()
    scheduler, cluster = snapshot.restore(snapshot.snapshot((desk.scheduler, desk.cluster)))  # type: ignore[arg-type]
    for one in (desk.cluster, cluster):
        for share in one.shares():
            share.exec.pending.clear()
            one.changes.mark_share(share)
    now_ns = NOW + ms(1)
    again = scheduler.plan(now_ns)
    scheduler.check()
    ours, _ = desk.plan(now_ns)
    assert [[one.id for one in batch.requests] for batch in again.start] == [
        [one.id for one in batch.requests] for batch in ours
    ]


def test_the_expected_duration_follows_the_longest_row() -> None:
    desk = OrlojDesk()
    known = desk.cluster.distributions[desk.spec.key]
    requests = [desk.ask(one, 500)[0] for one in ("long", "long", "short")]
    wanted = ms(4) + 4 * (ms(16) + ms(20) * 0.9**0.5)
    assert batch_quantile_ns(known, requests, 4) == pytest.approx(wanted, rel=0.01)
