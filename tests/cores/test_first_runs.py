"""A model that fails on made-up inputs is served, and measured by its first requests: worker and controller cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from controller.controller_builders import SELECTOR, WORKER, a_controller, finish, submit
from gpu_worker.worker_builders import CONTROLLER, HOLDER, a_ship, an_infer, connect_controller, deliver, operations
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out
from horologe_common.models import Profile
from horologe_common.status import Status
from horologe_common.wire import Admit, Cancel, Infer, ModelReport, Models, Outcome, Register, Scan, Share
from horologe_gpu_worker.core.lanes import Finished
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.repository.warm_up import first_estimate
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTE = "not measured yet: failed on made-up inputs: no zeros"
SPEC = a_spec()


def unmeasured(spec: Any = SPEC) -> ModelReport:
    return ModelReport(spec, first_estimate(spec, ms(5)), note=NOTE)


# worker


def a_worker(*reports: ModelReport) -> Worker:
    worker = Worker("worker/0#w", WorkerSettings(), reports or (unmeasured(),), lambda _: True)
    connect_controller(worker)
    return worker


def run_batch(worker: Worker, number: int, size: int, took_ns: int, status: Status = Status.OK) -> list[Out]:
    deliver(worker, 0, CONTROLLER, an_infer(number, (1,), size, window=(0, s(100))))
    [operation] = operations(deliver(worker, 0, HOLDER, *a_ship({100: [1.0]}, number)))
    finished = Finished(operation.action_id, "exec", status, 1, 1 + took_ns, reason="" if status == Status.OK else "no")
    return deliver(worker, 1 + took_ns, worker.lanes, finished)


def registers(outs: Sequence[Out]) -> list[Register]:
    return [out.message for out in outs if isinstance(out.message, Register)]


def test_enough_batches_replace_the_first_estimate() -> None:
    worker = a_worker()
    for number in range(1, 5):
        assert not registers(run_batch(worker, number, 2, ms(40 if number > 1 else 900)))
    assert worker.models.reports[SPEC.key].note == NOTE
    [register] = registers(run_batch(worker, 5, 2, ms(50)))
    [report] = register.models
    assert (report.note, register.scans) == ("", ())
    assert report.profile == Profile({1: ms(40), 2: ms(40), 4: ms(80), 8: ms(160), 16: ms(320)}, ms(5))


def test_the_first_slow_batch_does_not_count() -> None:
    worker = a_worker()
    outs = [run_batch(worker, number, 1, ms(5000 if number == 1 else 7)) for number in range(1, 6)]
    [register] = registers(outs[-1])
    assert register.models[0].profile is not None
    assert register.models[0].profile.exec_ns[1] == ms(7)


def test_batches_that_fail_do_not_count() -> None:
    worker = a_worker()
    for number in range(1, 20):
        assert not registers(run_batch(worker, number, 1, ms(5), Status.FAILED))
    assert worker.models.reports[SPEC.key].note == NOTE


def test_a_measured_model_is_never_registered_again() -> None:
    worker = a_worker(a_report())
    assert not any(registers(run_batch(worker, number, 1, ms(5))) for number in range(1, 12))


def scan(worker: Worker, *reports: ModelReport) -> None:
    [operation] = operations(deliver(worker, s(1), CONTROLLER, Scan("sum", 1)))
    deliver(worker, s(1), worker.lanes, Finished(operation.action_id, "scan", Status.OK, 1, 2, models=reports))


def test_a_scan_of_the_same_content_keeps_what_was_measured() -> None:
    worker = a_worker()
    for number in range(1, 6):
        run_batch(worker, number, 1, ms(5))
    measured = worker.models.reports[SPEC.key]
    scan(worker, unmeasured())
    assert worker.models.reports[SPEC.key] == measured
    changed = unmeasured(msgspec.structs.replace(SPEC, content_hash="new"))
    scan(worker, changed)
    assert worker.models.reports[SPEC.key] == changed


def test_times_of_the_content_before_do_not_count() -> None:
    worker = a_worker()
    for number in range(1, 5):
        run_batch(worker, number, 1, ms(5))
    scan(worker, unmeasured(msgspec.structs.replace(SPEC, content_hash="new")))
    assert not registers(run_batch(worker, 5, 1, ms(5)))


# controller


def one_infer(controller: Any) -> Infer:
    [infer] = sent(controller, Infer)
    return infer


def states(controller: Any) -> dict[str, tuple[str, str]]:
    return {state.spec.name: (state.state, state.reason) for state in controller.catalogue._states.values()}


def test_it_is_ready_with_a_note_and_a_load_of_it_succeeds() -> None:
    controller = a_controller(reports=[unmeasured()])
    assert states(controller) == {"sum": ("READY", NOTE)}
    controller.handle(0, SELECTOR, Admit(7, "sum", "", True), ())
    controller.tick(0)
    [scanned] = sent(controller, Scan, WORKER)
    register = Register((Share(0, "cpu", 64, (SPEC.key,)),), (unmeasured(),), (), 2, (scanned.id,))
    controller.handle(0, WORKER, register, ())
    controller.tick(0)
    answers = [models for models in sent(controller, Models) if models.id == 7]
    assert not any(answer.status for answer in answers)
    assert states(controller) == {"sum": ("READY", NOTE)}


@pytest.mark.parametrize("scheduler", ["horologe", "clockwork", "edf"])
def test_a_request_with_a_usual_deadline_is_planned(scheduler: str) -> None:
    controller = a_controller(scheduler, [unmeasured()])
    submit(controller, 1, budget_ms=50)
    controller.tick(ms(1))
    assert one_infer(controller).batch_size == 1


def test_the_first_measurement_corrects_all_sizes_and_no_other_model() -> None:
    other = a_report(a_spec("other"))
    controller = a_controller(reports=[unmeasured(), other])
    [share] = controller.cluster.shares()
    before_ns = share.predict(0, "other/1", 4)
    submit(controller, 1, budget_ms=10_000)
    finish(controller, msgspec.structs.replace(one_infer(controller), expected_ns=s(2)), s(2))
    assert share.predict(s(2), SPEC.key, 1) == s(2)
    assert share.predict(s(2), SPEC.key, 8) == s(16)
    assert share.predict(s(2), "other/1", 4) == before_ns
    assert share.slowness(s(2)) == 1


def test_a_slow_first_run_is_not_taken_for_a_hung_worker() -> None:
    controller = a_controller(reports=[unmeasured()])
    submit(controller, 1, budget_ms=60_000)
    infer = one_infer(controller)
    for now_ns in (s(1), s(5), s(29)):
        controller.tick(now_ns)
        assert not sent(controller, Cancel)
    controller.tick(s(31))
    assert sent(controller, Cancel)
    finish(controller, msgspec.structs.replace(infer, expected_ns=s(31)), s(31))
    submit(controller, 2, now_ns=s(31), budget_ms=200_000)
    sent(controller, Infer)
    controller.tick(s(31 + 32))  # measured, so that the usual grace applies
    assert sent(controller, Cancel)


def test_its_profile_replaces_the_estimate() -> None:
    controller = a_controller(reports=[unmeasured()])
    register = Register((Share(0, "cpu", 64, (SPEC.key,)),), (a_report(SPEC, exec_ms=70),), (), 2, ())
    controller.handle(0, WORKER, register, ())
    controller.tick(0)
    [share] = controller.cluster.shares()
    assert (states(controller)["sum"], share.predict(0, SPEC.key, 1)) == (("READY", ""), ms(70))


def test_requests_that_fail_are_answered_and_the_model_stays_ready() -> None:
    controller = a_controller(reports=[unmeasured(), a_report(a_spec("other"))])
    for number in range(1, 4):
        submit(controller, number, budget_ms=10_000)
        finish(controller, one_infer(controller), ms(10 * number), Status.FAILED)
    assert states(controller)["sum"] == ("READY", NOTE)
    submit(controller, 9, model="other/1")
    assert one_infer(controller).model == "other/1"
    assert not [outcome for outcome in sent(controller, Outcome) if outcome.status == Status.LOST]
