"""Residency: LOAD and UNLOAD, and the reports to successive controllers."""

from __future__ import annotations

import pytest

from gpu_worker.worker_builders import (
    CONTROLLER,
    MODEL,
    PAGE,
    SELECTOR,
    WorkerHarness,
    only_result,
    operations,
    responses_by_row,
)
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Drain, Load, Ping, Pong, Register, Result, Unload
from horologe_gpu_worker.core.lanes import Finished, not_run

SUCCESSOR = "controller/0#b"


@pytest.fixture
def worker() -> WorkerHarness:
    """A worker with a controller and two pages."""
    worker = WorkerHarness(pages_bytes=2 * PAGE)
    worker.connect()
    return worker


def free_pages(worker: WorkerHarness) -> float:
    return worker.core.shares[0].pages.free_pages


def test_load_takes_pages_once_and_unload_gives_them_back(worker: WorkerHarness) -> None:
    [operation] = operations(worker.load())
    assert (operation.lane, operation.model) == ("load", MODEL)
    assert only_result(worker.finish_load()) == Result(1, Status.OK, 5, 10, 5)
    assert only_result(worker.load(2)).status == Status.OK
    assert free_pages(worker) == 1
    outs = worker.unload(3)
    assert only_result(outs).status == Status.OK
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert free_pages(worker) == 2
    assert only_result(worker.unload(4)).status == Status.OK


