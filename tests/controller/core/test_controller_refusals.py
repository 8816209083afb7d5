"""Refusals of the controller: before any work, with the missing time, counted by reason."""

from __future__ import annotations

import msgspec
import pytest

from controller.controller_builders import (
    FRONTEND,
    OTHER,
    SELECTOR,
    WORKER,
    a_controller,
    a_new_controller,
    finish,
    join,
    register,
    state,
    submit,
)
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Admit, Infer, Load, ModelReport, Models, Outcome, RefusedAgain, Submit
from horologe_controller.core.scheduling.decisions import Reason


def test_a_hopeless_request_is_refused_at_once_with_the_missing_time(scheduler: str) -> None:
    controller = a_controller(scheduler)
    submit(controller, 1, budget_ms=1)
    (outcome,) = sent(controller, Outcome, SELECTOR)
    assert (outcome.id, outcome.status, outcome.retry_after_ns) == (1, Status.REFUSED, ms(1))
    assert outcome.reason.endswith("past its deadline: it would end 1 ms late")
    assert not sent(controller, Infer)


@pytest.mark.parametrize(("late_ns", "text"), [(1, "0.001 ms"), (49_000, "0.049 ms"), (1_698_250, "1.699 ms")])
def test_a_refusal_names_a_missing_time_above_zero(late_ns: int, text: str) -> None:
    controller = a_controller()
    submit(controller, 1, budget_ms=(ms(2) - late_ns) / 1e6)
    (outcome,) = sent(controller, Outcome, SELECTOR)
    assert outcome.reason.endswith(f": it would end {text} late")


def test_refusals_are_counted_by_a_code_that_begins_at_zero() -> None:
    controller = a_controller(max_queued=1, in_flight=1)
    controller.refresh_stats()
    refused = {key[3]: 0.0 for key in controller.stats.values if key[0] == "horologe_refused_total"}
    assert {"execution_too_long", "work_ahead", "queue_full"} <= refused.keys()
    submit(controller, 1, budget_ms=1)
    for number in range(2, 7):
        submit(controller, number, now_ns=ms(1))
    counts = {key[3]: value for key, value in controller.stats.values.items() if key[0] == "horologe_refused_total"}
    assert counts.keys() == refused.keys()
    reasons = {outcome.id: outcome.reason for outcome in sent(controller, Outcome)}
    assert counts["queue_full"] == len(reasons) - 1 >= 1
    assert "controller.max_queued" in reasons[6]
    assert sum(counts.values()) == len(reasons)


def test_a_request_that_a_lost_worker_may_have_run_never_ends_as_refused() -> None:
    controller = a_controller()
    submit(controller, 1, budget_ms=50)
    assert sent(controller, Infer)
    controller.handle(ms(3), WORKER, PeerDisconnected(WORKER), ())
    controller.tick(controller.wakeup_ns() or ms(50))
    controller.tick(ms(60))
    (outcome,) = sent(controller, Outcome)
    assert (outcome.status, "its worker disconnected" in outcome.reason) == (Status.LOST, True)
    assert not any(value for key, value in controller.stats.values.items() if key[0] == "horologe_refused_total")


def test_under_overload_the_excess_is_refused_on_arrival(scheduler: str) -> None:
    """Ten of them take 100 ms; half is added to what is ahead of the last."""
    controller = a_controller(scheduler, reports=[a_report(exec_ms=10, per_row_ms=10)], admission=True)
    submit(controller, *range(1, 41))
    refused = sent(controller, Outcome)
    assert {outcome.status for outcome in refused} == {Status.REFUSED}
    assert 30 <= len(refused) <= 34
    assert controller.pending() == 40 - len(refused)


def test_unknown_models_and_too_many_rows_are_answered() -> None:
    controller = a_controller()
    submit(controller, 1, model="nope/1")
    submit(controller, 2, rows=17)
    assert [one.status for one in sent(controller, Outcome)] == [Status.UNKNOWN_MODEL, Status.INVALID_INPUT]


def test_without_workers_requests_wait_until_they_cannot(scheduler: str) -> None:
    controller = a_controller(scheduler)
    controller.handle(0, WORKER, PeerDisconnected(WORKER), ())
    states = sent(controller, Models, FRONTEND)[-1].models
    assert [state.state for state in states] == ["LOADING"]
    submit(controller, 1, budget_ms=50)
    assert not sent(controller, Outcome)
    wake_ns = controller.wakeup_ns()
    assert wake_ns is not None
    assert ms(47) <= wake_ns <= ms(50)
    controller.tick(wake_ns)
    (outcome,) = sent(controller, Outcome)
    assert (outcome.status, outcome.retry_after_ns) == (Status.REFUSED, 0), "a later deadline might not help"
    assert outcome.reason == Reason.NO_WORKER.sentence
    counts = {key[3]: value for key, value in controller.stats.values.items() if key[0] == "horologe_refused_total"}
    assert {code for code, value in counts.items() if value} == {Reason.NO_WORKER}


