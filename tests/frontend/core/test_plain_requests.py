"""Requests for models without cache and streams: submitted to the controller, answered by workers and controller."""

from __future__ import annotations

import pytest

from frontend.frontend_builders import CLIENT, CONTROLLER, NOW, SELECTOR, WORKER, connected_frontend, the_answer
from harness.builders import a_predict, a_spec, a_tensor, sent, some_bytes
from horologe_common.clock import ms, us
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    Cancel,
    Dispatch,
    Outcome,
    Outputs,
    Ping,
    Pong,
    Query,
    RefusedAgain,
    RowStatus,
    Submit,
)
from horologe_frontend.core.frontend import Frontend

NEXT = "controller/0#2"


def a_frontend() -> Frontend:
    return connected_frontend(specs=(a_spec(),))


def submit(frontend: Frontend, number: int = 7, budget_ms: int = 100, now_ns: int = NOW, rows: int = 1) -> Submit:
    """Send a request of a client. Return what the controller gets."""
    frontend.handle(now_ns, CLIENT, a_predict(number, rows=rows, budget_ms=budget_ms), [some_bytes(rows)])
    frontend.tick(now_ns)
    frontend.check()
    assert not sent(frontend, Query)
    (submitted,) = sent(frontend, Submit, CONTROLLER)
    return submitted


def send_outputs(frontend: Frontend, *items: RowStatus, now_ns: int = NOW + ms(5)) -> None:
    """Send the outputs of a batch that took 2 ms. Each output is the number of its row."""
    rows = sum(item.rows for item in items if item.status == Status.OK)
    tensors, buffers = ((a_tensor(rows, "y", 1),), [bytes(range(4 * rows))]) if rows else ((), [])
    frontend.handle(now_ns, WORKER, Outputs(1, items, tensors, "sum/1", 4, ms(1), ms(3)), buffers)
    frontend.tick(now_ns)
    frontend.check()


def test_a_plain_request_is_submitted_with_its_inputs_and_answered_with_the_outputs_of_the_worker() -> None:
    frontend = a_frontend()
    first, second = submit(frontend, 7), submit(frontend, 8)
    assert (first.model, first.holder, first.input_id, first.rows) == ("sum/1", frontend.address, first.id, 1)
    assert 0 < first.budget_ns <= ms(100)
    send_outputs(frontend, RowStatus(first.id, 1, 0), RowStatus(second.id, 1, 0))
    outs = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert [(out.message.id, bytes(out.buffers[0])) for out in outs] == [(7, bytes(range(4))), (8, bytes(range(4, 8)))]
    answer = outs[0].message
    assert (answer.model, answer.version, answer.exec_ns, answer.queue_ns) == ("sum", "1", ms(2), ms(3))
    assert not frontend.staging.held_bytes
    frontend.out.clear()
    send_outputs(frontend, RowStatus(first.id, 1, 0))
    assert not frontend.out, "a second answer of a worker is ignored"


@pytest.mark.parametrize("status", [Status.FAILED, Status.TOO_LARGE])
def test_a_row_that_the_model_failed_is_answered_beside_the_others(status: Status) -> None:
    frontend = a_frontend()
    failed, good = submit(frontend, 7), submit(frontend, 8)
    send_outputs(frontend, RowStatus(failed.id, 1, int(status), "why"), RowStatus(good.id, 1, 0))
    answers = {answer.id: answer for answer in sent(frontend, Answer, CLIENT)}
    assert (answers[7].status, answers[7].reason, answers[8].status) == (status, "why", Status.OK)


def test_an_outcome_of_the_controller_is_the_answer() -> None:
    frontend = a_frontend()
    submitted = submit(frontend)
    frontend.handle(NOW, NEXT, Outcome(submitted.id, int(Status.REFUSED), "full"), ())
    frontend.handle(NOW, CLIENT, Outcome(submitted.id, int(Status.REFUSED), "full"), ())
    assert not sent(frontend, Answer), "another process has no say"
    frontend.handle(NOW, CONTROLLER, Outcome(submitted.id, int(Status.REFUSED), "full", ms(3), ms(2), ms(6)), ())
    answer = the_answer(frontend)
    assert (answer.refuses_ns, answer.place_ns) == (ms(2), ms(6))
    assert (answer.id, answer.status, answer.reason, answer.retry_after_ns) == (7, Status.REFUSED, "full", ms(3))
    assert not frontend.staging.held_bytes


def test_a_new_controller_gets_the_open_requests_with_the_time_that_is_left() -> None:
    frontend = a_frontend()
    submitted = submit(frontend)
    frontend.handle(NOW, CONTROLLER, Dispatch(1, WORKER, (submitted.id,)), ())
    frontend.handle(NOW, CONTROLLER, PeerDisconnected(CONTROLLER), ())
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW + ms(40), NEXT, PeerConnected(NEXT), ())
    (again,) = sent(frontend, Submit, NEXT)
    assert again == type(again)(**{**{f: getattr(submitted, f) for f in again.__struct_fields__}, "budget_ns": ms(60)})
    frontend.handle(NOW + ms(41), NEXT, Outcome(again.id, int(Status.REFUSED), "late"), ())
    assert the_answer(frontend).status == Status.LOST, "a worker of the first controller may have run it"


def test_a_cancelled_or_expired_request_is_cancelled_at_the_controller() -> None:
    frontend = a_frontend()
    cancelled, expired = submit(frontend, 7), submit(frontend, 8)
    frontend.handle(NOW, CLIENT, Cancel((7,)), ())
    frontend.tick(NOW + ms(1000))
    assert sent(frontend, Cancel, CONTROLLER) == [Cancel((cancelled.id,)), Cancel((expired.id,))]
    assert (the_answer(frontend).status, frontend.staging.held_bytes) == (Status.REFUSED, 0)
    frontend.check()


def test_the_latency_of_the_links_is_no_part_of_the_budget() -> None:
    frontend = a_frontend()
    assert submit(frontend, 7).budget_ns == ms(100)
    assert [out.to for out in frontend.out if isinstance(out.message, Ping)] == [CONTROLLER, WORKER]
    frontend.handle(NOW + us(600), WORKER, Pong(NOW, NOW), ())
    frontend.handle(NOW + us(400), CONTROLLER, Pong(NOW, NOW, us(100)), ())
    assert submit(frontend, 8).budget_ns == ms(100) - us(200) - us(200)
    assert submit(frontend, 9, now_ns=NOW + ms(5000)).budget_ns == ms(100) - us(400), "the last measurement counts"


def test_what_a_gateway_refuses_again_is_counted_and_reported_to_the_controller() -> None:
    frontend = a_frontend()
    message = RefusedAgain((("sum/1", 5),))
    frontend.handle(NOW, CLIENT, message, ())
    assert not sent(frontend, RefusedAgain), "a client has no say"
    frontend.handle(NOW, "http/0#1", message, ())
    assert sent(frontend, RefusedAgain, CONTROLLER) == [message]
    frontend.refresh_stats()
    assert frontend.stats.values["nv_inference_request_failure", "sum", "1", "REFUSED"] == 5
    model = frontend.stats_by_model["sum/1"]
    assert (model.fail.count, model.latency.total, model.success.count, model.last_ns) == (5, 5, 0, NOW)
