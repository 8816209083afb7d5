"""Residency: LOAD and UNLOAD, and the reports to successive controllers."""

from __future__ import annotations

import pytest

from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    MODEL,
    PAGE,
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
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Drain,
    Load,
    Ping,
    Pong,
    Register,
    Result,
    Unload,
)
from horologe_gpu_worker.core.lanes import Finished, not_run
from horologe_gpu_worker.core.worker import Worker


def a_load(action_id: int = 1, model: str = MODEL, latest_ns: int = ms(100)) -> Load:
    return Load(action_id, 0, model, 0, latest_ns, ms(5))


def loaded(action_id: int = 1, status: Status = Status.OK) -> Finished:
    return Finished(action_id, "load", status, 5, 10, 5, reason="" if status == Status.OK else "broken")


def test_load_takes_pages_once_and_unload_gives_them_back() -> None:
    worker = a_worker(pages_bytes=2 * PAGE)
    connect_controller(worker)
    [operation] = operations(deliver(worker, 0, CONTROLLER, a_load()))
    assert (operation.lane, operation.model) == ("load", MODEL)
    assert only_result(deliver(worker, 10, worker.lanes, loaded())) == Result(1, Status.OK, 5, 10, 5)
    assert only_result(deliver(worker, 11, CONTROLLER, a_load(2))).status == Status.OK
    assert worker.shares[0].pages.free_pages == 1
    outs = deliver(worker, 12, CONTROLLER, Unload(3, 0, MODEL))
    assert only_result(outs).status == Status.OK
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert worker.shares[0].pages.free_pages == 2
    assert only_result(deliver(worker, 13, CONTROLLER, Unload(4, 0, MODEL))).status == Status.OK


def test_small_models_share_a_page() -> None:
    specs = [a_spec(f"m{number}", weights_bytes=PAGE // 8, shares_pages=True) for number in range(9)]
    worker = a_worker(specs=specs, pages_bytes=PAGE)
    for number in range(8):
        deliver(worker, 0, CONTROLLER, a_load(1 + number, f"m{number}/1"))
    assert worker.shares[0].pages.free_pages == 0
    refused = only_result(deliver(worker, 1, CONTROLLER, a_load(9, "m8/1")))
    assert "needs 0.125, 0 of 1 are free" in refused.reason
    worker.check()


def test_load_without_pages_is_refused_with_the_reason() -> None:
    worker = a_worker(specs=[a_spec(), a_spec("big", weights_bytes=2 * PAGE)], pages_bytes=2 * PAGE)
    deliver(worker, 0, CONTROLLER, a_load())
    refused = only_result(deliver(worker, 1, CONTROLLER, a_load(2, "big/1")))
    assert refused.status == Status.REFUSED, "planned again, not withdrawn"
    assert "needs 2, 1 of 2 are free" in refused.reason
    assert "not served" in only_result(deliver(worker, 1, CONTROLLER, a_load(3, "none/1"))).reason


@pytest.mark.parametrize("status", [Status.FAILED, Status.TOO_LATE])
def test_a_load_that_comes_to_nothing_gives_its_pages_back_and_tells_all_who_asked(status: Status) -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, a_load(1))
    assert not deliver(worker, 0, CONTROLLER, a_load(2))
    assert not deliver(worker, 0, CONTROLLER, Unload(3, 0, MODEL))
    outs = deliver(worker, 10, worker.lanes, loaded(status=status))
    results = {out.message.action_id: out.message.status for out in outs if isinstance(out.message, Result)}
    assert results == {1: status, 2: status, 3: Status.OK}
    assert MODEL not in worker.shares[0].pages


def test_unload_during_load_waits_for_it() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, a_load(1))
    deliver(worker, 1, CONTROLLER, Unload(2, 0, MODEL))
    outs = deliver(worker, 10, worker.lanes, loaded())
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert MODEL not in worker.shares[0].pages


def test_every_controller_incarnation_hears_what_is_resident_and_running() -> None:
    worker = a_worker()
    [first] = [out.message for out in connect_controller(worker)]
    assert isinstance(first, Register)
    assert (first.shares[0].resident, first.running) == ((), ())
    deliver(worker, 0, CONTROLLER, a_load(1))
    deliver(worker, 0, worker.lanes, loaded())
    deliver(worker, 0, CONTROLLER, an_infer(7))
    deliver(worker, 0, CONTROLLER, a_load(8, MODEL))
    deliver(worker, 1, "", PeerDisconnected(CONTROLLER))
    [out] = connect_controller(worker, "controller/0#b")
    assert out.to == "controller/0#b"
    assert out.message.shares[0].resident == (MODEL,)
    assert out.message.running == (7,)
    assert [report.spec.key for report in out.message.models] == [MODEL]
    assert not deliver(worker, 1, "", PeerConnected("frontend/0#x"))


def test_a_load_of_a_lost_controller_is_told_to_its_successor_with_its_result() -> None:
    worker = a_worker()
    connect_controller(worker)
    deliver(worker, 0, CONTROLLER, a_load(5))
    deliver(worker, 1, "", PeerDisconnected(CONTROLLER))
    [out] = connect_controller(worker, "controller/0#b")
    assert (out.message.shares[0].resident, out.message.shares[0].loading) == ((), ((MODEL, 5),))
    assert only_result(deliver(worker, 10, worker.lanes, loaded(5)), "controller/0#b").action_id == 5
    [out] = connect_controller(worker, "controller/0#b")
    assert (out.message.shares[0].resident, out.message.shares[0].loading) == ((MODEL,), ())