def test_a_model_that_does_not_load_is_withdrawn_with_its_reason() -> None:
    controller = a_controller(reports=[a_report(), a_report(a_spec("bad"))], preload=False)
    submit(controller, 1, model="bad/1")
    (load,) = sent(controller, Load, WORKER)
    finish(controller, load, 1, Status.FAILED, reason="corrupt file")
    (outcome,) = sent(controller, Outcome)
    assert outcome.status == Status.FAILED
    assert "corrupt file" in outcome.reason
    controller.check()


@pytest.mark.parametrize("retired", [False, True])
def test_a_model_that_was_not_loaded_is_served_again_when_its_folder_returns(retired: bool) -> None:
    """A LOAD of a model whose folder is gone fails. When it returns, its content may be the same."""
    good, bad = a_report(), a_report(a_spec("bad"))
    controller = a_controller(reports=[good, bad], preload=False)
    submit(controller, 1, model="bad/1")
    (load,) = sent(controller, Load, WORKER)
    finish(controller, load, 1, Status.FAILED, reason="no such folder")
    assert state(controller, "bad")[0] == "UNAVAILABLE"
    gone = [msgspec.structs.replace(bad, retired=True, reason="not in the repository any more")] if retired else []
    register(controller, good, *gone, pages=64, scans=(), now_ns=2)
    register(controller, good, bad, pages=64, scans=(), now_ns=3)
    assert state(controller, "bad") == ("READY", "")


def test_requests_that_a_frontend_refuses_again_are_counted_as_refusals_of_the_controller() -> None:
    reports = [a_report(exec_ms=10, per_row_ms=10)]
    controller = a_controller("horologe", reports=reports, admission=True)
    submit(controller, *range(1, 41))
    refused = [outcome for outcome in sent(controller, Outcome) if outcome.place_ns]
    assert refused
    controller.handle(ms(1), FRONTEND, RefusedAgain((("sum/1", 5), ("gone/1", 3))), ())
    controller.tick(ms(1))
    assert controller.stats.values["horologe_refused_total", "sum", "1", "work_ahead"] == len(refused) + 5
    traffic = controller.scheduler.policy.traffic
    assert traffic is not None
    assert traffic.of_model("sum/1").asked.at(ms(1)) == pytest.approx(45, rel=0.01)
    assert not controller.stats.values.get(("horologe_refused_total", "gone", "1", "work_ahead"))


def test_a_request_that_is_too_short_is_no_loss_however_often_it_is_refused() -> None:
    controller = a_controller("horologe")
    submit(controller, 1, budget_ms=1)
    assert [outcome.place_ns > 0 for outcome in sent(controller, Outcome)] == [True]
    controller.handle(ms(1), FRONTEND, RefusedAgain((("sum/1", 50),)), ())
    traffic = controller.scheduler.policy.traffic
    assert traffic is not None
    assert traffic.of_model("sum/1").asked.at(ms(1)) == pytest.approx(51, rel=0.01)
    assert (traffic.lost.at(ms(1)), traffic.price.rate, traffic.served) == (0, 0, 1)


@pytest.mark.interpreted
def test_a_fault_of_the_plan_loses_no_request_that_was_dequeued_before(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = a_controller()
    join(controller, OTHER, a_report(a_spec("other")))

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(controller.scheduler.loads, "plan", fail)
    controller.scheduler.loads.models_missing = True
    for number, model in ((1, "sum/1"), (2, "other/1")):
        controller.handle(0, SELECTOR, Submit(number, model, ms(100), 1, FRONTEND, number), ())
    with pytest.raises(RuntimeError, match="a fault"):
        controller.tick(0)
    assert {infer.model for infer in sent(controller, Infer)} == {"sum/1", "other/1"}
    controller.check()


def test_a_request_for_a_model_that_is_unloaded_while_it_loads_is_answered_at_once() -> None:
    controller = a_new_controller()
    register(controller, ModelReport(msgspec.structs.replace(a_spec(), outputs=()), None, loading="it is read"))
    submit(controller, 1)
    assert not sent(controller, Outcome)
    controller.handle(ms(1), FRONTEND, Admit(2, "sum", "", False), ())
    controller.tick(ms(1))
    (outcome,) = sent(controller, Outcome)
    assert (outcome.status, outcome.reason) == (Status.UNKNOWN_MODEL, "model 'sum/1': not served now")


def test_only_refusals_on_arrival_say_when_the_next_place_is_free() -> None:
    controller = a_controller(max_queued=1, in_flight=1)
    for number in range(1, 7):
        submit(controller, number)
    outcomes = sent(controller, Outcome)
    assert outcomes
    assert {(outcome.refuses_ns, outcome.place_ns) for outcome in outcomes} == {(0, 0)}
