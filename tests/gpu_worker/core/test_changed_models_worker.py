"""Changed models at the worker: scans, replacement of loaded copies, and what is reported when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpu_worker.worker_builders import (
    MODEL,
    PAGE,
    WorkerHarness,
    only_result,
    operations,
    registers,
    run_operation,
)
from harness.builders import a_report, a_spec
from horologe_common.clock import s
from horologe_common.status import Status
from horologe_common.wire import ModelReport, Outputs, Register, Result, Scan
from horologe_gpu_worker.core.lanes import Finished, LaneOperation, not_run

if TYPE_CHECKING:
    from horologe_common.core.protocol import Out

OLD = a_spec(content_hash="old")
NEW = a_spec(content_hash="new")


def a_serving_worker(loaded: bool = True, **settings: Any) -> WorkerHarness:
    """Return a worker that serves the old content to a controller."""
    worker = WorkerHarness(specs=[OLD], **settings)
    worker.connect()
    for share in range(worker.core.settings.shares if loaded else 0):
        worker.load(900 + share, share=share)
        worker.finish_load(900 + share)
    return worker


def start_scan(worker: WorkerHarness, number: int = 1) -> LaneOperation:
    [scan] = operations(worker.send(Scan("sum", number)))
    return scan


def finish_scan(worker: WorkerHarness, scan: LaneOperation, *reports: ModelReport) -> list[Out]:
    return worker.finish(Finished(scan.action_id, "scan", Status.OK, 1, 2, models=reports))


def finish(worker: WorkerHarness, operation: LaneOperation, status: Status = Status.OK) -> list[Out]:
    return worker.finish(Finished(operation.action_id, operation.lane, status, 2, 3))


def test_a_scan_reads_the_versions_of_one_model_and_its_register_names_it() -> None:
    worker = WorkerHarness(specs=[a_spec(), a_spec("other"), a_spec("sum", "2")])
    worker.connect()
    scan = start_scan(worker, 7)
    assert (scan.lane, scan.model) == ("scan", "sum")
    [register] = registers(finish_scan(worker, scan, a_report(a_spec("sum", "3"))))
    assert (sorted(worker.core.models.reports), register.scans) == (["other/1", "sum/3"], (7,))


def test_a_failed_scan_changes_nothing_and_says_why() -> None:
    worker = a_serving_worker()
    scan = start_scan(worker)
    [register] = registers(worker.finish(not_run(scan, Status.FAILED, 3, "disk on fire")))
    assert (register.models[0].spec, register.models[0].reason) == (OLD, "disk on fire")
    assert register.models[0].profile is not None


def test_a_scan_that_runs_already_answers_no_later_scan() -> None:
    worker = a_serving_worker(loaded=False)
    scan = start_scan(worker, 1)
    assert not worker.send(Scan("sum", 2))
    assert not worker.send(Scan("sum", 3))
    outs = finish_scan(worker, scan, a_report(OLD))
    assert [register.scans for register in registers(outs)] == [(1,)]
    [again] = operations(outs)
    assert [register.scans for register in registers(finish_scan(worker, again, a_report(NEW)))] == [(2, 3)]


def test_each_controller_gets_the_ids_of_its_own_scans() -> None:
    worker = a_serving_worker(loaded=False)
    worker.connect("controller/0#b")
    scan = start_scan(worker, 1)
    worker.disconnect()
    [register] = registers(finish_scan(worker, scan, a_report(NEW)))
    assert register.scans == ()


def test_a_model_that_is_not_loaded_is_reported_at_once() -> None:
    worker = a_serving_worker(loaded=False)
    [register] = registers(finish_scan(worker, start_scan(worker), a_report(NEW)))
    assert register.models[0].spec == NEW


def test_every_loaded_copy_is_replaced_before_the_new_content_is_reported() -> None:
    worker = a_serving_worker(shares=2)
    first, second = operations(finish_scan(worker, start_scan(worker), a_report(NEW)))
    assert {(op.lane, op.model, op.share) for op in (first, second)} == {("replace", MODEL, 0), ("replace", MODEL, 1)}
    assert worker.core.models.reports[MODEL].spec == OLD, "it serves meanwhile"
    assert not finish(worker, first)
    [register] = registers(finish(worker, second))
    assert (register.models[0].spec, register.shares[0].resident) == (NEW, (MODEL,))


def test_an_unchanged_model_is_not_replaced() -> None:
    worker = a_serving_worker()
    outs = finish_scan(worker, start_scan(worker), a_report(OLD))
    assert (operations(outs), len(registers(outs))) == ([], 1)


def test_the_new_content_is_reported_after_the_results_of_the_old_one() -> None:
    worker = a_serving_worker()
    worker.infer()
    [running] = operations(worker.ship({100: [7.0]}))
    [replace] = operations(finish_scan(worker, start_scan(worker), a_report(NEW)))
    assert not finish(worker, replace), "the lane may have run it on the old content"
    done = msgspec.structs.replace(run_operation(running), content_hash="old")
    messages = [out.message for out in worker.finish(done)]
    assert [type(message) for message in messages] == [Result, Outputs, Register]
    assert messages[1].content_hash == "old"


def test_requests_that_wait_for_inputs_do_not_delay_the_report() -> None:
    worker = a_serving_worker()
    worker.infer()
    [replace] = operations(finish_scan(worker, start_scan(worker), a_report(NEW)))
    assert len(registers(finish(worker, replace))) == 1


def test_a_content_that_needs_more_pages_is_loaded_anew() -> None:
    worker = a_serving_worker(pages_bytes=4 * PAGE)
    larger = a_spec(content_hash="new", weights_bytes=2 * PAGE)
    outs = finish_scan(worker, start_scan(worker), a_report(larger))
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert [register.shares[0].resident for register in registers(outs)] == [()]
    assert worker.core.shares[0].pages.free_pages == 4


def test_a_content_that_needs_fewer_pages_frees_the_rest() -> None:
    worker = WorkerHarness(specs=[a_spec(content_hash="old", weights_bytes=3 * PAGE)], pages_bytes=4 * PAGE)
    worker.connect()
    worker.load(9)
    worker.finish_load(9)
    [replace] = operations(finish_scan(worker, start_scan(worker), a_report(NEW)))
    assert worker.core.shares[0].pages.free_pages == 1
    finish(worker, replace)
    assert worker.core.shares[0].pages.free_pages == 3


def test_a_content_that_cannot_be_opened_beside_the_old_one_is_loaded_anew() -> None:
    worker = a_serving_worker()
    [replace] = operations(finish_scan(worker, start_scan(worker), a_report(NEW)))
    outs = finish(worker, replace, Status.FAILED)
    assert [operation.lane for operation in operations(outs)] == ["unload"]
    assert [(register.shares[0].resident, register.models[0].spec) for register in registers(outs)] == [((), NEW)]


def test_a_broken_content_leaves_the_loaded_one_and_says_why() -> None:
    worker = a_serving_worker()
    broken = ModelReport(NEW, None, "model.py: SyntaxError")
    outs = finish_scan(worker, start_scan(worker), broken)
    assert not operations(outs)
    [report] = registers(outs)[0].models
    assert (report.spec, report.profile is None, report.reason) == (OLD, False, "model.py: SyntaxError")
    mended = finish_scan(worker, start_scan(worker, 2), a_report(NEW))
    assert [operation.lane for operation in operations(mended)] == ["replace"]


def test_a_broken_content_makes_a_model_unavailable_that_is_not_loaded() -> None:
    worker = a_serving_worker(loaded=False)
    [register] = registers(finish_scan(worker, start_scan(worker), ModelReport(NEW, None, "broken")))
    assert (register.models[0].profile, register.models[0].reason) == (None, "broken")


def test_a_load_in_progress_is_replaced_after_its_end() -> None:
    worker = a_serving_worker(loaded=False)
    [load] = operations(worker.load(9))
    assert not finish_scan(worker, start_scan(worker), a_report(NEW))
    outs = finish(worker, load)
    assert [operation.lane for operation in operations(outs)] == ["replace"]
    assert only_result(outs).status == Status.OK
    assert len(registers(finish(worker, operations(outs)[0]))) == 1


def test_a_load_during_a_replacement_takes_the_pages_of_the_new_content() -> None:
    worker = a_serving_worker(pages_bytes=4 * PAGE)
    smaller = a_spec(content_hash="new", weights_bytes=1)
    [replace] = operations(finish_scan(worker, start_scan(worker), a_report(smaller)))
    worker.unload(1010)
    assert worker.core.shares[0].pages.free_pages == 4
    [load] = operations(worker.load(1011))
    assert len(registers(finish(worker, replace))) == 1
    finish(worker, load)
    assert worker.core.shares[0].pages.held == {MODEL: smaller.pages}


def test_a_model_that_is_gone_from_the_repository_serves_until_it_is_unloaded() -> None:
    worker = a_serving_worker()
    [register] = registers(finish_scan(worker, start_scan(worker)))
    [report] = register.models
    assert (report.spec, report.retired) == (OLD, True)
    assert report.reason, "no LOAD of it can succeed"
    worker.unload(1012)
    [gone] = registers(worker.advance(s(1)))
    assert gone.models == ()


def test_a_model_that_no_share_holds_is_gone_at_once() -> None:
    worker = a_serving_worker(loaded=False)
    [register] = registers(finish_scan(worker, start_scan(worker)))
    assert register.models == ()