def test_an_action_of_a_lost_controller_still_ends_and_its_successor_hears_of_it() -> None:
    worker = a_worker()
    connect_controller(worker)
    deliver(worker, 0, CONTROLLER, an_infer())
    deliver(worker, 1, "", PeerDisconnected(CONTROLLER))
    connect_controller(worker, "controller/0#b")
    [operation] = operations(deliver(worker, 2, HOLDER, *a_ship({100: [7.0]})))
    ended = deliver(worker, 3, worker.lanes, run_operation(operation))
    assert responses_by_row(ended) == {(SELECTOR, 200): [7.0]}
    assert only_result(ended, "controller/0#b").status == Status.OK


def test_ping_is_answered_at_once() -> None:
    worker = a_worker()
    worker.handle(44, CONTROLLER, Ping(40), ())
    assert worker.out == [Out(CONTROLLER, Pong(40, 44))]


def test_a_draining_worker_runs_what_its_controllers_have_sent_and_refuses_the_rest() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, PeerConnected(CONTROLLER, "host"))
    deliver(worker, 0, CONTROLLER, an_infer(1))
    worker.drain()
    assert [(out.to, out.message) for out in tick_worker(worker, 0)] == [(CONTROLLER, Drain())]
    assert not deliver(worker, 0, CONTROLLER, an_infer(2)), "it was sent before the Drain arrived there"
    deliver(worker, 0, CONTROLLER, Drain())
    assert only_result(deliver(worker, 0, CONTROLLER, an_infer(3))).status == Status.REFUSED
    for action_id, value in ((1, 7.0), (2, 8.0)):
        assert not worker.drained()
        [operation] = operations(deliver(worker, 2, HOLDER, *a_ship({100: [value]}, action_id)))
        deliver(worker, 3, worker.lanes, run_operation(operation))
    assert worker.drained()


def test_a_draining_worker_waits_for_each_controller() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, PeerConnected(CONTROLLER, "host"))
    worker.drain()
    assert not worker.drained()
    deliver(worker, 0, CONTROLLER, PeerDisconnected(CONTROLLER))
    outs = deliver(worker, 0, "controller/0#b", PeerConnected("controller/0#b", "host"))
    assert [type(out.message) for out in outs] == [Register, Drain], "the next controller plans nothing for it"
    assert not worker.drained()
    deliver(worker, 0, "controller/0#b", Drain())
    assert worker.drained()


def lane_counts(worker: Worker) -> dict[tuple[str, ...], float]:
    """Return the number of operations by (lane, status)."""
    return {
        key[1:]: value
        for key, value in worker.stats.values.items()
        if value and key[0] == "horologe_lane_operations_total"
    }


def test_each_lane_counts_its_operations_its_work_and_how_long_they_waited() -> None:
    worker = a_worker(inline=False)
    deliver(worker, 0, CONTROLLER, Load(9, 0, MODEL, 0, ms(50), ms(2)))
    deliver(worker, ms(3), worker.lanes, Finished(9, "load", Status.OK, ms(1), ms(3)))
    deliver(worker, ms(3), CONTROLLER, an_infer(window=(ms(4), ms(20))))
    [put_in] = operations(deliver(worker, ms(3), HOLDER, *a_ship({100: [1.0]})))
    [run] = operations(deliver(worker, ms(7), worker.lanes, Finished(1, "input", Status.OK, ms(6), ms(7))))
    [put_out] = operations(deliver(worker, ms(9), worker.lanes, Finished(1, "exec", Status.OK, ms(7), ms(9))))
    deliver(worker, ms(10), worker.lanes, Finished(1, "output", Status.OK, ms(9) + 500, ms(10)))
    assert (put_in.lane, run.lane, put_out.lane) == ("input", "exec", "output")
    assert lane_counts(worker) == {(lane, "OK"): 1 for lane in ("load", "input", "exec", "output")}
    busy = {key[1]: value for key, value in worker.stats.values.items() if key[0] == "horologe_lane_busy_seconds_total"}
    assert busy == pytest.approx({"load": 0.002, "input": 0.001, "exec": 0.002, "output": 0.0009995})
    waited = {
        key[1]: histogram.sum
        for key, histogram in worker.stats.histograms.items()
        if key[0] == "horologe_lane_wait_seconds"
    }
    assert waited == {"load": ms(1), "input": ms(2), "exec": 0, "output": 500}, "a window that is not open is no wait"
    assert not worker.lane_metrics


def test_an_operation_that_was_never_run_is_counted_but_was_neither_work_nor_a_wait() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, an_infer(window=(0, ms(1))))
    [operation] = operations(deliver(worker, 0, HOLDER, *a_ship({100: [1.0]})))
    deliver(worker, ms(2), worker.lanes, not_run(operation, Status.TOO_LATE, ms(2)))
    assert lane_counts(worker) == {("exec", "TOO_LATE"): 1}
    assert not [key for key in worker.stats.values if key[0] == "horologe_lane_busy_seconds_total"]
    assert not worker.stats.histograms
    assert not worker.lane_metrics


def test_an_unload_is_counted_by_its_own_name() -> None:
    worker = a_worker()
    deliver(worker, 0, CONTROLLER, Load(9, 0, MODEL, 0, ms(50), ms(2)))
    deliver(worker, ms(3), worker.lanes, Finished(9, "load", Status.OK, ms(1), ms(3)))
    deliver(worker, ms(3), CONTROLLER, Unload(10, 0, MODEL))
    deliver(worker, ms(4), worker.lanes, Finished(10, "unload", Status.OK, ms(3), ms(4)))
    assert lane_counts(worker) == {("load", "OK"): 1, ("unload", "OK"): 1}
    assert not worker.lane_metrics
