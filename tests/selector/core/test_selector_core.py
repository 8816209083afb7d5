"""Model queries in the selector: coalescing of equal queries, failures, cancellation, lost peers."""

from __future__ import annotations

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
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER, SelectorHarness


class ModelHarness(SelectorHarness):
    """Selector with the model `sum`."""

    def __init__(self, **spec: Any) -> None:
        super().__init__("")
        self.send(CONTROLLER, Models(0, (a_state(a_spec(**spec)),)))

    def send_query(
        self, number: int, budget_ms: int = 100, rows: int = 1, hashed: bytes = b"", best_effort: bool = False
    ) -> None:
        self.send(FRONTEND, Query(number, "sum/1", ms(budget_ms), rows, hashed, best_effort))

    def send_outputs(self, *items: tuple[int, int, Status], values: list[float]) -> None:
        """Send Outputs for items (submit id, rows, status), with one float for each row."""
        tensor = Tensor("y", "FP32", (len(values), 1), 4 * len(values))
        rows = tuple(RowStatus(number, rows * (status == Status.OK), status, "why") for number, rows, status in items)
        self.send(WORKER, Outputs(1, rows, (tensor,)), [struct.pack(f"<{len(values)}f", *values)])

    def predict(self, submit_id: int, value: float) -> None:
        self.send_outputs((submit_id, 1, Status.OK), values=[value])

    def pop_answers(self) -> dict[int, tuple[int, list[float]]]:
        """Return (status, values) of all new Answers by query id."""
        by_id = {}
        for out in self.selector.out:
            if isinstance(out.message, Answer):
                payload = b"".join(map(bytes, out.buffers))
                by_id[out.message.id] = (out.message.status, list(struct.unpack(f"<{len(payload) // 4}f", payload)))
        sent(self.selector, Answer)
        return by_id


def test_rows_of_a_batch_go_to_their_own_queries() -> None:
    harness = ModelHarness()
    for number, rows in ((10, 2), (11, 1), (12, 1)):
        harness.send_query(number, rows=rows)
    first, second, third = (submit.id for submit in sent(harness.selector, Submit, CONTROLLER))
    harness.send_outputs((first, 2, Status.OK), (second, 1, Status.FAILED), (third, 1, Status.OK), values=[1, 2, 3])
    assert harness.pop_answers() == {10: (0, [1, 2]), 11: (Status.FAILED, []), 12: (0, [3])}


def test_length_application_and_client_reach_the_controller() -> None:
    harness = ModelHarness()
    harness.send(FRONTEND, Query(10, "sum/1", ms(100), 1, length=96, application="chat", client="ann"))
    (submit,) = sent(harness.selector, Submit, CONTROLLER)
    assert (submit.length, submit.application, submit.client, submit.solo) == (96, "chat", "ann", False)


def test_rows_with_missing_inputs_are_answered_by_a_later_batch() -> None:
    harness = ModelHarness()
    harness.send_query(10)
    (submit,) = sent(harness.selector, Submit)
    harness.send(WORKER, Outputs(1, (RowStatus(submit.id, 0, Status.MISSING_INPUT),), ()))
    assert not harness.pop_answers()
    harness.predict(submit.id, 5)
    assert harness.pop_answers() == {10: (0, [5])}


def test_an_outcome_is_answered_with_its_status_and_reason() -> None:
    harness = ModelHarness()
    harness.send_query(10)
    (submit,) = sent(harness.selector, Submit)
    harness.send(CONTROLLER, Outcome(submit.id, Status.REFUSED, "busy", ms(3)))
    (answer,) = sent(harness.selector, Answer, FRONTEND)
    assert (answer.id, answer.status, answer.reason, answer.retry_after_ns) == (10, Status.REFUSED, "busy", ms(3))


def test_equal_queries_are_coalesced_and_later_ones_hit_the_cache() -> None:
    harness = ModelHarness(cache=True)
    harness.send_query(10, hashed=b"h")
    harness.send_query(11, hashed=b"h")
    harness.send_query(12, hashed=b"other")
    first, _ = sent(harness.selector, Submit)
    harness.predict(first.id, 7)
    assert harness.pop_answers() == {10: (0, [7]), 11: (0, [7])}
    harness.send_query(13, hashed=b"h")
    assert harness.pop_answers() == {13: (0, [7])}
    assert not sent(harness.selector, Submit)


def test_followers_with_a_later_deadline_are_submitted_again_after_a_refusal() -> None:
    harness = ModelHarness(cache=True)
    harness.send_query(10, budget_ms=10, hashed=b"h")
    harness.send_query(11, budget_ms=90, hashed=b"h")
    harness.send_query(12, budget_ms=9, hashed=b"h")
    (first,) = sent(harness.selector, Submit)
    harness.now_ns = ms(1)
    harness.send(CONTROLLER, Outcome(first.id, Status.REFUSED))
    assert set(harness.pop_answers()) == {10, 12}
    (second,) = sent(harness.selector, Submit)
    assert (second.input_id, second.budget_ns) == (11, ms(89))


