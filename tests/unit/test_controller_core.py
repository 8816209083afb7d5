"""The controller: windows, refusals before work, planning again, one end per request."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.distribution import Distribution
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    Describe,
    Description,
    Dispatch,
    Drain,
    Infer,
    Load,
    Models,
    Outcome,
    Ping,
    Pong,
    Register,
    Result,
    RowStatus,
    Share,
    Submit,
    Unload,
)
from horologe_controller.core.controller import Controller
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.schedulers import SCHEDULERS
from horologe_controller.settings import ControllerSettings

FRONTEND, SELECTOR, WORKER = "frontend/0#1", "selector/0#1", "worker/0#1"


@pytest.fixture(params=[name for name in SCHEDULERS if name not in ("clipper", "deferred", "fifo")])
def scheduler(request: pytest.FixtureRequest) -> str:
    """Return each policy that refuses late requests and never lets a device wait."""
    return str(request.param)


def a_controller(scheduler: str = "edf", reports: Any = None, pages: int = 64, **settings: Any) -> Controller:
    """Return a controller with one worker of one share, on which all models are loaded."""
    controller = Controller(
        "controller/0#1", ControllerSettings(scheduler=scheduler, margin_ns=0, workers=1, **settings), "host"
    )
    for address in (FRONTEND, SELECTOR):
        controller.handle(0, address, PeerConnected(address, "host"), ())
    join(controller, WORKER, reports, pages)
    for _ in range(len(reports or [1])):
        for load in sent(controller, Load, WORKER):
            controller.handle(0, WORKER, Result(load.action_id, Status.OK, 0, ms(5)), ())
            controller.tick(0)
    return controller


def join(controller: Controller, worker: str, reports: Any = None, pages: int = 64, now_ns: int = 0) -> None:
    controller.handle(now_ns, worker, PeerConnected(worker, "host"), ())
    controller.handle(now_ns, worker, Register((Share(0, "cpu", pages),), tuple(reports or [a_report()])), ())
    controller.tick(now_ns)


def submit(controller: Controller, *numbers: int, now_ns: int = 0, budget_ms: float = 100, **fields: Any) -> None:
    for number in numbers:
        message = Submit(number, fields.get("model", "sum/1"), ms(budget_ms), fields.get("rows", 1), FRONTEND, number)
        controller.handle(now_ns, SELECTOR, message, ())
    controller.tick(now_ns)
    controller.check()


def finish(controller: Controller, infer: Infer, now_ns: int, status: Status = Status.OK, rows: Any = ()) -> None:
    begin_ns = now_ns - infer.expected_ns
    controller.handle(now_ns, WORKER, Result(infer.action_id, status, begin_ns, now_ns, rows=rows), ())
    controller.tick(now_ns)
    controller.check()


def test_a_request_becomes_an_infer_with_a_window_and_a_dispatch(scheduler: str) -> None:
    controller = a_controller(scheduler)
    submit(controller, 1, now_ns=ms(20))
    (infer,) = sent(controller, Infer, WORKER)
    (dispatch,) = sent(controller, Dispatch, FRONTEND)
    assert (infer.model, infer.batch_size, infer.expected_ns) == ("sum/1", 1, ms(2))
    assert (infer.earliest_ns, infer.latest_ns) == (ms(20), ms(20) + ms(100) - ms(2))
    assert (dispatch.action_id, dispatch.worker, dispatch.input_ids) == (infer.action_id, WORKER, (1,))
    finish(controller, infer, ms(23))
    assert controller.pending() == 0
    assert not sent(controller, Outcome)


def test_queued_requests_are_batched(scheduler: str) -> None:
    controller = a_controller(scheduler, in_flight=1)
    submit(controller, *range(1, 18))
    (first,) = sent(controller, Infer)
    submit(controller, *range(18, 22), now_ns=ms(1))
    finish(controller, first, ms(3))
    sizes = [len(first.rows)] + [len(infer.rows) for infer in sent(controller, Infer)]
    assert sizes == [16, 4]


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
    assert (outcome.status, "worker failed" in outcome.reason) == (Status.LOST, True)
    assert not any(value for key, value in controller.stats.values.items() if key[0] == "horologe_refused_total")


def test_under_overload_the_excess_is_refused_on_arrival(scheduler: str) -> None:
    controller = a_controller(scheduler, reports=[a_report(exec_ms=10, per_row_ms=10)], admission=True)
    submit(controller, *range(1, 41))
    refused = sent(controller, Outcome)
    assert {outcome.status for outcome in refused} == {Status.REFUSED}
    assert 28 <= len(refused) <= 32
    assert controller.pending() == 40 - len(refused)


def test_unknown_models_and_too_many_rows_are_answered() -> None:
    controller = a_controller()
    submit(controller, 1, model="nope/1")
    submit(controller, 2, rows=17)
    assert [one.status for one in sent(controller, Outcome)] == [Status.UNKNOWN_MODEL, Status.INVALID_INPUT]


def test_load_comes_before_infer_and_lru_goes_first(scheduler: str) -> None:
    reports = [a_report(a_spec(name)) for name in ("a", "b", "c")]
    controller = a_controller(scheduler, reports, pages=2)
    submit(controller, 1, model="a/1")
    finish(controller, sent(controller, Infer)[0], ms(10))
    submit(controller, 2, model="c/1", now_ns=ms(20))
    assert not sent(controller, Infer)
    assert [unload.model for unload in sent(controller, Unload)] == ["b/1"]
    (load,) = sent(controller, Load)
    assert load.model == "c/1"
    controller.handle(ms(26), WORKER, Result(load.action_id, Status.OK, ms(20), ms(26)), ())
    controller.tick(ms(26))
    assert [infer.model for infer in sent(controller, Infer)] == ["c/1"]
    controller.check()


@pytest.mark.parametrize("status", [Status.TOO_LATE, Status.MISSING_INPUT])
def test_a_batch_that_did_not_run_is_planned_again(status: Status) -> None:
    controller = a_controller()
    submit(controller, 1, 2)
    (infer,) = sent(controller, Infer)
    rows = (RowStatus(0, 0, status),) if status == Status.MISSING_INPUT else ()
    finish(controller, infer, ms(5), Status.OK if rows else status, rows)
    again = [row.submit_id for infer in sent(controller, Infer) for row in infer.rows]
    assert again == ([1] if rows else [1, 2])
    assert not sent(controller, Outcome)


@pytest.mark.parametrize("left", [(), (a_spec(version="2"),)], ids=["nothing", "another version"])
def test_a_request_that_its_worker_refuses_for_a_model_withdrawn_ends_as_those_that_wait(left: Any) -> None:
    controller = a_controller("horologe")
    for number in (1, 2, 3):
        submit(controller, number)
    (infer,) = sent(controller, Infer)
    controller.handle(ms(1), WORKER, Register((Share(0, "cpu", 64),), tuple(map(a_report, left))), ())
    controller.handle(ms(1), WORKER, Result(infer.action_id, Status.REFUSED, ms(1), ms(1)), ())
    controller.tick(ms(1))
    outcomes = sent(controller, Outcome)
    assert sorted(outcome.id for outcome in outcomes) == [1, 2, 3]
    assert {(outcome.status, outcome.reason) for outcome in outcomes} == {
        (Status.UNKNOWN_MODEL, "model 'sum/1': not served any more")
    }
    assert controller.pending() == 0
    controller.check()


def test_a_request_refused_for_a_model_withdrawn_runs_where_it_is_still_served(scheduler: str) -> None:
    controller = a_controller(scheduler)
    submit(controller, 1)
    (infer,) = sent(controller, Infer)
    join(controller, "worker/1#1", now_ns=ms(1))
    controller.handle(ms(1), WORKER, Register((Share(0, "cpu", 64),), ()), ())
    finish(controller, infer, ms(2), Status.REFUSED)
    for load in sent(controller, Load, "worker/1"):
        controller.handle(ms(7), "worker/1#1", Result(load.action_id, Status.OK, ms(2), ms(7)), ())
    controller.tick(ms(7))
    assert [again.rows for again in sent(controller, Infer, "worker/1")] == [infer.rows]
    assert not sent(controller, Outcome)


def test_a_draining_worker_is_given_nothing_more(scheduler: str) -> None:
    """A draining worker refuses at once, so its lanes look idle: a request would use up its three attempts there."""
    controller = a_controller(scheduler)
    join(controller, "worker/1#1")
    for load in sent(controller, Load, "worker/1"):
        controller.handle(ms(1), "worker/1#1", Result(load.action_id, Status.OK, 0, ms(1)), ())
    controller.handle(ms(1), WORKER, Drain(), ())
    controller.tick(ms(1))
    assert sent(controller, Drain, WORKER), "the worker may end when its actions have"
    for number in range(1, 5):
        submit(controller, number, now_ns=ms(number))
    assert sent(controller, Infer, "worker/1")
    assert not sent(controller, Infer, WORKER)


def test_a_draining_worker_is_not_asked_to_load_what_another_can() -> None:
    controller = a_controller("horologe", reports=[a_report(a_spec(name)) for name in "abcd"], pages=1)
    join(controller, "worker/1#1", [a_report(a_spec(name)) for name in "abcd"], pages=1)
    for load in sent(controller, Load, "worker/1"):
        controller.handle(ms(1), "worker/1#1", Result(load.action_id, Status.OK, 0, ms(1)), ())
    controller.tick(ms(1))
    submit(controller, 1, now_ns=ms(1), model="c/1")
    (load,) = sent(controller, Load, WORKER)
    controller.handle(ms(2), "worker/1#1", Drain(), ())
    submit(controller, 2, now_ns=ms(2), model="d/1")
    assert not sent(controller, Load, "worker/1")
    controller.handle(ms(3), WORKER, Result(load.action_id, Status.OK, 0, ms(3)), ())
    controller.tick(ms(3))
    (infer,) = sent(controller, Infer, WORKER)
    finish(controller, infer, ms(5))
    assert [load.model for load in sent(controller, Load)] == ["d/1"]


def test_a_request_is_not_planned_for_ever() -> None:
    controller = a_controller()
    submit(controller, 1)
    for attempt in range(3):
        (infer,) = sent(controller, Infer)
        finish(controller, infer, ms(5 + attempt), Status.MISSING_INPUT)
    assert sent(controller, Outcome)[0].status == Status.REFUSED
    assert controller.pending() == 0


def test_the_requests_of_a_dead_worker_go_to_another() -> None:
    controller = a_controller()
    submit(controller, 1)
    (infer,) = sent(controller, Infer)
    join(controller, "worker/1#1", now_ns=ms(1))
    for load in sent(controller, Load, "worker/1"):
        controller.handle(ms(2), "worker/1#1", Result(load.action_id, Status.OK, ms(1), ms(2)), ())
    controller.handle(ms(3), WORKER, PeerDisconnected(WORKER), ())
    controller.tick(ms(3))
    (again,) = sent(controller, Infer, "worker/1#1")
    assert again.rows == infer.rows
    assert sent(controller, Dispatch, FRONTEND)[-1].worker == "worker/1#1"
    controller.check()


def test_without_workers_requests_wait_until_they_cannot() -> None:
    controller = a_controller()
    controller.handle(0, WORKER, PeerDisconnected(WORKER), ())
    states = sent(controller, Models, FRONTEND)[-1].models
    assert [state.state for state in states] == ["LOADING"]
    submit(controller, 1, budget_ms=50)
    assert not sent(controller, Outcome)
    wake_ns = controller.wakeup_ns()
    assert wake_ns is not None
    assert ms(47) <= wake_ns <= ms(50)
    controller.tick(wake_ns)
    assert sent(controller, Outcome)[0].status == Status.REFUSED


def test_a_request_at_a_silent_worker_ends_when_its_submitter_cancels_it() -> None:
    controller = a_controller()
    submit(controller, 1, budget_ms=50)
    controller.tick(ms(100))
    controller.handle(ms(100), SELECTOR, Cancel((1,)), ())
    assert controller.pending() == 0
    controller.check()


def test_a_request_that_hangs_worker_after_worker_is_not_given_to_every_one() -> None:
    controller = a_controller(lookahead_ns=ms(1), action_grace_ns=ms(10))
    for number in range(1, 6):
        join(controller, f"worker/{number}#1")
        for load in sent(controller, Load, f"worker/{number}"):
            controller.handle(0, f"worker/{number}#1", Result(load.action_id, Status.OK, 0, ms(5)), ())
    submit(controller, 1, budget_ms=60_000)
    given = sent(controller, Infer)
    for now_ns in range(ms(100), s(30), s(2)):
        controller.tick(now_ns)
        given += sent(controller, Infer)
        assert len(given) <= 3
    assert len(given) == 3
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.LATE]
    controller.check()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_share_is_not_held_by_a_batch_whose_inputs_do_not_come(cancelled: bool) -> None:
    """The holder may be lost and the window long: the worker receives a Cancel."""
    controller = a_controller("horologe", in_flight=1)
    submit(controller, 1, budget_ms=30_000)
    (infer,) = sent(controller, Infer)
    submit(controller, 2, budget_ms=30_000)
    if cancelled:
        controller.handle(ms(1), SELECTOR, Cancel((1,)), ())
    sent(controller, Cancel)
    controller.tick(infer.expected_ns + controller.settings.action_grace_ns + controller.settings.ping_ns)
    assert sent(controller, Cancel, WORKER) == [Cancel((infer.action_id,))]
    assert not sent(controller, Infer), "until it is heard of"
    finish(controller, infer, s(1), Status.CANCELLED)
    (again,) = sent(controller, Infer)
    assert {row.submit_id for row in again.rows} == {2} if cancelled else {1, 2}
    assert not sent(controller, Outcome)


def test_attempts_that_the_worker_has_not_begun_do_not_count() -> None:
    """The worker may have no link to the holder yet. It then has no inputs, and cancels the batch."""
    controller = a_controller("horologe", in_flight=1)
    submit(controller, 1, budget_ms=10_000)
    for now_ns in range(s(1), s(6), s(1)):
        (infer,) = sent(controller, Infer)
        controller.tick(now_ns)
        assert sent(controller, Cancel, WORKER)
        finish(controller, infer, now_ns, Status.CANCELLED)
    (infer,) = sent(controller, Infer)
    controller.tick(s(9))
    finish(controller, infer, s(10), Status.CANCELLED)
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.REFUSED], "no worker has run it"
    assert controller.pending() == 0


def test_a_batch_with_rows_missing_says_nothing_of_a_full_one() -> None:
    controller = a_controller(in_flight=1)
    for number in range(10, 130, 10):
        submit(controller, number, number + 1, number + 2, number + 3, now_ns=number * ms(10))
        (infer,) = sent(controller, Infer)
        assert (infer.batch_size, infer.expected_ns) == (4, ms(3.5))
        end_ns = number * ms(10) + ms(1)
        rows = tuple(RowStatus(place, 0, Status.FAILED) for place in (1, 2, 3))
        controller.handle(end_ns, WORKER, Result(infer.action_id, Status.OK, end_ns - ms(1), end_ns, rows=rows), ())
        controller.tick(end_ns)
    controller.refresh_stats()
    assert controller.stats.values["nv_inference_count", "sum", "1"] == 12, "those that were run"
    for side in ("over", "under"):
        assert ("horologe_prediction_error_seconds", "infer", side) not in controller.stats.histograms


def test_cancelled_requests_leave_the_queue() -> None:
    controller = a_controller(in_flight=1)
    submit(controller, 1)
    submit(controller, 2, 3)
    (infer,) = sent(controller, Infer)
    controller.handle(1, SELECTOR, Cancel((1, 2)), ())
    finish(controller, infer, ms(3))
    assert [row.submit_id for row in sent(controller, Infer)[0].rows] == [3]
    assert not sent(controller, Outcome)


def test_a_dead_selectors_requests_are_dropped() -> None:
    controller = a_controller()
    submit(controller, 1, 2, 3)
    controller.handle(1, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert controller.pending() == 0
    controller.check()


def test_a_result_of_an_unknown_action_changes_nothing() -> None:
    controller = a_controller()
    controller.handle(1, WORKER, Result(999, Status.OK, 0, 1), ())
    controller.handle(1, "worker/9#9", Result(1, Status.OK, 0, 1), ())
    controller.check()


def test_estimates_follow_the_measurements() -> None:
    controller = a_controller(in_flight=1)
    for number in range(1, 12):
        now_ns = number * ms(200)
        submit(controller, number, now_ns=now_ns)
        (infer,) = sent(controller, Infer)
        controller.handle(now_ns + ms(9), WORKER, Result(infer.action_id, Status.OK, now_ns, now_ns + ms(8)), ())
        controller.tick(now_ns + ms(9))
    submit(controller, 50, now_ns=ms(2300))
    assert sent(controller, Infer)[0].expected_ns == ms(8)


def test_a_late_start_is_an_error_of_completion_and_none_of_duration() -> None:
    controller = a_controller()
    controller.stats.histograms.clear()
    submit(controller, 1)
    (infer,) = sent(controller, Infer)
    finish(controller, infer, infer.expected_ns + ms(3))
    found = {key: (one.total, one.sum) for key, one in controller.stats.histograms.items() if len(key) == 3}
    assert found["horologe_prediction_error_seconds", "infer", "over"] == (1, 0)
    assert found["horologe_completion_error_seconds", "infer", "under"] == (1, ms(3))


def test_completion_errors_are_measured_against_the_first_prediction() -> None:
    """The first INFER is late, so the second is late as well, although its duration is as predicted."""
    controller = a_controller(scheduler="clockwork", in_flight=2, lookahead_ns=ms(50))
    controller.stats.histograms.clear()
    submit(controller, 1)
    submit(controller, 2)
    first, second = sent(controller, Infer)
    end_ns = first.expected_ns + ms(2)
    controller.handle(end_ns, WORKER, Result(first.action_id, Status.OK, 0, end_ns), ())
    finish(controller, second, end_ns + second.expected_ns)
    late = controller.stats.histograms["horologe_completion_error_seconds", "infer", "under"]
    assert (late.total, late.sum) == (2, 2 * ms(2))
    assert controller.stats.histograms["horologe_prediction_error_seconds", "infer", "under"].total == 1


def test_a_model_that_does_not_load_is_withdrawn_with_its_reason() -> None:
    controller = a_controller(reports=[a_report(), a_report(a_spec("bad"))], preload=False)
    submit(controller, 1, model="bad/1")
    (load,) = sent(controller, Load, WORKER)
    controller.handle(1, WORKER, Result(load.action_id, Status.FAILED, 0, 1, reason="corrupt file"), ())
    controller.tick(1)
    (outcome,) = sent(controller, Outcome)
    assert outcome.status == Status.FAILED
    assert "corrupt file" in outcome.reason
    controller.check()


def test_windows_are_in_the_workers_clock() -> None:
    controller = Controller("controller/0#1", ControllerSettings(scheduler="edf", margin_ns=0), "host")
    controller.handle(0, FRONTEND, PeerConnected(FRONTEND, "host"), ())
    controller.handle(0, SELECTOR, PeerConnected(SELECTOR, "host"), ())
    controller.handle(0, WORKER, PeerConnected(WORKER, "elsewhere"), ())
    controller.handle(0, WORKER, Register((Share(0, "cpu", 4, ("sum/1",)),), (a_report(),)), ())
    controller.tick(0)
    (ping,) = sent(controller, Ping, WORKER)
    controller.handle(ms(2), WORKER, Pong(ping.sent_ns, ms(5001)), ())
    submit(controller, 1, now_ns=ms(10))
    (infer,) = sent(controller, Infer)
    assert infer.earliest_ns == ms(10) + ms(5000)


def test_the_cluster_can_be_described() -> None:
    controller = a_controller()
    controller.handle(0, FRONTEND, Describe(9), ())
    (description,) = sent(controller, Description, FRONTEND)
    assert description.shares[0].resident == ("sum/1",)


def test_a_share_does_not_wait_for_the_inputs_of_a_solo_request() -> None:
    """The submitter may be lost or hang, so the window is short, however late the deadline."""
    controller = a_controller("clockwork")
    message = Submit(1, "sum/1", s(10), 1, "profiler/0#1", 1, best_effort=True, solo=True)
    controller.handle(0, SELECTOR, message, ())
    controller.tick(0)
    (infer,) = sent(controller, Infer, WORKER)
    assert infer.latest_ns <= ms(101)


def test_solo_requests_have_a_batch_each(scheduler: str) -> None:
    """A solo request measures its own time: no other request is in its batch."""
    controller = a_controller(scheduler, in_flight=8, lookahead_ns=ms(100))
    for number in range(1, 7):
        solo = number % 2 == 0
        message = Submit(number, "sum/1", s(10), 1, FRONTEND, number, best_effort=True, solo=solo)
        controller.handle(0, SELECTOR, message, ())
    batches: list[list[int]] = []
    for step in range(40):
        controller.tick(ms(step * 10))
        controller.check()
        for infer in sent(controller, Infer, WORKER):
            batches.append([row.submit_id for row in infer.rows])
            assert infer.batch_size == 1 or len(infer.rows) > 1
            result = Result(infer.action_id, Status.OK, ms(step * 10), ms(step * 10 + 2))
            controller.handle(ms(step * 10 + 2), WORKER, result, ())
    assert sorted(number for batch in batches for number in batch) == [1, 2, 3, 4, 5, 6]
    assert all(len(batch) == 1 for batch in batches if any(number % 2 == 0 for number in batch))


def test_a_request_of_several_rows_does_not_change_how_the_others_of_a_dynamic_model_are_planned() -> None:
    controller = a_controller("horologe")
    solo = Distribution.from_samples([ms(8), ms(9), ms(10)])
    controller.cluster.distributions["sum/1"] = RuntimeDistributions(ms(1), [SoloDistribution("", 0, solo)])
    for number, rows, budget_ms in ((1, 2, 100), (2, 1, 50)):
        controller.handle(0, SELECTOR, Submit(number, "sum/1", ms(budget_ms), rows, FRONTEND, number), ())
    infers = []
    for now_ms in range(50):
        controller.tick(ms(now_ms))
        controller.check()
        for infer in sent(controller, Infer):
            infers.append(infer)
            finish(controller, infer, ms(now_ms) + infer.expected_ns)
    (alone,) = [infer for infer in infers if [row.submit_id for row in infer.rows] == [2]]
    assert alone.expected_ns > ms(8)
    assert sum(len(infer.rows) for infer in infers) == 2
