"""The selector: one execution for equal queries, every waiter answered, outputs to the right one."""

from __future__ import annotations

import random
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import a_spec, a_state, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Models, Outcome, Outputs, Query, Release, RowStatus, Submit, Tensor
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings

FRONTEND, CONTROLLER, WORKER = "frontend/0#1", "controller/0#1", "worker/0#1"


def a_selector(**spec: Any) -> Selector:
    selector = Selector("selector/0#1", SelectorSettings(), random.Random(1))
    selector.handle(0, FRONTEND, PeerConnected(FRONTEND), ())
    selector.handle(0, CONTROLLER, PeerConnected(CONTROLLER), ())
    selector.handle(0, CONTROLLER, Models(0, (a_state(a_spec(**spec)),)), ())
    return selector


def query(
    selector: Selector,
    number: int,
    now_ns: int = 0,
    budget_ms: int = 100,
    rows: int = 1,
    hashed: bytes = b"",
    best_effort: bool = False,
) -> None:
    selector.handle(now_ns, FRONTEND, Query(number, "sum/1", ms(budget_ms), rows, hashed, best_effort), ())


def outputs(*items: tuple[int, int, Status], values: list[float]) -> tuple[Outputs, list[bytes]]:
    """Outputs of (submit id, rows, status), one float a row."""
    tensor = Tensor("y", "FP32", (len(values), 1), 4 * len(values))
    rows = tuple(RowStatus(number, rows if status == Status.OK else 0, status, "why") for number, rows, status in items)
    return Outputs(1, rows, (tensor,)), [struct.pack(f"<{len(values)}f", *values)]


def answers(selector: Selector) -> dict[int, tuple[int, list[float]]]:
    """id -> (status, values), taken from what was put out."""
    found = {}
    for out in selector.out:
        if isinstance(out.message, Answer):
            payload = b"".join(map(bytes, out.buffers))
            found[out.message.id] = (out.message.status, list(struct.unpack(f"<{len(payload) // 4}f", payload)))
    sent(selector, Answer)
    return found


def test_rows_of_a_batch_go_to_their_own_queries() -> None:
    selector = a_selector()
    for number, rows in ((10, 2), (11, 1), (12, 1)):
        query(selector, number, rows=rows)
    first, second, third = (submit.id for submit in sent(selector, Submit, CONTROLLER))
    message, buffers = outputs(
        (first, 2, Status.OK), (second, 1, Status.FAILED), (third, 1, Status.OK), values=[1, 2, 3]
    )
    selector.handle(1, WORKER, message, buffers)
    assert answers(selector) == {10: (0, [1, 2]), 11: (Status.FAILED, []), 12: (0, [3])}
    selector.check()


def test_length_and_application_reach_the_controller() -> None:
    selector = a_selector()
    selector.handle(0, FRONTEND, Query(10, "sum/1", ms(100), 1, length=96, application="chat"), ())
    (submit,) = sent(selector, Submit, CONTROLLER)
    assert (submit.length, submit.application, submit.solo) == (96, "chat", False)


def test_rows_that_the_controller_plans_again_are_not_answered() -> None:
    selector = a_selector()
    query(selector, 10)
    (submit,) = sent(selector, Submit)
    selector.handle(1, WORKER, Outputs(1, (RowStatus(submit.id, 0, Status.MISSING_INPUT),), ()), ())
    assert not answers(selector)
    message, buffers = outputs((submit.id, 1, Status.OK), values=[5])
    selector.handle(2, WORKER, message, buffers)
    assert answers(selector) == {10: (0, [5])}


def test_an_outcome_is_passed_on() -> None:
    selector = a_selector()
    query(selector, 10)
    (submit,) = sent(selector, Submit)
    selector.handle(1, CONTROLLER, Outcome(submit.id, Status.REFUSED, "busy", ms(3)), ())
    (answer,) = sent(selector, Answer, FRONTEND)
    assert (answer.id, answer.status, answer.reason, answer.retry_after_ns) == (10, Status.REFUSED, "busy", ms(3))


def test_equal_queries_fly_together_and_later_ones_hit_the_cache() -> None:
    selector = a_selector(cache=True)
    query(selector, 10, hashed=b"h")
    query(selector, 11, hashed=b"h")
    query(selector, 12, hashed=b"other")
    first, _ = sent(selector, Submit)
    message, buffers = outputs((first.id, 1, Status.OK), values=[7])
    selector.handle(1, WORKER, message, buffers)
    assert answers(selector) == {10: (0, [7]), 11: (0, [7])}
    query(selector, 13, now_ns=2, hashed=b"h")
    assert answers(selector) == {13: (0, [7])}
    assert not sent(selector, Submit)
    selector.check()


def test_a_changed_model_misses_the_cache() -> None:
    selector = a_selector(cache=True)
    query(selector, 10, hashed=b"h")
    (first,) = sent(selector, Submit)
    message, buffers = outputs((first.id, 1, Status.OK), values=[7])
    selector.handle(1, WORKER, message, buffers)
    selector.handle(1, CONTROLLER, Models(0, (a_state(a_spec(content_hash="changed")),)), ())
    query(selector, 11, hashed=b"h")
    assert len(sent(selector, Submit)) == 1


