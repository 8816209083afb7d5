"""The worker core: inputs are joined with actions, windows are kept, outputs go to their submitters."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    MODEL,
    SELECTOR,
    a_ship,
    a_worker,
    an_infer,
    connect_controller,
    deliver,
    only_result,
    operations,
    responses_by_row,
    run_operation,
    tick_worker,
)
from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    Outputs,
    Result,
    Row,
    Ship,
    Shipped,
    Tensor,
)
from horologe_gpu_worker.core.infer_lifecycle import EARLY_NS, JOIN_MARGIN_NS
from horologe_gpu_worker.core.lanes import Abort, Finished, not_run
from horologe_gpu_worker.core.worker import ACTIONS_MAX


@pytest.mark.parametrize("infer_first", [True, False])
def test_infer_and_ship_meet_in_either_order(infer_first: bool) -> None:
    worker = a_worker()
    connect_controller(worker)
    ship, buffers = a_ship({100: [7.0]})
    arrivals: list[tuple[str, Any, Any]] = [(CONTROLLER, an_infer(), ()), (HOLDER, ship, buffers)]
    outs = [deliver(worker, at, *arrival) for at, arrival in enumerate(arrivals if infer_first else arrivals[::-1])]
    assert not operations(outs[0])
    [operation] = operations(outs[1])
    assert (operation.lane, operation.model, operation.rows) == ("exec", MODEL, 1)
    assert (operation.earliest_ns, operation.latest_ns) == (0, ms(10))
    ended = deliver(worker, ms(2), worker.lanes, run_operation(operation, begin_ns=3))
    assert responses_by_row(ended) == {(SELECTOR, 200): [7.0]}
    assert only_result(ended) == Result(1, Status.OK, 3, 3 + ms(1), ms(1), ready_ns=1)
    [outputs] = [out.message for out in ended if isinstance(out.message, Outputs)]
    assert (outputs.model, outputs.batch_size, outputs.begin_ns, outputs.end_ns) == (MODEL, 1, 3, 3 + ms(1))


def test_a_row_the_holder_lost_fails_alone_and_the_batch_shrinks_to_what_is_left() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(rows=(1, 1, 2)))
    ship, buffers = a_ship({100: [1.0], 102: [2.0, 3.0]}, missing=(101,))
    [operation] = operations(deliver(worker, 5, HOLDER, ship, buffers))
    assert (operation.batch_size, operation.rows) == (4, 3)
    ended = deliver(worker, ms(1), worker.lanes, run_operation(operation))
    assert responses_by_row(ended) == {
        (SELECTOR, 200): [1.0],
        (SELECTOR, 201): Status.MISSING_INPUT,
        (SELECTOR, 202): [2.0, 3.0],
    }
    assert [(row.id, row.status) for row in only_result(ended).rows] == [(1, Status.MISSING_INPUT)]
    assert only_result(ended).status == Status.OK


def test_rows_that_do_not_come_are_not_waited_for_beyond_the_window() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(rows=(1, 1), window=(0, ms(1))))
    assert not operations(deliver(worker, 5, HOLDER, *a_ship({100: [1.0]})))
    cut_ns = worker.wakeup_ns()
    assert cut_ns == ms(1) - JOIN_MARGIN_NS
    [operation] = operations(tick_worker(worker, cut_ns))
    assert (operation.batch_size, operation.rows) == (1, 1)
    late = deliver(worker, cut_ns + 1, HOLDER, *a_ship({101: [2.0]}))
    assert not late
    ended = deliver(worker, ms(3), worker.lanes, run_operation(operation))
    assert responses_by_row(ended) == {(SELECTOR, 200): [1.0], (SELECTOR, 201): Status.MISSING_INPUT}
    assert worker.wakeup_ns() is None


def test_an_action_whose_inputs_all_stay_away_is_waited_for_to_the_end_and_then_reported_missing() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(window=(0, ms(1))))
    assert not tick_worker(worker, ms(1) - JOIN_MARGIN_NS)
    ended = tick_worker(worker, ms(1))
    assert only_result(ended).status == Status.MISSING_INPUT
    assert not responses_by_row(ended)
    assert not deliver(worker, ms(1) + 5, HOLDER, *a_ship({100: [1.0]}))
    assert len(worker.infers.early) == 0, "late inputs of an ended action are not kept"


def test_inputs_between_the_cut_and_the_end_of_the_window_still_run() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(rows=(1, 1), window=(0, ms(1))))
    tick_worker(worker, ms(1) - JOIN_MARGIN_NS)
    [operation] = operations(deliver(worker, ms(1) - JOIN_MARGIN_NS // 2, HOLDER, *a_ship({101: [2.0]})))
    assert operation.rows == 1


def test_a_window_that_has_passed_is_answered_and_never_run() -> None:
    worker = a_worker()
    outs = deliver(worker, ms(11), CONTROLLER, an_infer())
    assert only_result(outs).status == Status.TOO_LATE
    deliver(worker, 0, CONTROLLER, an_infer(2))
    [operation] = operations(deliver(worker, 1, HOLDER, *a_ship({100: [1.0]}, 2)))
    late = deliver(worker, ms(12), worker.lanes, not_run(operation, Status.TOO_LATE, ms(12)))
    assert (only_result(late).status, only_result(late).begin_ns) == (Status.TOO_LATE, ms(12))
    assert not responses_by_row(late), "the controller answers for what was not run"
    assert worker.drained()


def test_a_model_error_reaches_every_submitter_with_its_text() -> None:
    worker = a_worker()
    parties = (HOLDER, SELECTOR, "selector/1#b")
    rows = (Row(0, 1, 1, 11, 1), Row(0, 2, 2, 12, 1))
    deliver(worker, 0, CONTROLLER, an_infer(entries=rows, parties=parties))
    [operation] = operations(deliver(worker, 1, HOLDER, *a_ship({1: [1.0], 2: [2.0]})))
    failed = Finished(1, "exec", Status.FAILED, 2, 3, 1, reason="ValueError: no")
    ended = deliver(worker, 4, worker.lanes, failed)
    assert operation.rows == 2
    assert (only_result(ended).status, only_result(ended).reason) == (Status.FAILED, "ValueError: no")
    told_to = {out.to: out.message.items[0] for out in ended if isinstance(out.message, Outputs)}
    assert {to: (item.id, item.rows, item.reason) for to, item in told_to.items()} == {
        SELECTOR: (11, 0, "ValueError: no"),
        "selector/1#b": (12, 0, "ValueError: no"),
    }


def test_inputs_of_another_shape_fail_their_row() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(rows=(1, 1)))
    bad = Ship(1, HOLDER, (Shipped(100, (Tensor("x", "FP32", (1, 3), 12),)),))
    deliver(worker, 1, HOLDER, bad, [bytes(12)])
    [operation] = operations(deliver(worker, 2, HOLDER, *a_ship({101: [5.0]})))
    ended = deliver(worker, 3, worker.lanes, run_operation(operation))
    assert responses_by_row(ended) == {(SELECTOR, 200): Status.FAILED, (SELECTOR, 201): [5.0]}
    assert "input 'x': shape: got [1, 3], wanted [-1, 4]" in only_result(ended).rows[0].reason


def test_an_action_the_worker_cannot_take_is_refused_with_the_reason() -> None:
    worker = a_worker()
    for infer, reason in (
        (an_infer(model="other/1"), "not served"),
        (an_infer(batch_size=3), "batch_size: got 3"),
        (an_infer(rows=(1, 1), batch_size=1), "rows: got 2"),
        (an_infer(rows=()), "rows: got 0"),
        (an_infer(entries=(Row(0, 1, 7, 1, 1),)), "parties"),
        (an_infer(share=1), "share: got 1"),
    ):
        outcome = only_result(deliver(worker, 0, CONTROLLER, infer))
        assert outcome.status == Status.REFUSED
        assert reason in outcome.reason
    deliver(worker, 0, CONTROLLER, an_infer())
    assert only_result(deliver(worker, 0, "controller/0#b", an_infer()), "controller/0#b").status == Status.REFUSED


def test_the_io_cache_is_bounded_and_given_back() -> None:
    worker = a_worker(io_cache_bytes=40)
    deliver(worker, 0, CONTROLLER, an_infer(rows=(1, 1, 1), batch_size=4))
    deliver(worker, 1, HOLDER, *a_ship({100: [1.0], 101: [2.0]}))
    [operation] = operations(deliver(worker, 1, HOLDER, *a_ship({102: [3.0]})))
    assert (operation.rows, worker.infers.io.held_bytes) == (2, 32)
    ended = deliver(worker, 2, worker.lanes, run_operation(operation))
    assert "io cache" in only_result(ended).rows[0].reason
    assert worker.infers.io.held_bytes == 0


def test_inputs_nobody_asks_for_are_dropped_in_time() -> None:
    worker = a_worker()
    deliver(worker, 0, HOLDER, *a_ship({100: [1.0]}, 5))
    assert worker.wakeup_ns() == EARLY_NS
    tick_worker(worker, EARLY_NS)
    assert len(worker.infers.early) == 0
    assert worker.wakeup_ns() is None


def test_actions_are_bounded() -> None:
    worker = a_worker()
    for action_id in range(1, ACTIONS_MAX + 1):
        worker.handle(0, CONTROLLER, an_infer(action_id), ())
    assert not tick_worker(worker, 0)
    assert only_result(deliver(worker, 0, CONTROLLER, an_infer(ACTIONS_MAX + 1))).status == Status.REFUSED


def test_cancel_drops_what_has_not_begun() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(1))
    assert only_result(deliver(worker, 1, CONTROLLER, Cancel((1, 9)))).status == Status.CANCELLED
    deliver(worker, 0, CONTROLLER, an_infer(2))
    [operation] = operations(deliver(worker, 1, HOLDER, *a_ship({100: [1.0]}, 2)))
    [abort] = deliver(worker, 2, CONTROLLER, Cancel((2,)))
    assert abort == Out(worker.lanes, Abort(2, 0, "exec"))
    ended = deliver(worker, 3, worker.lanes, not_run(operation, Status.CANCELLED, 3))
    assert only_result(ended).status == Status.CANCELLED
    assert not responses_by_row(ended)


def test_where_inputs_have_a_lane_the_operation_goes_through_all_three() -> None:
    worker = a_worker(inline=False)
    deliver(worker, 0, CONTROLLER, an_infer())
    [put] = operations(deliver(worker, 1, HOLDER, *a_ship({100: [4.0]})))
    assert put.lane == "input"
    [execute] = operations(deliver(worker, 2, worker.lanes, Finished(1, "input", Status.OK, 1, 2, 1, staged="here")))
    assert (execute.lane, execute.staged, execute.latest_ns) == ("exec", "here", ms(10))
    [get] = operations(deliver(worker, 3, worker.lanes, Finished(1, "exec", Status.OK, 2, 3, 1, staged="there")))
    assert (get.lane, get.staged) == ("output", "there")
    outputs = run_operation(put).outputs
    ended = deliver(worker, 9, worker.lanes, Finished(1, "output", Status.OK, 3, 4, 1, outputs))
    assert responses_by_row(ended) == {(SELECTOR, 200): [4.0]}
    assert (only_result(ended).begin_ns, only_result(ended).end_ns) == (2, 3), "the times are EXEC's"


def test_failures_of_every_model_are_counted_from_zero() -> None:
    worker = a_worker()
    worker.refresh_stats()
    counts = {key[3]: value for key, value in worker.stats.values.items() if key[0] == "horologe_model_failures_total"}
    assert counts == {"error": 0, "crash": 0, "hang": 0, "restarting": 0}
