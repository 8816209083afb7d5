"""A worker that registers before it has read its models, and reports each as its state changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpu_worker.worker_builders import WorkerHarness, only_result, operations, registers
from harness.builders import a_report, a_spec
from horologe_common.clock import ms, s
from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire import ModelReport, Scan
from horologe_gpu_worker.core.lanes import Finished, LaneOperation, VersionScanned, not_run
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Out


def waiting(name: str, version: str = "1", loading: str = "waiting") -> ModelReport:
    return ModelReport(ModelSpec(name, version, "", (), ()), None, loading=loading)


def a_starting_worker(*reports: ModelReport) -> tuple[WorkerHarness, dict[str, LaneOperation]]:
    """Return a worker at its first tick and its scans by the name of the model."""
    worker = WorkerHarness()
    worker.core = Worker("worker/0#w", WorkerSettings(), reports, lambda _: True)
    scans = {operation.model: operation for operation in operations(worker.advance(0))}
    return worker, scans


def scanned(worker: WorkerHarness, scan: LaneOperation, report: ModelReport, now_ns: int = 1) -> list[Out]:
    return worker.send(VersionScanned(scan.action_id, report), now_ns, worker.core.lanes)


def finish(worker: WorkerHarness, scan: LaneOperation, *reports: ModelReport, now_ns: int = 2) -> list[Out]:
    return worker.finish(Finished(scan.action_id, "scan", Status.OK, 1, 2, models=reports), now_ns)


def states(outs: Sequence[Out]) -> dict[str, str]:
    """Return `READY`, the progress or the reason of each model in the only Register; empty without one."""
    assert len(registers(outs)) <= 1
    reports = [report for register in registers(outs) for report in register.models]
    return {report.spec.key: "READY" if report.profile else report.loading or report.reason for report in reports}


def test_registers_at_once_and_scans_every_model_once() -> None:
    worker, scans = a_starting_worker(waiting("sum"), waiting("sum", "2"), waiting("other"))
    assert list(scans) == ["sum", "other"]
    outs = worker.connect()
    assert states(outs) == {"sum/1": "waiting", "sum/2": "waiting", "other/1": "waiting"}
    assert not operations(outs)


def test_each_version_is_reported_as_its_state_changes() -> None:
    worker, scans = a_starting_worker(waiting("sum"), waiting("sum", "2"))
    worker.connect()
    assert states(scanned(worker, scans["sum"], waiting("sum", loading="measuring"), s(1)))["sum/1"] == "measuring"
    outs = scanned(worker, scans["sum"], a_report(a_spec()), s(2))
    assert states(outs) == {"sum/1": "READY", "sum/2": "waiting"}
    failed = ModelReport(waiting("sum", "2").spec, None, "broken")
    assert states(finish(worker, scans["sum"], a_report(a_spec()), failed, now_ns=s(3)))["sum/2"] == "broken"


def test_a_model_is_loaded_while_others_are_being_read() -> None:
    worker, scans = a_starting_worker(waiting("sum"), waiting("hang"))
    worker.connect()
    scanned(worker, scans["sum"], a_report(a_spec()))
    [load] = operations(worker.load(1, "sum/1"))
    assert (load.lane, load.model) == ("load", "sum/1")
    refused = only_result(worker.load(2, "hang/1"))
    assert refused.status == Status.FAILED


def test_changes_that_nobody_requested_are_announced_together() -> None:
    worker, scans = a_starting_worker(*(waiting(f"m{number}") for number in range(100)))
    worker.connect()
    count = 0
    for number in range(100):
        outs = scanned(worker, scans[f"m{number}"], a_report(a_spec(f"m{number}")), ms(number))
        count += bool(states(outs))
    assert 1 <= count <= 3
    due_ns = worker.core.wakeup_ns()
    assert due_ns is not None
    assert set(states(worker.advance(due_ns)).values()) == {"READY"}
    assert worker.core.wakeup_ns() is None


def test_a_load_of_another_model_does_not_wait_for_one_that_hangs() -> None:
    worker, scans = a_starting_worker(waiting("hang"))
    worker.connect()
    [scan] = operations(worker.send(Scan("fine", 7)))
    outs = finish(worker, scan, a_report(a_spec("fine")))
    assert states(outs) == {"hang/1": "waiting", "fine/1": "READY"}
    assert [register.scans for register in registers(outs)] == [(7,)]
    assert scans["hang"].action_id != scan.action_id


def test_a_load_of_a_model_that_is_being_read_waits_for_a_scan_of_its_own() -> None:
    worker, scans = a_starting_worker(waiting("slow"))
    worker.connect()
    assert not operations(worker.send(Scan("slow", 7)))
    outs = finish(worker, scans["slow"], a_report(a_spec("slow")))
    [again] = operations(outs)
    outs = finish(worker, again, a_report(a_spec("slow")), now_ns=s(1))
    assert [register.scans for register in registers(outs)] == [(7,)]


def test_a_new_model_is_loading_while_it_is_read_for_the_first_time() -> None:
    worker, _ = a_starting_worker()
    worker.connect()
    [scan] = operations(worker.send(Scan("new", 7)))
    assert states(scanned(worker, scan, waiting("new", loading="loading"), s(1))) == {"new/1": "loading"}


def test_a_served_model_is_not_loading_while_it_is_read_again() -> None:
    worker, _ = a_starting_worker(a_report(a_spec()))
    worker.connect()
    [scan] = operations(worker.send(Scan("sum", 7)))
    assert not scanned(worker, scan, waiting("sum", loading="loading"), s(1))
    assert not scanned(worker, scan, a_report(a_spec(content_hash="new")), s(2)), "its copies are replaced first"
    assert worker.core.models.reports["sum/1"].spec == a_spec()


def test_a_model_that_failed_is_loading_while_it_is_read_again_and_keeps_its_signature() -> None:
    failed = ModelReport(a_spec(), None, "broken")
    worker, _ = a_starting_worker(failed)
    worker.connect()
    [scan] = operations(worker.send(Scan("sum", 7)))
    assert states(scanned(worker, scan, waiting("sum", loading="loading"), s(1))) == {"sum/1": "loading"}
    assert worker.core.models.reports["sum/1"].spec == a_spec()


def test_a_scan_that_fails_ends_the_loading_with_its_reason() -> None:
    worker, scans = a_starting_worker(waiting("sum"))
    worker.connect()
    outs = worker.finish(not_run(scans["sum"], Status.FAILED, 3, "disk on fire"))
    assert states(outs) == {"sum/1": "disk on fire"}


def test_messages_of_a_scan_that_has_ended_and_of_strangers_are_ignored() -> None:
    worker, scans = a_starting_worker(waiting("sum"))
    worker.connect()
    worker.send(VersionScanned(scans["sum"].action_id, a_report(a_spec())))
    assert worker.core.models.reports["sum/1"].profile is None
    finish(worker, scans["sum"])
    assert not worker.core.models.reports
    scanned(worker, scans["sum"], a_report(a_spec()))
    scanned(worker, msgspec.structs.replace(scans["sum"], action_id=5), a_report(a_spec()))
    assert not worker.core.models.reports