def test_a_follower_with_more_time_outlives_its_leaders_refusal() -> None:
    selector = a_selector(cache=True)
    query(selector, 10, budget_ms=10, hashed=b"h")
    query(selector, 11, budget_ms=90, hashed=b"h")
    query(selector, 12, budget_ms=9, hashed=b"h")
    (first,) = sent(selector, Submit)
    selector.handle(ms(1), CONTROLLER, Outcome(first.id, Status.REFUSED), ())
    assert set(answers(selector)) == {10, 12}
    (second,) = sent(selector, Submit)
    assert (second.input_id, second.budget_ns) == (11, ms(89))
    selector.check()


def test_cancelling_the_leader_does_not_cancel_its_followers() -> None:
    selector = a_selector(cache=True)
    query(selector, 10, hashed=b"h")
    query(selector, 11, hashed=b"h")
    (first,) = sent(selector, Submit)
    selector.handle(1, FRONTEND, Cancel((10,)), ())
    assert sent(selector, Cancel, CONTROLLER)[0].ids == (first.id,)
    assert sent(selector, Release, FRONTEND)[0].ids == (10,)
    assert sent(selector, Submit)[0].input_id == 11
    selector.check()


def test_who_has_a_deadline_does_not_wait_for_one_who_has_none_or_a_much_later_one() -> None:
    selector = a_selector(cache=True)
    query(selector, 10, budget_ms=30_000, hashed=b"h", best_effort=True)
    query(selector, 11, budget_ms=10_000, hashed=b"h")
    query(selector, 12, budget_ms=100, hashed=b"h")
    query(selector, 13, budget_ms=90, hashed=b"h")
    query(selector, 14, budget_ms=500, hashed=b"h")
    submits = sent(selector, Submit)
    assert [(one.input_id, one.best_effort) for one in submits] == [(10, True), (11, False), (12, False)]
    for one in submits:
        message, buffers = outputs((one.id, 1, Status.OK), values=[1.0])
        selector.handle(1, WORKER, message, buffers)
        selector.check()
    assert sorted(answers(selector)) == [10, 11, 12, 13, 14]


def test_when_the_leader_leaves_the_most_urgent_follower_leads() -> None:
    selector = a_selector(cache=True)
    query(selector, 10, hashed=b"h")
    query(selector, 11, budget_ms=30_000, hashed=b"h", best_effort=True)
    query(selector, 12, budget_ms=400, hashed=b"h")
    query(selector, 13, budget_ms=200, hashed=b"h")
    sent(selector, Submit)
    selector.handle(1, FRONTEND, Cancel((10,)), ())
    (again,) = sent(selector, Submit)
    assert (again.input_id, again.best_effort) == (13, False)
    selector.check()


@given(st.permutations(range(10, 18)), st.integers(0, 7))
def test_one_after_the_other_gives_up_and_the_rest_are_answered_by_one_flight(order: list[int], stay: int) -> None:
    selector = a_selector(cache=True)
    for number in range(10, 18):
        query(selector, number, budget_ms=100 + 7 * (number % 3), hashed=b"h", best_effort=number % 4 == 3)
    open_ = {submit.id for submit in sent(selector, Submit)}
    for number in order[stay:]:
        selector.handle(1, FRONTEND, Cancel((number,)), ())
        open_ -= {input_id for out in sent(selector, Cancel, CONTROLLER) for input_id in out.ids}
        open_ |= {submit.id for submit in sent(selector, Submit)}
        assert len(open_) <= 1
        selector.check()
    assert [out.ids[0] for out in sent(selector, Release, FRONTEND)] == order[stay:]
    for number in sorted(open_):
        message, buffers = outputs((number, 1, Status.OK), values=[1.0])
        selector.handle(1, WORKER, message, buffers)
    assert sorted(answers(selector)) == sorted(order[:stay])
    selector.check()


def test_a_dead_frontend_whose_queries_share_a_flight_ends_it_once() -> None:
    selector = a_selector(cache=True)
    for number in range(10, 20):
        query(selector, number, hashed=b"h")
    sent(selector, Submit)
    selector.handle(1, FRONTEND, PeerDisconnected(FRONTEND), ())
    assert len(sent(selector, Cancel, CONTROLLER)) == 1
    assert sent(selector, Submit) == []
    selector.check()


def test_a_new_controller_gets_the_open_submits_again() -> None:
    selector = a_selector()
    query(selector, 10)
    (first,) = sent(selector, Submit)
    selector.handle(ms(5), CONTROLLER, PeerDisconnected(CONTROLLER), ())
    query(selector, 11, now_ns=ms(6))
    assert not sent(selector, Submit)
    selector.handle(ms(20), "controller/0#2", PeerConnected("controller/0#2"), ())
    again = sent(selector, Submit, "controller/0#2")
    assert [(one.input_id, one.budget_ns) for one in again] == [(10, ms(80)), (11, ms(86))]
    assert again[0].id == first.id


def test_a_dead_frontends_queries_are_dropped() -> None:
    selector = a_selector()
    query(selector, 10)
    (first,) = sent(selector, Submit)
    selector.handle(1, FRONTEND, PeerDisconnected(FRONTEND), ())
    assert sent(selector, Cancel, CONTROLLER)[0].ids == (first.id,)
    selector.check()
