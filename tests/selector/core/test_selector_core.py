"""Model queries in the selector: coalescing of equal queries, failures, cancellation, lost peers."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.builders import a_spec, a_state, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Models, Outcome, Outputs, Query, Release, RowStatus, Submit, Tensor
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings

FRONTEND, CONTROLLER, WORKER = "frontend/0#1", "controller/0#1", "worker/0#1"


def make_selector(**spec: Any) -> Selector:
    selector = Selector("selector/0#1", SelectorSettings(), random.Random(1))
    selector.handle(0, FRONTEND, PeerConnected(FRONTEND), ())
    selector.handle(0, CONTROLLER, PeerConnected(CONTROLLER), ())
    selector.handle(0, CONTROLLER, Models(0, (a_state(a_spec(**spec)),)), ())
    return selector


def send_query(
    selector: Selector,
    number: int,
    now_ns: int = 0,
    budget_ms: int = 100,
    rows: int = 1,
    hashed: bytes = b"",
    best_effort: bool = False,
) -> None:
    selector.handle(now_ns, FRONTEND, Query(number, "sum/1", ms(budget_ms), rows, hashed, best_effort), ())


def make_outputs(*items: tuple[int, int, Status], values: list[float]) -> tuple[Outputs, list[bytes]]:
    """Return Outputs for items (submit id, rows, status), with one float for each row, and their bytes."""
    tensor = Tensor("y", "FP32", (len(values), 1), 4 * len(values))
    rows = tuple(RowStatus(number, rows if status == Status.OK else 0, status, "why") for number, rows, status in items)
    return Outputs(1, rows, (tensor,)), [struct.pack(f"<{len(values)}f", *values)]


def predict(selector: Selector, submit_id: int, value: float, now_ns: int = 1) -> None:
    message, buffers = make_outputs((submit_id, 1, Status.OK), values=[value])
    selector.handle(now_ns, WORKER, message, buffers)


def pop_answers(selector: Selector) -> dict[int, tuple[int, list[float]]]:
    """Return (status, values) of all new Answers by query id."""
    by_id = {}
    for out in selector.out:
        if isinstance(out.message, Answer):
            payload = b"".join(map(bytes, out.buffers))
            by_id[out.message.id] = (out.message.status, list(struct.unpack(f"<{len(payload) // 4}f", payload)))
    sent(selector, Answer)
    return by_id


def test_rows_of_a_batch_go_to_their_own_queries() -> None:
    selector = make_selector()
    for number, rows in ((10, 2), (11, 1), (12, 1)):
        send_query(selector, number, rows=rows)
    first, second, third = (submit.id for submit in sent(selector, Submit, CONTROLLER))
    message, buffers = make_outputs(
        (first, 2, Status.OK), (second, 1, Status.FAILED), (third, 1, Status.OK), values=[1, 2, 3]
    )
    selector.handle(1, WORKER, message, buffers)
    assert pop_answers(selector) == {10: (0, [1, 2]), 11: (Status.FAILED, []), 12: (0, [3])}
    selector.check()


def test_length_application_and_client_reach_the_controller() -> None:
    selector = make_selector()
    selector.handle(0, FRONTEND, Query(10, "sum/1", ms(100), 1, length=96, application="chat", client="ann"), ())
    (submit,) = sent(selector, Submit, CONTROLLER)
    assert (submit.length, submit.application, submit.client, submit.solo) == (96, "chat", "ann", False)


def test_rows_with_missing_inputs_are_answered_by_a_later_batch() -> None:
    selector = make_selector()
    send_query(selector, 10)
    (submit,) = sent(selector, Submit)
    selector.handle(1, WORKER, Outputs(1, (RowStatus(submit.id, 0, Status.MISSING_INPUT),), ()), ())
    assert not pop_answers(selector)
    predict(selector, submit.id, 5, now_ns=2)
    assert pop_answers(selector) == {10: (0, [5])}


def test_an_outcome_is_answered_with_its_status_and_reason() -> None:
    selector = make_selector()
    send_query(selector, 10)
    (submit,) = sent(selector, Submit)
    selector.handle(1, CONTROLLER, Outcome(submit.id, Status.REFUSED, "busy", ms(3)), ())
    (answer,) = sent(selector, Answer, FRONTEND)
    assert (answer.id, answer.status, answer.reason, answer.retry_after_ns) == (10, Status.REFUSED, "busy", ms(3))


def test_equal_queries_are_coalesced_and_later_ones_hit_the_cache() -> None:
    selector = make_selector(cache=True)
    send_query(selector, 10, hashed=b"h")
    send_query(selector, 11, hashed=b"h")
    send_query(selector, 12, hashed=b"other")
    first, _ = sent(selector, Submit)
    predict(selector, first.id, 7)
    assert pop_answers(selector) == {10: (0, [7]), 11: (0, [7])}
    send_query(selector, 13, now_ns=2, hashed=b"h")
    assert pop_answers(selector) == {13: (0, [7])}
    assert not sent(selector, Submit)
    selector.check()


def test_a_changed_model_misses_the_cache() -> None:
    selector = make_selector(cache=True)
    send_query(selector, 10, hashed=b"h")
    (first,) = sent(selector, Submit)
    predict(selector, first.id, 7)
    selector.handle(1, CONTROLLER, Models(0, (a_state(a_spec(content_hash="changed")),)), ())
    send_query(selector, 11, hashed=b"h")
    assert len(sent(selector, Submit)) == 1


def test_followers_with_a_later_deadline_are_submitted_again_after_a_refusal() -> None:
    selector = make_selector(cache=True)
    send_query(selector, 10, budget_ms=10, hashed=b"h")
    send_query(selector, 11, budget_ms=90, hashed=b"h")
    send_query(selector, 12, budget_ms=9, hashed=b"h")
    (first,) = sent(selector, Submit)
    selector.handle(ms(1), CONTROLLER, Outcome(first.id, Status.REFUSED), ())
    assert set(pop_answers(selector)) == {10, 12}
    (second,) = sent(selector, Submit)
    assert (second.input_id, second.budget_ns) == (11, ms(89))
    selector.check()


def test_a_query_does_not_follow_a_leader_with_no_or_a_much_later_deadline() -> None:
    selector = make_selector(cache=True)
    send_query(selector, 10, budget_ms=30_000, hashed=b"h", best_effort=True)
    send_query(selector, 11, budget_ms=10_000, hashed=b"h")
    send_query(selector, 12, budget_ms=100, hashed=b"h")
    send_query(selector, 13, budget_ms=90, hashed=b"h")
    send_query(selector, 14, budget_ms=500, hashed=b"h")
    submits = sent(selector, Submit)
    assert [(submit.input_id, submit.best_effort) for submit in submits] == [(10, True), (11, False), (12, False)]
    for submit in submits:
        predict(selector, submit.id, 1.0)
        selector.check()
    assert sorted(pop_answers(selector)) == [10, 11, 12, 13, 14]


def test_the_most_urgent_follower_replaces_a_cancelled_leader() -> None:
    selector = make_selector(cache=True)
    send_query(selector, 10, hashed=b"h")
    send_query(selector, 11, budget_ms=30_000, hashed=b"h", best_effort=True)
    send_query(selector, 12, budget_ms=400, hashed=b"h")
    send_query(selector, 13, budget_ms=200, hashed=b"h")
    (first,) = sent(selector, Submit)
    selector.handle(1, FRONTEND, Cancel((10,)), ())
    assert sent(selector, Cancel, CONTROLLER)[0].ids == (first.id,)
    assert sent(selector, Release, FRONTEND)[0].ids == (10,)
    (second,) = sent(selector, Submit)
    assert (second.input_id, second.best_effort) == (13, False)
    selector.check()


@given(st.permutations(range(10, 18)), st.integers(0, 7))
def test_after_any_cancellations_one_submit_answers_the_remaining_queries(order: list[int], stay: int) -> None:
    selector = make_selector(cache=True)
    for number in range(10, 18):
        send_query(selector, number, budget_ms=100 + 7 * (number % 3), hashed=b"h", best_effort=number % 4 == 3)
    open_ = {submit.id for submit in sent(selector, Submit)}
    for number in order[stay:]:
        selector.handle(1, FRONTEND, Cancel((number,)), ())
        open_ -= {input_id for out in sent(selector, Cancel, CONTROLLER) for input_id in out.ids}
        open_ |= {submit.id for submit in sent(selector, Submit)}
        assert len(open_) <= 1
        selector.check()
    assert [out.ids[0] for out in sent(selector, Release, FRONTEND)] == order[stay:]
    for number in sorted(open_):
        predict(selector, number, 1.0)
    assert sorted(pop_answers(selector)) == sorted(order[:stay])
    selector.check()


def test_losing_a_frontend_cancels_a_shared_prediction_once() -> None:
    selector = make_selector(cache=True)
    for number in range(10, 20):
        send_query(selector, number, hashed=b"h")
    (first,) = sent(selector, Submit)
    selector.handle(1, FRONTEND, PeerDisconnected(FRONTEND), ())
    assert sent(selector, Cancel, CONTROLLER) == [Cancel((first.id,))]
    assert sent(selector, Submit) == []
    selector.check()


def test_a_new_controller_gets_all_open_submits() -> None:
    selector = make_selector()
    send_query(selector, 10)
    (first,) = sent(selector, Submit)
    selector.handle(ms(5), CONTROLLER, PeerDisconnected(CONTROLLER), ())
    send_query(selector, 11, now_ns=ms(6))
    assert not sent(selector, Submit)
    selector.handle(ms(20), "controller/0#2", PeerConnected("controller/0#2"), ())
    submits = sent(selector, Submit, "controller/0#2")
    assert [(submit.input_id, submit.budget_ns) for submit in submits] == [(10, ms(80)), (11, ms(86))]
    assert submits[0].id == first.id


@pytest.mark.parametrize("hashed", [b"", bytes(32)])
def test_a_query_that_is_sent_again_while_it_is_open_is_answered_once(hashed: bytes) -> None:
    """A frontend sends its open queries again when it reconnects, perhaps before the selector notices that it left."""
    selector = make_selector()
    send_query(selector, 10, hashed=hashed)
    send_query(selector, 10, hashed=hashed)
    (submit,) = sent(selector, Submit, CONTROLLER)
    selector.check()
    predict(selector, submit.id, 1)
    assert len(sent(selector, Answer)) == 1
    selector.check()