def test_small_models_share_a_page() -> None:
    specs = [a_spec(f"m{number}", weights_bytes=PAGE // 8, shares_pages=True) for number in range(9)]
    worker = WorkerHarness(specs=specs, pages_bytes=PAGE)
    for number in range(8):
        worker.load(1 + number, f"m{number}/1")
    assert free_pages(worker) == 0
    assert "needs 0.125, 0 of 1 are free" in only_result(worker.load(9, "m8/1")).reason


def test_load_without_pages_is_refused_with_the_reason() -> None:
    worker = WorkerHarness(specs=[a_spec(), a_spec("big", weights_bytes=2 * PAGE)], pages_bytes=2 * PAGE)
    worker.load()
    refused = only_result(worker.load(2, "big/1"))
    assert refused.status == Status.REFUSED, "planned again, not withdrawn"
    assert "needs 2, 1 of 2 are free" in refused.reason
    assert "not served" in only_result(worker.load(3, "none/1")).reason


@pytest.mark.parametrize("status", [Status.FAILED, Status.TOO_LATE])
def test_a_load_that_comes_to_nothing_gives_its_pages_back_and_tells_all_who_asked(
    worker: WorkerHarness, status: Status
) -> None:
    worker.load(1)
    assert not worker.load(2)
    assert not worker.unload(3)
    outs = worker.finish_load(status=status)
    results = {out.message.action_id: out.message.status for out in outs if isinstance(out.message, Result)}
    assert results == {1: status, 2: status, 3: Status.OK}
    assert free_pages(worker) == 2


def test_unload_during_load_waits_for_it(worker: WorkerHarness) -> None:
    worker.load(1)
    worker.unload(2)
    assert [operation.lane for operation in operations(worker.finish_load())] == ["unload"]
    assert free_pages(worker) == 2


def crash(worker: WorkerHarness, action_id: int = 7) -> list[Out]:
    """End the EXEC of an action with the end of its model's process."""
    failed = Finished(action_id, "exec", Status.FAILED, 1, 2, 1, reason="ended", failure=(MODEL, "crash"))
    return worker.finish(failed)


def test_a_model_whose_process_ends_is_unloaded_and_every_controller_gets_an_unload(worker: WorkerHarness) -> None:
    worker.connect(SUCCESSOR)
    worker.load()
    worker.finish_load()
    worker.start({100: [1.0]}, 7)
    outs = crash(worker)
    assert only_result(outs).status == Status.FAILED
    assert [(operation.lane, operation.model) for operation in operations(outs)] == [("unload", MODEL)]
    unloads = [(out.to, out.message.share, out.message.model) for out in outs if isinstance(out.message, Unload)]
    assert unloads == [(CONTROLLER, 0, MODEL), (SUCCESSOR, 0, MODEL)]
    assert free_pages(worker) == 2
    assert [operation.lane for operation in operations(worker.load(8))] == ["load"]


def test_the_end_of_an_earlier_process_leaves_a_load_alone(worker: WorkerHarness) -> None:
    worker.load()
    worker.finish_load()
    worker.start({100: [1.0]}, 7)
    worker.unload(8)
    worker.load(9)
    outs = crash(worker)
    assert not operations(outs)
    assert not [out for out in outs if isinstance(out.message, Unload)]
    assert free_pages(worker) == 1


def test_a_failed_batch_unloads_nothing(worker: WorkerHarness) -> None:
    worker.load()
    worker.finish_load()
    worker.start({100: [1.0]}, 7)
    failed = Finished(7, "exec", Status.FAILED, 1, 2, 1, reason="text", failure=(MODEL, "error"))
    assert not operations(worker.finish(failed))
    assert free_pages(worker) == 1


def test_every_controller_incarnation_hears_what_is_resident_and_running() -> None:
    worker = WorkerHarness()
    [first] = [out.message for out in worker.connect()]
    assert isinstance(first, Register)
    assert (first.shares[0].resident, first.running) == ((), ())
    worker.load(1)
    worker.finish_load()
    worker.infer(7)
    worker.load(8)
    worker.disconnect()
    [out] = worker.connect(SUCCESSOR)
    assert out.to == SUCCESSOR
    assert out.message.shares[0].resident == (MODEL,)
    assert out.message.running == (7,)
    assert [report.spec.key for report in out.message.models] == [MODEL]
    assert not worker.send(PeerConnected("frontend/0#x"), sender="")


def test_a_load_of_a_lost_controller_is_told_to_its_successor_with_its_result(worker: WorkerHarness) -> None:
    worker.load(5)
    worker.disconnect()
    [out] = worker.connect(SUCCESSOR)
    assert (out.message.shares[0].resident, out.message.shares[0].loading) == ((), ((MODEL, 5),))
    assert only_result(worker.finish_load(5), SUCCESSOR).action_id == 5
    [out] = worker.connect(SUCCESSOR)
    assert (out.message.shares[0].resident, out.message.shares[0].loading) == ((MODEL,), ())


def test_an_action_of_a_lost_controller_still_ends_and_its_successor_hears_of_it(worker: WorkerHarness) -> None:
    worker.infer()
    worker.disconnect()
    worker.connect(SUCCESSOR)
    [operation] = operations(worker.ship({100: [7.0]}))
    ended = worker.run(operation)
    assert responses_by_row(ended) == {(SELECTOR, 200): [7.0]}
    assert only_result(ended, SUCCESSOR).status == Status.OK


def test_ping_is_answered_at_once(worker: WorkerHarness) -> None:
    worker.core.handle(44, CONTROLLER, Ping(40), ())
    assert worker.core.out == [Out(CONTROLLER, Pong(40, 44))]


def test_a_draining_worker_runs_what_its_controllers_have_sent_and_refuses_the_rest(worker: WorkerHarness) -> None:
    worker.infer(1)
    worker.core.drain()
    assert [(out.to, out.message) for out in worker.advance(0)] == [(CONTROLLER, Drain())]
    assert not worker.infer(2), "it was sent before the Drain arrived there"
    worker.send(Drain())
    assert only_result(worker.infer(3)).status == Status.REFUSED
    for action_id, value in ((1, 7.0), (2, 8.0)):
        assert not worker.core.drained()
        [operation] = operations(worker.ship({100: [value]}, action_id))
        worker.run(operation)
    assert worker.core.drained()


def test_a_draining_worker_waits_for_each_controller(worker: WorkerHarness) -> None:
    worker.core.drain()
    assert not worker.core.drained()
    worker.disconnect()
    outs = worker.connect(SUCCESSOR)
    assert [type(out.message) for out in outs[-2:]] == [Register, Drain], "the next controller plans nothing for it"
    assert not worker.core.drained()
    worker.send(Drain(), sender=SUCCESSOR)
    assert worker.core.drained()


def lane_counts(worker: WorkerHarness) -> dict[tuple[str, ...], float]:
    """Return the number of operations by (lane, status), and check that no lane holds one."""
    assert not worker.core.lane_metrics
    values = worker.core.stats.values
    return {key[1:]: value for key, value in values.items() if value and key[0] == "horologe_lane_operations_total"}


def test_each_lane_counts_its_operations_its_work_and_how_long_they_waited() -> None:
    worker = WorkerHarness(inline=False)
    worker.send(Load(9, 0, MODEL, 0, ms(50), ms(2)))
    worker.finish(Finished(9, "load", Status.OK, ms(1), ms(3)))
    worker.infer(now_ns=ms(3), window=(ms(4), ms(20)))
    [put_in] = operations(worker.ship({100: [1.0]}, now_ns=ms(3)))
    [run] = operations(worker.finish(Finished(1, "input", Status.OK, ms(6), ms(7)), ms(7)))
    [put_out] = operations(worker.finish(Finished(1, "exec", Status.OK, ms(7), ms(9)), ms(9)))
    worker.finish(Finished(1, "output", Status.OK, ms(9) + 500, ms(10)), ms(10))
    assert (put_in.lane, run.lane, put_out.lane) == ("input", "exec", "output")
    assert lane_counts(worker) == {(lane, "OK"): 1 for lane in ("load", "input", "exec", "output")}
    stats = worker.core.stats
    busy = {key[1]: value for key, value in stats.values.items() if key[0] == "horologe_lane_busy_seconds_total"}
    assert busy == pytest.approx({"load": 0.002, "input": 0.001, "exec": 0.002, "output": 0.0009995})
    waits = {key[1]: wait.sum for key, wait in stats.histograms.items() if key[0] == "horologe_lane_wait_seconds"}
    assert waits == {"load": ms(1), "input": ms(2), "exec": 0, "output": 500}, "a window that is not open is no wait"


def test_an_operation_that_was_never_run_is_counted_but_was_neither_work_nor_a_wait(worker: WorkerHarness) -> None:
    operation = worker.start({100: [1.0]}, window=(0, ms(1)))
    worker.finish(not_run(operation, Status.TOO_LATE, ms(2)))
    assert lane_counts(worker) == {("exec", "TOO_LATE"): 1}
    assert not [key for key in worker.core.stats.values if key[0] == "horologe_lane_busy_seconds_total"]
    assert not worker.core.stats.histograms


def test_an_unload_is_counted_by_its_own_name(worker: WorkerHarness) -> None:
    worker.load(9)
    worker.finish_load(9)
    worker.unload(10)
    worker.finish(Finished(10, "unload", Status.OK, ms(3), ms(4)))
    assert lane_counts(worker) == {("load", "OK"): 1, ("unload", "OK"): 1}
