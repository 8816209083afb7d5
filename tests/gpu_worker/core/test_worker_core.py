"""The worker core: inputs are joined with actions, windows are kept, outputs go to their submitters."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    MODEL,
    SELECTOR,
    WorkerHarness,
    a_ship,
    an_infer,
    deliver,
    only_result,
    operations,
    responses_by_row,
    run_operation,
)
from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Cancel, Outputs, Result, Row, Ship, Shipped, Tensor
from horologe_gpu_worker.core.infer_lifecycle import EARLY_NS, JOIN_MARGIN_NS
from horologe_gpu_worker.core.lanes import Abort, Finished, not_run
from horologe_gpu_worker.core.worker import ACTIONS_MAX


@pytest.fixture
def worker() -> WorkerHarness:
    return WorkerHarness()


@pytest.mark.parametrize("infer_first", [True, False])
def test_infer_and_ship_meet_in_either_order(worker: WorkerHarness, infer_first: bool) -> None:
    worker.connect()
    ship, buffers = a_ship({100: [7.0]})
    arrivals: list[tuple[str, Any, Any]] = [(CONTROLLER, an_infer(), ()), (HOLDER, ship, buffers)]
    arrivals = arrivals if infer_first else arrivals[::-1]
    outs = [deliver(worker.core, at, *arrival) for at, arrival in enumerate(arrivals)]
    assert not operations(outs[0])
    [operation] = operations(outs[1])
    assert (operation.lane, operation.model, operation.rows) == ("exec", MODEL, 1)
    assert (operation.earliest_ns, operation.latest_ns) == (0, ms(10))
    ended = worker.finish(run_operation(operation, begin_ns=3))
    assert responses_by_row(ended) == {(SELECTOR, 200): [7.0]}
    assert only_result(ended) == Result(1, Status.OK, 3, 3 + ms(1), ms(1), ready_ns=1)
    [outputs] = [out.message for out in ended if isinstance(out.message, Outputs)]
    assert (outputs.model, outputs.batch_size, outputs.begin_ns, outputs.end_ns) == (MODEL, 1, 3, 3 + ms(1))


def test_a_row_the_holder_lost_fails_alone_and_the_batch_shrinks_to_what_is_left(worker: WorkerHarness) -> None:
    worker.infer(rows=(1, 1, 2))
    [operation] = operations(worker.ship({100: [1.0], 102: [2.0, 3.0]}, missing=(101,)))
    assert (operation.batch_size, operation.rows) == (4, 3)
    ended = worker.run(operation)
    assert responses_by_row(ended) == {
        (SELECTOR, 200): [1.0],
        (SELECTOR, 201): Status.MISSING_INPUT,
        (SELECTOR, 202): [2.0, 3.0],
    }
    assert [(row.id, row.status) for row in only_result(ended).rows] == [(1, Status.MISSING_INPUT)]
    assert only_result(ended).status == Status.OK


def test_rows_that_do_not_come_are_not_waited_for_beyond_the_window(worker: WorkerHarness) -> None:
    worker.infer(rows=(1, 1), window=(0, ms(1)))
    assert not operations(worker.ship({100: [1.0]}))
    cut_ns = worker.core.wakeup_ns()
    assert cut_ns == ms(1) - JOIN_MARGIN_NS
    [operation] = operations(worker.advance(cut_ns))
    assert (operation.batch_size, operation.rows) == (1, 1)
    assert not worker.ship({101: [2.0]}, now_ns=cut_ns + 1)
    ended = worker.run(operation)
    assert responses_by_row(ended) == {(SELECTOR, 200): [1.0], (SELECTOR, 201): Status.MISSING_INPUT}
    assert worker.core.wakeup_ns() is None


def test_an_action_whose_inputs_all_stay_away_is_waited_for_to_the_end_and_then_reported_missing(
    worker: WorkerHarness,
) -> None:
    worker.infer(window=(0, ms(1)))
    assert not worker.advance(ms(1) - JOIN_MARGIN_NS)
    ended = worker.advance(ms(1))
    assert only_result(ended).status == Status.MISSING_INPUT
    assert not responses_by_row(ended)
    assert not worker.ship({100: [1.0]}, now_ns=ms(1) + 5)
    assert len(worker.core.infers.early) == 0, "late inputs of an ended action are not kept"


def test_inputs_between_the_cut_and_the_end_of_the_window_still_run(worker: WorkerHarness) -> None:
    worker.infer(rows=(1, 1), window=(0, ms(1)))
    worker.advance(ms(1) - JOIN_MARGIN_NS)
    [operation] = operations(worker.ship({101: [2.0]}, now_ns=ms(1) - JOIN_MARGIN_NS // 2))
    assert operation.rows == 1


def test_a_window_that_has_passed_is_answered_and_never_run(worker: WorkerHarness) -> None:
    assert only_result(worker.infer(now_ns=ms(11))).status == Status.TOO_LATE
    late = worker.finish(not_run(worker.start({100: [1.0]}, 2), Status.TOO_LATE, ms(12)))
    assert (only_result(late).status, only_result(late).begin_ns) == (Status.TOO_LATE, ms(12))
    assert not responses_by_row(late), "the controller answers for what was not run"
    assert worker.core.drained()


def test_a_model_error_reaches_every_submitter_with_its_text(worker: WorkerHarness) -> None:
    parties = (HOLDER, SELECTOR, "selector/1#b")
    rows = (Row(0, 1, 1, 11, 1), Row(0, 2, 2, 12, 1))
    assert worker.start({1: [1.0], 2: [2.0]}, entries=rows, parties=parties).rows == 2
    ended = worker.finish(Finished(1, "exec", Status.FAILED, 2, 3, 1, reason="ValueError: no"))
    assert (only_result(ended).status, only_result(ended).reason) == (Status.FAILED, "ValueError: no")
    told_to = {out.to: out.message.items[0] for out in ended if isinstance(out.message, Outputs)}
    assert {to: (item.id, item.rows, item.reason) for to, item in told_to.items()} == {
        SELECTOR: (11, 0, "ValueError: no"),
        "selector/1#b": (12, 0, "ValueError: no"),
    }


def test_inputs_of_another_shape_fail_their_row(worker: WorkerHarness) -> None:
    worker.infer(rows=(1, 1))
    bad = Ship(1, HOLDER, (Shipped(100, (Tensor("x", "FP32", (1, 3), 12),)),))
    deliver(worker.core, 1, HOLDER, bad, [bytes(12)])
    [operation] = operations(worker.ship({101: [5.0]}))
    ended = worker.run(operation)
    assert responses_by_row(ended) == {(SELECTOR, 200): Status.FAILED, (SELECTOR, 201): [5.0]}
    assert "input 'x': shape: got [1, 3], wanted [-1, 4]" in only_result(ended).rows[0].reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "other/1"}, "not served"),
        ({"batch_size": 3}, "batch_size: got 3"),
        ({"rows": (1, 1), "batch_size": 1}, "rows: got 2"),
        ({"rows": ()}, "rows: got 0"),
        ({"entries": (Row(0, 1, 7, 1, 1),)}, "parties"),
        ({"share": 1}, "share: got 1"),
    ],
)
def test_an_action_the_worker_cannot_take_is_refused_with_the_reason(
    worker: WorkerHarness, fields: dict[str, Any], reason: str
) -> None:
    outcome = only_result(worker.infer(**fields))
    assert outcome.status == Status.REFUSED
    assert reason in outcome.reason


def test_an_action_with_the_id_of_another_controllers_is_refused(worker: WorkerHarness) -> None:
    worker.infer()
    other = "controller/0#b"
    assert only_result(worker.send(an_infer(), sender=other), other).status == Status.REFUSED


def test_the_io_cache_is_bounded_and_given_back() -> None:
    worker = WorkerHarness(io_cache_bytes=40)
    worker.infer(rows=(1, 1, 1), batch_size=4)
    worker.ship({100: [1.0], 101: [2.0]})
    [operation] = operations(worker.ship({102: [3.0]}))
    assert (operation.rows, worker.core.infers.io.held_bytes) == (2, 32)
    assert "io cache" in only_result(worker.run(operation)).rows[0].reason
    assert worker.core.infers.io.held_bytes == 0


def test_inputs_nobody_asks_for_are_dropped_in_time(worker: WorkerHarness) -> None:
    worker.ship({100: [1.0]}, 5, now_ns=0)
    assert worker.core.wakeup_ns() == EARLY_NS
    worker.advance(EARLY_NS)
    assert len(worker.core.infers.early) == 0
    assert worker.core.wakeup_ns() is None


def test_actions_are_bounded(worker: WorkerHarness) -> None:
    for action_id in range(1, ACTIONS_MAX + 1):
        worker.core.handle(0, CONTROLLER, an_infer(action_id), ())
    assert not worker.advance(0)
    assert only_result(worker.infer(ACTIONS_MAX + 1)).status == Status.REFUSED


def test_cancel_drops_what_has_not_begun(worker: WorkerHarness) -> None:
    worker.infer(1)
    assert only_result(worker.send(Cancel((1, 9)))).status == Status.CANCELLED
    operation = worker.start({100: [1.0]}, 2)
    [abort] = worker.send(Cancel((2,)))
    assert abort == Out(worker.core.lanes, Abort(2, 0, "exec"))
    ended = worker.finish(not_run(operation, Status.CANCELLED, 3))
    assert only_result(ended).status == Status.CANCELLED
    assert not responses_by_row(ended)


def test_where_inputs_have_a_lane_the_operation_goes_through_all_three() -> None:
    worker = WorkerHarness(inline=False)
    put = worker.start({100: [4.0]})
    assert put.lane == "input"
    [execute] = operations(worker.finish(Finished(1, "input", Status.OK, 1, 2, 1, staged="here")))
    assert (execute.lane, execute.staged, execute.latest_ns) == ("exec", "here", ms(10))
    [get] = operations(worker.finish(Finished(1, "exec", Status.OK, 2, 3, 1, staged="there")))
    assert (get.lane, get.staged) == ("output", "there")
    ended = worker.finish(Finished(1, "output", Status.OK, 3, 4, 1, run_operation(put).outputs))
    assert responses_by_row(ended) == {(SELECTOR, 200): [4.0]}
    assert (only_result(ended).begin_ns, only_result(ended).end_ns) == (2, 3), "the times are EXEC's"


def test_failures_of_every_model_are_counted_from_zero(worker: WorkerHarness) -> None:
    worker.core.refresh_stats()
    values = worker.core.stats.values
    counts = {key[3]: value for key, value in values.items() if key[0] == "horologe_model_failures_total"}
    assert counts == {"error": 0, "crash": 0, "hang": 0}
