"""A request is refused on arrival only behind more work of its own queue than all shares could do in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.desk import NOW, Desk, SchedulerDesk
from harness.builders import a_report, a_spec
from horologe_common.clock import ms
from horologe_controller.core.actions import Actions
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.scheduling.decisions import Reason, Refusal
from horologe_controller.schedulers import create_scheduler
from horologe_controller.settings import ControllerSettings


class AdmissionDesk(SchedulerDesk):
    def __init__(self, *workers: tuple[str, ...], admission: bool = True) -> None:
        settings = ControllerSettings(admission=admission)
        super().__init__(
            create_scheduler(settings, Cluster()), map(a_spec, sorted({name for names in workers for name in names}))
        )
        for number, names in enumerate(workers):
            self.register(number, [f"{name}/1" for name in names])

    def ask(self, name: str, budget_ms: float) -> Refusal | None:
        refusals = self.ask_together(name, budget_ms)
        return refusals[0] if refusals else None

    def ask_together(self, name: str, *budgets_ms: float) -> list[Refusal]:
        """Send requests for one queue in one turn."""
        spec = self.cluster.specs[f"{name}/1"]
        refusals = self.add(NOW, *(self.a_request(NOW, spec, budget_ms) for budget_ms in budgets_ms))
        self.scheduler.check()
        return refusals

    def fill(self, name: str, budget_ms: float = 100) -> None:
        """Send 16 requests, which take 9.5 ms as a batch; some may be refused."""
        for _ in range(16):
            self.ask(name, budget_ms)


def test_work_for_other_models_refuses_nothing() -> None:
    desk = AdmissionDesk(("a", "b"))
    desk.fill("a", 8)
    assert desk.ask("a", 8) is not None
    assert desk.ask("b", 8) is None


def test_the_work_ahead_counts_in_full_batches_on_all_shares() -> None:
    """16 requests take 9.5 ms in a batch: two shares are done with 32 of them after as long."""
    one, two = AdmissionDesk(("a",)), AdmissionDesk(("a",), ("a",))
    admitted = [sum(desk.ask("a", 40) is None for _ in range(200)) for desk in (one, two)]
    assert 44 <= admitted[0] <= 56
    assert 1.9 * admitted[0] <= admitted[1] <= 2.1 * admitted[0]


def test_what_a_share_executes_is_ahead() -> None:
    idle, busy = Desk("horologe", [("m",)]), Desk("horologe", [("m",)])
    for _ in range(16):
        busy.ask(NOW, 40)
    assert busy.plan(NOW)[0]
    admitted = [sum(desk.ask(NOW, 40).queued for _ in range(200)) for desk in (idle, busy)]
    assert admitted[1] <= 0.85 * admitted[0]


@pytest.mark.parametrize("alone_ms", [1.4, 2, 5])
@pytest.mark.parametrize("shares", [1, 2, 5])
def test_what_shares_execute_is_ahead_also_of_requests_that_take_little_time_alone(
    alone_ms: float, shares: int
) -> None:
    """Batches of 16 take 16 ms. One is in flight on each share: of 40 ms, 24 are left."""
    desk = SchedulerDesk(create_scheduler(ControllerSettings(preload=False), Cluster()), [spec := a_spec()])
    reports = [a_report(spec, exec_ms=alone_ms, per_row_ms=(16 - alone_ms) / 15)]
    for number in range(shares):
        desk.register(number, [spec.key], reports)
    desk.add(NOW, *(desk.a_request(NOW, spec, 40) for _ in range(16 * shares)))
    plan = desk.scheduler.plan(NOW)
    assert [batch.batch_size for batch in plan.start] == [16] * shares
    Actions("controller/0#1", desk.cluster).carry_out(NOW, plan, [])
    admitted = sum(not desk.add(NOW, desk.a_request(NOW, spec, 40)) for _ in range(50 * shares))
    assert 16 * shares <= admitted <= 24 * shares


def test_what_a_share_executes_does_not_split_a_batch() -> None:
    """Clients that ask together are admitted together, as long as one batch holds them."""
    busy = Desk("horologe", [("m",)])
    for _ in range(16):
        busy.ask(NOW, 40)
    assert busy.plan(NOW)[0]
    admitted = sum(busy.ask(NOW, 12).queued for _ in range(40))
    assert 16 <= admitted < 20


def test_requests_with_later_deadlines_are_not_ahead() -> None:
    desk = AdmissionDesk(("a",))
    while desk.ask("a", 50) is None:
        pass
    assert desk.ask("a", 10) is None


def test_without_admission_only_the_request_itself_counts() -> None:
    desk = AdmissionDesk(("a",), admission=False)
    assert [desk.ask("a", 20) for _ in range(200)] == [None] * 200
    assert desk.ask("a", 0.1) is not None


def test_requests_of_a_turn_are_admitted_together_if_the_last_of_them_fits() -> None:
    desk = AdmissionDesk(("a",))
    assert desk.ask_together("a", *[100] * 16) == []
    assert len(desk.scheduler) == 16


@given(st.lists(st.integers(1, 12), min_size=2, max_size=24))
def test_a_turn_admits_at_least_the_requests_that_are_admitted_one_by_one(budgets_ms: list[int]) -> None:
    together, alone = AdmissionDesk(("a",)), AdmissionDesk(("a",))
    refused = {refusal.request.id for refusal in together.ask_together("a", *budgets_ms)}
    one_by_one = [alone.ask("a", budget_ms) for budget_ms in budgets_ms]
    assert refused <= {refusal.request.id for refusal in one_by_one if refusal is not None}


def test_a_request_without_a_chance_does_not_keep_the_others_of_its_turn_out() -> None:
    desk = AdmissionDesk(("a",))
    refusals = desk.ask_together("a", 100, 1, 100)
    assert [refusal.request.id for refusal in refusals] == [2]
    assert len(desk.scheduler) == 2


def test_requests_that_come_too_late_for_a_full_batch_are_not_ahead() -> None:
    """A full batch takes 9.5 ms: those due within 9 ms will be given up or run in a smaller one."""
    desk = AdmissionDesk(("a",))
    admitted = sum(desk.ask("a", 9) is None for _ in range(100))
    assert admitted >= 1
    assert [desk.ask("a", 10) for _ in range(12)] == [None] * 12


def test_only_refused_requests_of_a_turn_count_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, lost = AdmissionDesk(("a",)), []
    policy = desk.scheduler.policy
    monkeypatch.setattr(policy, "on_request_late", lambda now_ns, request: lost.append(request.id))
    refusals = desk.ask_together("a", *[10] * 40)
    assert 0 < len(refusals) < 40
    assert lost == [refusal.request.id for refusal in refusals]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(5, 60)), max_size=80),
    st.integers(10, 60),
    st.integers(1, 2),
    st.data(),
)
def test_while_a_refusal_lasts_the_same_request_is_refused_again_unless_something_changes(
    earlier: list[tuple[int, int]], budget_ms: int, shares: int, data: st.DataObject
) -> None:
    desk = Desk("horologe", [("m",)] * shares)
    for at_ms, earlier_ms in sorted(earlier):
        desk.ask(NOW + ms(at_ms), earlier_ms)
        desk.plan(NOW + ms(at_ms))
    now_ns, spec = NOW + ms(30), desk.specs["m"]
    while not (refusals := desk.add(now_ns, desk.a_request(now_ns, spec, budget_ms))):
        pass
    (refusal,) = refusals
    assert (refusal.reason, refusal.place_ns > 0) == (Reason.WORK_AHEAD, True)
    assert refusal.refuses_ns <= refusal.retry_after_ns

    def is_refused(after_ns: int) -> bool:
        request, scheduler = desk.a_request(now_ns + after_ns, spec, budget_ms), desk.scheduler
        exec_ns = scheduler.policy.shortest_exec_ns(request.arrival_ns, request)
        queue, counted = scheduler.queues.find_queue(request), True
        return bool(
            scheduler.admission.refuse_on_arrival(request.arrival_ns, (request,), exec_ns, queue, counted, False)
        )

    if refusal.refuses_ns > 0:
        assert is_refused(refusal.refuses_ns - 1)
        assert is_refused(data.draw(st.integers(0, refusal.refuses_ns - 1)))


def test_a_place_becomes_free_when_the_work_of_a_request_is_done() -> None:
    """Two shares do 16 requests in 9.5 ms each; half is added to what is ahead of the last full batches."""
    desk = AdmissionDesk(("a",), ("a",))
    while (refusal := desk.ask("a", 40)) is None:
        pass
    assert refusal.place_ns == pytest.approx(1.5 * ms(9.5) / 16 / 2, rel=0.01)
    assert 0 < refusal.refuses_ns <= refusal.place_ns


def test_a_request_that_takes_too_long_alone_is_refused_again_for_the_same_reason() -> None:
    desk = AdmissionDesk(("a",), ("a",))
    refusal = desk.ask("a", 1)
    assert refusal is not None
    assert (refusal.reason, refusal.refuses_ns, refusal.place_ns) == (Reason.EXECUTION_TOO_LONG, ms(10), ms(1))