def test_a_query_does_not_follow_a_leader_with_no_or_a_much_later_deadline() -> None:
    harness = ModelHarness(cache=True)
    harness.send_query(10, budget_ms=30_000, hashed=b"h", best_effort=True)
    harness.send_query(11, budget_ms=10_000, hashed=b"h")
    harness.send_query(12, budget_ms=100, hashed=b"h")
    harness.send_query(13, budget_ms=90, hashed=b"h")
    harness.send_query(14, budget_ms=500, hashed=b"h")
    submits = sent(harness.selector, Submit)
    assert [(submit.input_id, submit.best_effort) for submit in submits] == [(10, True), (11, False), (12, False)]
    for submit in submits:
        harness.predict(submit.id, 1.0)
    assert sorted(harness.pop_answers()) == [10, 11, 12, 13, 14]


def test_the_most_urgent_follower_replaces_a_cancelled_leader() -> None:
    harness = ModelHarness(cache=True)
    harness.send_query(10, hashed=b"h")
    harness.send_query(11, budget_ms=30_000, hashed=b"h", best_effort=True)
    harness.send_query(12, budget_ms=400, hashed=b"h")
    harness.send_query(13, budget_ms=200, hashed=b"h")
    (first,) = sent(harness.selector, Submit)
    harness.send(FRONTEND, Cancel((10,)))
    assert sent(harness.selector, Cancel, CONTROLLER)[0].ids == (first.id,)
    assert sent(harness.selector, Release, FRONTEND)[0].ids == (10,)
    (second,) = sent(harness.selector, Submit)
    assert (second.input_id, second.best_effort) == (13, False)


@given(st.permutations(range(10, 18)), st.integers(0, 7))
def test_after_any_cancellations_one_submit_answers_the_remaining_queries(order: list[int], stay: int) -> None:
    harness = ModelHarness(cache=True)
    for number in range(10, 18):
        harness.send_query(number, budget_ms=100 + 7 * (number % 3), hashed=b"h", best_effort=number % 4 == 3)
    open_ = {submit.id for submit in sent(harness.selector, Submit)}
    for number in order[stay:]:
        harness.send(FRONTEND, Cancel((number,)))
        open_ -= {input_id for out in sent(harness.selector, Cancel, CONTROLLER) for input_id in out.ids}
        open_ |= {submit.id for submit in sent(harness.selector, Submit)}
        assert len(open_) <= 1
    assert [out.ids[0] for out in sent(harness.selector, Release, FRONTEND)] == order[stay:]
    for number in sorted(open_):
        harness.predict(number, 1.0)
    assert sorted(harness.pop_answers()) == sorted(order[:stay])


def test_losing_a_frontend_cancels_a_shared_prediction_once() -> None:
    harness = ModelHarness(cache=True)
    for number in range(10, 20):
        harness.send_query(number, hashed=b"h")
    (first,) = sent(harness.selector, Submit)
    harness.send(FRONTEND, PeerDisconnected(FRONTEND))
    assert sent(harness.selector, Cancel, CONTROLLER) == [Cancel((first.id,))]
    assert sent(harness.selector, Submit) == []


def test_a_new_controller_gets_all_open_submits() -> None:
    harness = ModelHarness()
    harness.send_query(10)
    (first,) = sent(harness.selector, Submit)
    harness.now_ns = ms(5)
    harness.send(CONTROLLER, PeerDisconnected(CONTROLLER))
    harness.now_ns = ms(6)
    harness.send_query(11)
    assert not sent(harness.selector, Submit)
    harness.now_ns = ms(20)
    harness.send("controller/0#2", PeerConnected("controller/0#2"))
    submits = sent(harness.selector, Submit, "controller/0#2")
    assert [(submit.input_id, submit.budget_ns) for submit in submits] == [(10, ms(80)), (11, ms(86))]
    assert submits[0].id == first.id


@pytest.mark.parametrize("hashed", [b"", bytes(32)])
def test_a_query_that_is_sent_again_while_it_is_open_is_answered_once(hashed: bytes) -> None:
    """A frontend sends its open queries again when it reconnects, perhaps before the selector notices that it left."""
    harness = ModelHarness()
    harness.send_query(10, hashed=hashed)
    harness.send_query(10, hashed=hashed)
    (submit,) = sent(harness.selector, Submit, CONTROLLER)
    harness.predict(submit.id, 1)
    assert len(sent(harness.selector, Answer)) == 1
