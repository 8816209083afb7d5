"""The worker core: joining, windows, residency, and whose outputs are whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core import Gone, Joined, Out
from horologe_common.models import TensorSpec
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    Drain,
    Load,
    Outputs,
    Ping,
    Pong,
    Register,
    Result,
    Row,
    Scan,
    Ship,
    Shipped,
    Tensor,
    Unload,
)
from horologe_gpu_worker.core import Worker
from horologe_gpu_worker.lanes import Abort, Finished, Operation, not_run
from worker_builders import (
    CONTROLLER,
    HOLDER,
    MODEL,
    PAGE,
    SELECTOR,
    a_ship,
    a_worker,
    an_infer,
    answers_of,
    joined,
    operations,
    ran,
    ticked,
    told,
)


def result(outs: list[Out], to: str = CONTROLLER) -> Result:
    [found] = [out.message for out in outs if isinstance(out.message, Result) and out.to == to]
    return found


@pytest.mark.parametrize("infer_first", [True, False])
def test_infer_and_ship_meet_in_either_order(infer_first: bool) -> None:
    worker = a_worker()
    joined(worker)
    ship, buffers = a_ship({100: [7.0]})
    arrivals: list[tuple[str, Any, Any]] = [(CONTROLLER, an_infer(), ()), (HOLDER, ship, buffers)]
    outs = [told(worker, at, *arrival) for at, arrival in enumerate(arrivals if infer_first else arrivals[::-1])]
    assert not operations(outs[0])
    [operation] = operations(outs[1])
    assert (operation.lane, operation.model, operation.rows) == ("exec", MODEL, 1)
    assert (operation.earliest_ns, operation.latest_ns) == (0, ms(10))
    ended = told(worker, ms(2), worker.lanes, ran(operation, begin_ns=3))
    assert answers_of(ended) == {(SELECTOR, 200): [7.0]}
    assert result(ended) == Result(1, Status.OK, 3, 3 + ms(1), ms(1), ready_ns=1)
    [outputs] = [out.message for out in ended if isinstance(out.message, Outputs)]
    assert (outputs.model, outputs.batch_size, outputs.begin_ns, outputs.end_ns) == (MODEL, 1, 3, 3 + ms(1))


def test_a_row_the_holder_lost_fails_alone_and_the_batch_shrinks_to_what_is_left() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, an_infer(rows=(1, 1, 2)))
    ship, buffers = a_ship({100: [1.0], 102: [2.0, 3.0]}, missing=(101,))
    [operation] = operations(told(worker, 5, HOLDER, ship, buffers))
    assert (operation.batch_size, operation.rows) == (4, 3)
    ended = told(worker, ms(1), worker.lanes, ran(operation))
    assert answers_of(ended) == {
        (SELECTOR, 200): [1.0], (SELECTOR, 201): Status.MISSING_INPUT, (SELECTOR, 202): [2.0, 3.0]
    }  # fmt: skip
    assert [(row.id, row.status) for row in result(ended).rows] == [(1, Status.MISSING_INPUT)]
    assert result(ended).status == Status.OK


def test_rows_that_do_not_come_are_not_waited_for_beyond_the_window() -> None:
    worker = a_worker(join_margin_ns=1000)
    told(worker, 0, CONTROLLER, an_infer(rows=(1, 1), window=(0, ms(1))))
    assert not operations(told(worker, 5, HOLDER, *a_ship({100: [1.0]})))
    cut_ns = worker.wakeup_ns()
    assert cut_ns == ms(1) - 1000
    [operation] = operations(ticked(worker, cut_ns))
    assert (operation.batch_size, operation.rows) == (1, 1)
    late = told(worker, cut_ns + 1, HOLDER, *a_ship({101: [2.0]}))
    assert not late
    ended = told(worker, ms(3), worker.lanes, ran(operation))
    assert answers_of(ended) == {(SELECTOR, 200): [1.0], (SELECTOR, 201): Status.MISSING_INPUT}
    assert worker.wakeup_ns() is None


def test_an_action_whose_inputs_all_stay_away_is_waited_for_to_the_end_and_then_reported_missing() -> None:
    worker = a_worker(join_margin_ns=1000)
    told(worker, 0, CONTROLLER, an_infer(window=(0, ms(1))))
    assert not ticked(worker, ms(1) - 1000)
    ended = ticked(worker, ms(1))
    assert result(ended).status == Status.MISSING_INPUT
    assert not answers_of(ended)
    assert not told(worker, ms(1) + 5, HOLDER, *a_ship({100: [1.0]}))
    assert len(worker.infers.early) == 0, "late inputs of an ended action are not kept"


def test_inputs_between_the_cut_and_the_end_of_the_window_still_run() -> None:
    worker = a_worker(join_margin_ns=1000)
    told(worker, 0, CONTROLLER, an_infer(rows=(1, 1), window=(0, ms(1))))
    ticked(worker, ms(1) - 1000)
    [operation] = operations(told(worker, ms(1) - 500, HOLDER, *a_ship({101: [2.0]})))
    assert operation.rows == 1


def test_a_window_that_has_passed_is_answered_and_never_run() -> None:
    worker = a_worker()
    outs = told(worker, ms(11), CONTROLLER, an_infer())
    assert result(outs).status == Status.TOO_LATE
    told(worker, 0, CONTROLLER, an_infer(2))
    [operation] = operations(told(worker, 1, HOLDER, *a_ship({100: [1.0]}, 2)))
    late = told(worker, ms(12), worker.lanes, not_run(operation, Status.TOO_LATE, ms(12)))
    assert (result(late).status, result(late).begin_ns) == (Status.TOO_LATE, ms(12))
    assert not answers_of(late), "the controller answers for what was not run"
    assert worker.drained()


def test_a_model_error_reaches_every_submitter_with_its_text() -> None:
    worker = a_worker()
    parties = (HOLDER, SELECTOR, "selector/1#b")
    rows = (Row(0, 1, 1, 11, 1), Row(0, 2, 2, 12, 1))
    told(worker, 0, CONTROLLER, an_infer(entries=rows, parties=parties))
    [operation] = operations(told(worker, 1, HOLDER, *a_ship({1: [1.0], 2: [2.0]})))
    failed = Finished(1, "exec", Status.FAILED, 2, 3, 1, reason="ValueError: no")
    ended = told(worker, 4, worker.lanes, failed)
    assert operation.rows == 2
    assert (result(ended).status, result(ended).reason) == (Status.FAILED, "ValueError: no")
    told_to = {out.to: out.message.items[0] for out in ended if isinstance(out.message, Outputs)}
    assert {to: (item.id, item.rows, item.reason) for to, item in told_to.items()} == {
        SELECTOR: (11, 0, "ValueError: no"), "selector/1#b": (12, 0, "ValueError: no")
    }  # fmt: skip


def test_inputs_of_another_shape_fail_their_row() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, an_infer(rows=(1, 1)))
    bad = Ship(1, HOLDER, (Shipped(100, (Tensor("x", "FP32", (1, 3), 12),)),))
    told(worker, 1, HOLDER, bad, [bytes(12)])
    [operation] = operations(told(worker, 2, HOLDER, *a_ship({101: [5.0]})))
    ended = told(worker, 3, worker.lanes, ran(operation))
    assert answers_of(ended) == {(SELECTOR, 200): Status.FAILED, (SELECTOR, 201): [5.0]}
    assert "input 'x': shape: got [1, 3], wanted [-1, 4]" in result(ended).rows[0].reason


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
        outcome = result(told(worker, 0, CONTROLLER, infer))
        assert outcome.status == Status.REFUSED
        assert reason in outcome.reason
    told(worker, 0, CONTROLLER, an_infer())
    assert result(told(worker, 0, "controller/0#b", an_infer()), "controller/0#b").status == Status.REFUSED


def test_the_io_cache_is_bounded_and_given_back() -> None:
    worker = a_worker(io_cache_bytes=40)
    told(worker, 0, CONTROLLER, an_infer(rows=(1, 1, 1), batch_size=4))
    [operation] = operations(told(worker, 1, HOLDER, *a_ship({100: [1.0], 101: [2.0], 102: [3.0]})))
    assert (operation.rows, worker.infers.io.held_bytes) == (2, 32)
    ended = told(worker, 2, worker.lanes, ran(operation))
    assert "io cache" in result(ended).rows[0].reason
    assert worker.infers.io.held_bytes == 0


def test_inputs_nobody_asks_for_are_dropped_in_time() -> None:
    worker = a_worker(early_ns=s(1))
    told(worker, 0, HOLDER, *a_ship({100: [1.0]}, 5))
    assert worker.wakeup_ns() == s(1)
    ticked(worker, s(1))
    assert len(worker.infers.early) == 0
    assert worker.wakeup_ns() is None


def test_actions_are_bounded() -> None:
    worker = a_worker(actions_max=2)
    for action_id in (1, 2):
        assert not told(worker, 0, CONTROLLER, an_infer(action_id))
    assert result(told(worker, 0, CONTROLLER, an_infer(3))).status == Status.REFUSED


def test_cancel_drops_what_has_not_begun() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, an_infer(1))
    assert result(told(worker, 1, CONTROLLER, Cancel((1, 9)))).status == Status.CANCELLED
    told(worker, 0, CONTROLLER, an_infer(2))
    [operation] = operations(told(worker, 1, HOLDER, *a_ship({100: [1.0]}, 2)))
    [abort] = told(worker, 2, CONTROLLER, Cancel((2,)))
    assert abort == Out(worker.lanes, Abort(2, 0, "exec"))
    ended = told(worker, 3, worker.lanes, not_run(operation, Status.CANCELLED, 3))
    assert result(ended).status == Status.CANCELLED
    assert not answers_of(ended)


def test_where_inputs_have_a_lane_the_operation_goes_through_all_three() -> None:
    worker = a_worker(inline=False)
    told(worker, 0, CONTROLLER, an_infer())
    [put] = operations(told(worker, 1, HOLDER, *a_ship({100: [4.0]})))
    assert put.lane == "input"
    [execute] = operations(told(worker, 2, worker.lanes, Finished(1, "input", Status.OK, 1, 2, 1, staged="here")))
    assert (execute.lane, execute.staged, execute.latest_ns) == ("exec", "here", ms(10))
    [get] = operations(told(worker, 3, worker.lanes, Finished(1, "exec", Status.OK, 2, 3, 1, staged="there")))
    assert (get.lane, get.staged) == ("output", "there")
    outputs = ran(put).outputs
    ended = told(worker, 9, worker.lanes, Finished(1, "output", Status.OK, 3, 4, 1, outputs))
    assert answers_of(ended) == {(SELECTOR, 200): [4.0]}
    assert (result(ended).begin_ns, result(ended).end_ns) == (2, 3), "the times are EXEC's"


def a_load(action_id: int = 1, model: str = MODEL, latest_ns: int = ms(100)) -> Load:
    return Load(action_id, 0, model, 0, latest_ns, ms(5))


def loaded(action_id: int = 1, status: Status = Status.OK) -> Finished:
    return Finished(action_id, "load", status, 5, 10, 5, reason="" if status == Status.OK else "broken")


def test_load_takes_pages_once_and_unload_gives_them_back() -> None:
    worker = a_worker(pages_bytes=2 * PAGE)
    joined(worker)
    [operation] = operations(told(worker, 0, CONTROLLER, a_load()))
    assert (operation.lane, operation.model) == ("load", MODEL)
    assert result(told(worker, 10, worker.lanes, loaded())) == Result(1, Status.OK, 5, 10, 5)
    assert result(told(worker, 11, CONTROLLER, a_load(2))).status == Status.OK
    assert worker.shares[0].pages.free_pages == 1
    outs = told(worker, 12, CONTROLLER, Unload(3, 0, MODEL))
    assert result(outs).status == Status.OK
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert worker.shares[0].pages.free_pages == 2
    assert result(told(worker, 13, CONTROLLER, Unload(4, 0, MODEL))).status == Status.OK


def test_load_without_pages_is_refused_with_the_reason() -> None:
    worker = a_worker(specs=[a_spec(), a_spec("big", weights_bytes=2 * PAGE)], pages_bytes=2 * PAGE)
    told(worker, 0, CONTROLLER, a_load())
    refused = result(told(worker, 1, CONTROLLER, a_load(2, "big/1")))
    assert refused.status == Status.REFUSED, "planned again, not withdrawn"
    assert "needs 2, 1 of 2 are free" in refused.reason
    assert "not served" in result(told(worker, 1, CONTROLLER, a_load(3, "none/1"))).reason


@pytest.mark.parametrize("status", [Status.FAILED, Status.TOO_LATE])
def test_a_load_that_comes_to_nothing_gives_its_pages_back_and_tells_all_who_asked(status: Status) -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, a_load(1))
    assert not told(worker, 0, CONTROLLER, a_load(2))
    assert not told(worker, 0, CONTROLLER, Unload(3, 0, MODEL))
    outs = told(worker, 10, worker.lanes, loaded(status=status))
    results = {out.message.action_id: out.message.status for out in outs if isinstance(out.message, Result)}
    assert results == {1: status, 2: status, 3: Status.OK}
    assert MODEL not in worker.shares[0].pages


def test_unload_during_load_waits_for_it() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, a_load(1))
    told(worker, 1, CONTROLLER, Unload(2, 0, MODEL))
    outs = told(worker, 10, worker.lanes, loaded())
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert MODEL not in worker.shares[0].pages


def test_every_controller_incarnation_hears_what_is_resident_and_running() -> None:
    worker = a_worker()
    [first] = [out.message for out in joined(worker)]
    assert isinstance(first, Register)
    assert (first.shares[0].resident, first.running) == ((), ())
    told(worker, 0, CONTROLLER, a_load(1))
    told(worker, 0, worker.lanes, loaded())
    told(worker, 0, CONTROLLER, an_infer(7))
    told(worker, 0, CONTROLLER, a_load(8, MODEL))
    told(worker, 1, "", Gone(CONTROLLER))
    [out] = joined(worker, "controller/0#b")
    assert out.to == "controller/0#b"
    assert out.message.shares[0].resident == (MODEL,)
    assert out.message.running == (7,)
    assert [report.spec.key for report in out.message.models] == [MODEL]
    assert not told(worker, 1, "", Joined("frontend/0#x"))


def test_a_load_of_a_lost_controller_is_told_to_its_successor_with_its_result() -> None:
    worker = a_worker()
    joined(worker)
    told(worker, 0, CONTROLLER, a_load(5))
    told(worker, 1, "", Gone(CONTROLLER))
    [out] = joined(worker, "controller/0#b")
    assert (out.message.shares[0].resident, out.message.shares[0].loading) == ((), ((MODEL, 5),))
    assert result(told(worker, 10, worker.lanes, loaded(5)), "controller/0#b").action_id == 5
    [out] = joined(worker, "controller/0#b")
    assert (out.message.shares[0].resident, out.message.shares[0].loading) == ((MODEL,), ())


def test_an_action_of_a_lost_controller_still_ends_and_its_successor_hears_of_it() -> None:
    worker = a_worker()
    joined(worker)
    told(worker, 0, CONTROLLER, an_infer())
    told(worker, 1, "", Gone(CONTROLLER))
    joined(worker, "controller/0#b")
    [operation] = operations(told(worker, 2, HOLDER, *a_ship({100: [7.0]})))
    ended = told(worker, 3, worker.lanes, ran(operation))
    assert answers_of(ended) == {(SELECTOR, 200): [7.0]}
    assert result(ended, "controller/0#b").status == Status.OK


def test_ping_is_answered_at_once() -> None:
    worker = a_worker()
    worker.handle(44, CONTROLLER, Ping(40), ())
    assert worker.out == [Out(CONTROLLER, Pong(40, 44))]


def test_scan_reads_one_model_again_and_registers() -> None:
    worker = a_worker(specs=[a_spec(), a_spec("other"), a_spec("sum", "2")])
    joined(worker)
    [scan] = operations(told(worker, 0, CONTROLLER, Scan("sum")))
    assert (scan.lane, scan.model) == ("scan", "sum")
    assert not told(worker, 0, CONTROLLER, Scan("sum")), "one at a time"
    found = Finished(scan.action_id, "scan", Status.OK, 0, 1, models=[a_report(a_spec("sum", "3"))])
    told(worker, 1, worker.lanes, found)
    assert sorted(worker.reports) == ["other/1", "sum/3"]
    [again] = operations(told(worker, 2, CONTROLLER, Scan("sum")))
    outs = told(worker, 3, worker.lanes, not_run(again, Status.FAILED, 3))
    assert [out.to for out in outs] == [CONTROLLER]
    assert sorted(worker.reports) == ["other/1", "sum/3"]


def test_draining_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, an_infer(1))
    told(worker, 0, CONTROLLER, Joined(CONTROLLER, "host"))
    outs = told(worker, 0, CONTROLLER, Drain())
    assert [(out.to, out.message) for out in outs] == [(CONTROLLER, Drain())], "which plans nothing more for it"
    assert not worker.drained()
    assert result(told(worker, 0, CONTROLLER, an_infer(2))).status == Status.REFUSED
    [operation] = operations(told(worker, 2, HOLDER, *a_ship({100: [7.0]})))
    told(worker, 3, worker.lanes, ran(operation))
    assert worker.drained()


def test_a_model_without_batches_gets_its_one_row_as_it_is() -> None:
    spec = a_spec("one", batched=False, batch_sizes=(1,))
    worker = a_worker(specs=[spec])
    told(worker, 0, CONTROLLER, an_infer(model="one/1"))
    [operation] = operations(told(worker, 1, HOLDER, *a_ship({100: [7.0, 8.0]})))
    assert operation.inputs[0][0].shape == (2, 4)
    outputs = [(Tensor("y", "FP32", (3,), 12), np.array([1, 2, 3], np.float32).data.cast("B"))]
    ended = told(worker, 2, worker.lanes, Finished(1, "exec", Status.OK, 1, 2, 1, outputs))
    [out] = [out for out in ended if isinstance(out.message, Outputs)]
    assert np.frombuffer(out.buffers[0], np.float32).tolist() == [1, 2, 3]


def test_rows_of_different_length_do_not_share_a_batch() -> None:
    spec = msgspec.structs.replace(a_spec("text"), inputs=(TensorSpec("x", "FP32", (-1, -1)),))
    worker = a_worker(specs=[spec])
    told(worker, 0, CONTROLLER, an_infer(rows=(1, 1), model="text/1"))
    items = (Shipped(100, (Tensor("x", "FP32", (1, 2), 8),)), Shipped(101, (Tensor("x", "FP32", (1, 3), 12),)))
    [operation] = operations(told(worker, 1, HOLDER, Ship(1, HOLDER, items), [bytes(8), bytes(12)]))
    assert (operation.rows, operation.batch_size, operation.inputs[0][0].shape) == (1, 1, (1, 2))


def test_strings_are_cut_by_row() -> None:
    worker = a_worker()
    told(
        worker,
        0,
        CONTROLLER,
        an_infer(entries=(Row(0, 1, 1, 11, 1), Row(0, 2, 0, 12, 1), Row(0, 3, 1, 13, 1)), batch_size=4),
    )
    told(worker, 1, HOLDER, *a_ship({1: [1.0], 2: [2.0], 3: [3.0]}))
    text = b"".join(len(word).to_bytes(4, "little") + word for word in (b"a", b"", b"ccc"))
    outputs = [(Tensor("y", "BYTES", (3, 1), len(text)), text)]
    ended = told(worker, 2, worker.lanes, Finished(1, "exec", Status.OK, 1, 2, 1, outputs))
    found = {out.to: (bytes(out.buffers[0]), out.message.outputs[0].shape) for out in ended if out.buffers}
    assert found == {SELECTOR: (b"\1\0\0\0a\3\0\0\0ccc", (2, 1)), HOLDER: (b"\0\0\0\0", (1, 1))}


@dataclass
class Piece:
    """One row entry of a random batch and what happens to its input."""

    holder: int
    submitter: int
    rows: int
    fate: str


pieces = st.builds(
    Piece, st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.sampled_from(["comes", "missing", "stays away"])
)


@given(st.lists(pieces, min_size=1, max_size=5), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_every_row_goes_to_its_submitter_and_to_nobody_else(
    batch: list[Piece], infer_last: bool, cancel: bool, random: Any
) -> None:
    """Submitter and holder may be the same address; a value identifies submitter, row entry and row."""
    worker = a_worker()
    joined(worker)
    parties = ("frontend/0#a", "selector/0#a", "frontend/1#b")
    entries = tuple(Row(p.holder, at, p.submitter, 50 + at, p.rows) for at, p in enumerate(batch))
    infer = an_infer(entries=entries, parties=parties, batch_size=a_spec().compiled(sum(p.rows for p in batch)))
    values = {at: [100.0 * at + row for row in range(p.rows)] for at, p in enumerate(batch)}
    messages: list[tuple[str, Any, Any]] = []
    for number, holder in enumerate(parties):
        mine = [at for at, p in enumerate(batch) if p.holder == number]
        missing = tuple(at for at in mine if batch[at].fate == "missing")
        messages.append(
            (holder, *a_ship({at: values[at] for at in mine if batch[at].fate == "comes"}, 1, missing, holder))
        )
    random.shuffle(messages)
    messages.insert(len(messages) if infer_last else 0, (CONTROLLER, infer, ()))
    outs: list[Out] = []
    for sender, message, buffers in messages:
        outs += told(worker, 1, sender, message, buffers)
    if cancel:
        outs += told(worker, 2, CONTROLLER, Cancel((1,)))
    outs += ticked(worker, ms(10) - worker.settings.join_margin_ns)
    for operation in operations(outs):
        outs += told(worker, ms(10), worker.lanes, ran(operation))
    outs += ticked(worker, ms(10))
    assert isinstance(result(outs), Result)
    found = answers_of(outs)
    here = [at for at, p in enumerate(batch) if p.fate == "comes"]
    if not operations(outs):
        assert not found
        return
    assert here
    assert found == {
        (parties[p.submitter], 50 + at): values[at] if p.fate == "comes" else Status.MISSING_INPUT
        for at, p in enumerate(batch)
    }
    assert {row.id for row in result(outs).rows} == {at for at, p in enumerate(batch) if p.fate != "comes"}


def test_outputs_of_neighbouring_rows_are_not_copied() -> None:
    worker = a_worker()
    told(
        worker,
        0,
        CONTROLLER,
        an_infer(entries=(Row(0, 1, 1, 11, 1), Row(0, 2, 1, 12, 1), Row(0, 3, 0, 13, 1)), batch_size=4),
    )
    [operation] = operations(told(worker, 1, HOLDER, *a_ship({1: [1.0], 2: [2.0], 3: [3.0]})))
    finished = ran(operation)
    outs = told(worker, 2, worker.lanes, finished)
    batch = np.frombuffer(finished.outputs[0][1], np.uint8)
    parts = [np.frombuffer(out.buffers[0], np.uint8) for out in outs if out.buffers]
    assert [len(part) for part in parts] == [8, 4]
    assert all(np.shares_memory(batch, part) for part in parts)
    assert not sent(worker, Operation)


def lane_counts(worker: Worker) -> dict[tuple[str, ...], float]:
    """Operations by (lane, status)."""
    return {key[1:]: value for key, value in worker.stats.values.items() if key[0] == "horologe_lane_operations_total"}


def test_each_lane_counts_its_operations_its_work_and_how_long_they_waited() -> None:
    worker = a_worker(inline=False)
    told(worker, 0, CONTROLLER, Load(9, 0, MODEL, 0, ms(50), ms(2)))
    told(worker, ms(3), worker.lanes, Finished(9, "load", Status.OK, ms(1), ms(3)))
    told(worker, ms(3), CONTROLLER, an_infer(window=(ms(4), ms(20))))
    [put_in] = operations(told(worker, ms(3), HOLDER, *a_ship({100: [1.0]})))
    [run] = operations(told(worker, ms(7), worker.lanes, Finished(1, "input", Status.OK, ms(6), ms(7))))
    [put_out] = operations(told(worker, ms(9), worker.lanes, Finished(1, "exec", Status.OK, ms(7), ms(9))))
    told(worker, ms(10), worker.lanes, Finished(1, "output", Status.OK, ms(9) + 500, ms(10)))
    assert (put_in.lane, run.lane, put_out.lane) == ("input", "exec", "output")
    assert lane_counts(worker) == {(lane, "OK"): 1 for lane in ("load", "input", "exec", "output")}
    busy = {key[1]: value for key, value in worker.stats.values.items() if key[0] == "horologe_lane_busy_seconds_total"}
    assert busy == pytest.approx({"load": 0.002, "input": 0.001, "exec": 0.002, "output": 0.0009995})
    waited = {key[1]: one.sum for key, one in worker.stats.histograms.items() if key[0] == "horologe_lane_wait_seconds"}
    assert waited == {"load": ms(1), "input": ms(2), "exec": 0, "output": 500}, "a window that is not open is no wait"
    assert not worker.telemetry


def test_an_operation_that_was_never_run_is_counted_but_was_neither_work_nor_a_wait() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, an_infer(window=(0, ms(1))))
    [operation] = operations(told(worker, 0, HOLDER, *a_ship({100: [1.0]})))
    told(worker, ms(2), worker.lanes, not_run(operation, Status.TOO_LATE, ms(2)))
    assert lane_counts(worker) == {("exec", "TOO_LATE"): 1}
    assert not [key for key in worker.stats.values if key[0] == "horologe_lane_busy_seconds_total"]
    assert not worker.stats.histograms
    assert not worker.telemetry


def test_an_unload_is_counted_by_its_own_name() -> None:
    worker = a_worker()
    told(worker, 0, CONTROLLER, Load(9, 0, MODEL, 0, ms(50), ms(2)))
    told(worker, ms(3), worker.lanes, Finished(9, "load", Status.OK, ms(1), ms(3)))
    told(worker, ms(3), CONTROLLER, Unload(10, 0, MODEL))
    told(worker, ms(4), worker.lanes, Finished(10, "unload", Status.OK, ms(3), ms(4)))
    assert lane_counts(worker) == {("load", "OK"): 1, ("unload", "OK"): 1}
    assert not worker.telemetry
