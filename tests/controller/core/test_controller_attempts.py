"""Further attempts of the controller: a request whose batch did not run is planned again, a bounded number of times."""

from __future__ import annotations

from typing import Any

import pytest

from controller.controller_builders import (
    FRONTEND,
    SELECTOR,
    WORKER,
    a_controller,
    finish,
    finish_loads,
    join,
    register,
    submit,
)
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    Dispatch,
    Drain,
    Infer,
    Load,
    Outcome,
    Result,
    RowStatus,
)
from horologe_controller.core.cluster.lane import ACTION_GRACE_NS
from horologe_controller.core.controller import PING_NS


@pytest.mark.parametrize("status", [Status.TOO_LATE, Status.MISSING_INPUT])
def test_a_batch_that_did_not_run_is_planned_again(status: Status) -> None:
    controller = a_controller()
    submit(controller, 1, 2)
    (infer,) = sent(controller, Infer)
    rows = (RowStatus(0, 0, status),) if status == Status.MISSING_INPUT else ()
    finish(controller, infer, ms(5), Status.OK if rows else status, rows=rows)
    again = [row.submit_id for infer in sent(controller, Infer) for row in infer.rows]
    assert again == ([1] if rows else [1, 2])
    assert not sent(controller, Outcome)


@pytest.mark.parametrize("left", [(), (a_spec(version="2"),)], ids=["nothing", "another version"])
def test_a_request_that_its_worker_refuses_for_a_model_withdrawn_ends_as_those_that_wait(left: Any) -> None:
    controller = a_controller("horologe")
    for number in (1, 2, 3):
        submit(controller, number)
    (infer,) = sent(controller, Infer)
    register(controller, *map(a_report, left), now_ns=ms(1))
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
    register(controller, a_report(), worker="worker/1#1", now_ns=ms(1))
    register(controller, now_ns=ms(1))
    finish(controller, infer, ms(2), Status.REFUSED)
    finish_loads(controller, "worker/1#1", ms(7))
    assert [again.rows for again in sent(controller, Infer, "worker/1")] == [infer.rows]
    assert not sent(controller, Outcome)


def test_a_draining_worker_is_given_nothing_more(scheduler: str) -> None:
    """A draining worker refuses at once, so its lanes look idle: a request would use up its three attempts there."""
    controller = a_controller(scheduler)
    join(controller, "worker/1#1")
    controller.handle(ms(1), WORKER, Drain(), ())
    controller.tick(ms(1))
    assert sent(controller, Drain, WORKER), "the worker may end when its actions have"
    for number in range(1, 5):
        submit(controller, number, now_ns=ms(number))
    assert sent(controller, Infer, "worker/1")
    assert not sent(controller, Infer, WORKER)


def test_a_draining_worker_is_not_asked_to_load_what_another_can() -> None:
    controller = a_controller("horologe", reports=[a_report(a_spec(name)) for name in "abcd"], pages=1)
    join(controller, "worker/1#1", *(a_report(a_spec(name)) for name in "abcd"), pages=1)
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
    controller.handle(ms(3), WORKER, PeerDisconnected(WORKER), ())
    controller.tick(ms(3))
    (again,) = sent(controller, Infer, "worker/1#1")
    assert again.rows == infer.rows
    assert sent(controller, Dispatch, FRONTEND)[-1].worker == "worker/1#1"
    controller.check()


def test_a_request_at_a_silent_worker_ends_when_its_submitter_cancels_it() -> None:
    controller = a_controller()
    submit(controller, 1, budget_ms=50)
    controller.tick(ms(100))
    controller.handle(ms(100), SELECTOR, Cancel((1,)), ())
    assert controller.pending() == 0
    controller.check()


def test_a_request_that_hangs_worker_after_worker_is_not_given_to_every_one() -> None:
    controller = a_controller(lookahead_ns=ms(1))
    for number in range(1, 6):
        join(controller, f"worker/{number}#1")
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
    controller.tick(infer.expected_ns + ACTION_GRACE_NS + PING_NS)
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
